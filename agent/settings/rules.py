"""Pure. Settings of a job that do not fit together."""

from __future__ import annotations

from typing import Any

from drumbeat.agent.settings.kinds import REPLICA_GROUP, RUN_ID_CHARACTERS_MAX
from drumbeat.agent.settings.placement import SLURM, labels_of
from drumbeat.restart_rules import WINDOWED_RESTARTS_MAX
from drumbeat.text.violation import Violation

_NEEDS = (
    ("metrics_cert", "metrics_key"),
    ("metrics_key", "metrics_cert"),
    ("metrics_cert", "metrics_port"),
    ("metrics_token_file", "metrics_port"),
)
"""Settings that have no meaning without another one."""


def job_violations(config: Any) -> list[Violation]:
    """Return which rules on machines, restarts, access and files the settings of a job break."""
    violations: list[Violation] = []

    def check(name: str, value: object, breaks: object, allowed: str) -> None:
        if breaks:
            violations.append(Violation(name, value, allowed))

    alone, nodes = config.is_standalone, f"{config.min_nodes}:{config.max_nodes}"
    is_reversed = not alone and config.min_nodes > config.max_nodes
    is_above = config.restart_window is not None and config.max_restarts > WINDOWED_RESTARTS_MAX
    most = f"at most {WINDOWED_RESTARTS_MAX} with --restart-window"
    are_both = config.restart_rule and config.restart_rules is not None
    is_fileless = config.event_handler == "jsonl" and config.event_log_file is None
    check("max_nodes", nodes, alone and nodes != "1:1", "1:1, for a standalone agent is alone")
    check("min_nodes", nodes, is_reversed, "a minimum that is not above the maximum")
    check("max_restarts", config.max_restarts, is_above, most)
    either = "either --restart-rule or --restart-rules"
    check("restart_rules", config.restart_rules, are_both, either)
    violations += [*_group_violations(config), *config.access_violations()]
    for name in config.access_given()[:1]:
        nothing = "nothing without the address of a coordinator, for a standalone agent is alone"
        check(name, getattr(config, name), alone, nothing)
    needs_file = "the path of a file, for the handler jsonl needs one"
    check("event_log_file", None, is_fileless, needs_file)
    for name, needed in _NEEDS:
        is_lone = getattr(config, name) is not None and getattr(config, needed) is None
        together = f"this only together with --{needed.replace('_', '-')}"
        check(name, getattr(config, name), is_lone, together)
    return violations


def _group_violations(config: Any) -> list[Violation]:
    """Return which rules of replica groups the settings of a job break."""
    least = config.min_groups
    if config.replica_group is None:
        is_kept = least == 1
        return [] if is_kept else [Violation("min_groups", least, "1 without --replica-group")]
    index, count = config.replica_group
    shown, most = REPLICA_GROUP.text(config.replica_group), RUN_ID_CHARACTERS_MAX - len(f".{index}")
    no_address = config.is_standalone
    rules = [
        ("replica_group", shown, no_address, "this only with --coordinator"),
        ("min_groups", least, least > count, f"1 to the number of groups ({count})"),
        ("run_id", config.run_id, not config.run_id, "the name of the job, with --replica-group"),
        ("run_id", config.run_id, len(config.run_id) > most, f"up to {most} characters here"),
    ]
    return [Violation(name, value, allowed) for name, value, breaks, allowed in rules if breaks]


def placement_violations(config: Any) -> list[Violation]:
    """Return which rules of ranks, blocks and the preflight the settings of an agent break."""
    labels = [name for name, value in labels_of(config.labels).items() if value]
    block, size, identity = config.block_label, config.block_size, config.host_identity
    nodes, is_read = f"{config.min_nodes}:{config.max_nodes}", config.stdout_capture
    order = () if config.rank_order == (SLURM,) else config.rank_order
    is_whole = not size or config.min_nodes % size == config.max_nodes % size == 0
    have = f"labels that have a value here: {', '.join(labels) or 'none, see --labels'}"
    rules = [
        *(("rank_order", name, name in labels, have) for name in order),
        ("host_identity", identity, identity is None or identity in labels, have),
        ("block_label", block, block is None or block in labels, have),
        ("block_size", size, bool(size) == (block is not None), "above 0 with --block-label"),
        ("min_nodes", nodes, is_whole, f"multiples of --block-size ({size})"),
        ("stdout_capture", "off", is_read or not config.preflight, "on, for --preflight is read"),
    ]
    return [
        Violation(name, value, allowed) for name, value, is_kept, allowed in rules if not is_kept
    ]
