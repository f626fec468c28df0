"""Pure. Settings of replica groups that do not fit together."""

from __future__ import annotations

from typing import Any

from drumbeat.agent.settings.kinds import REPLICA_GROUP, RUN_ID_CHARACTERS_MAX
from drumbeat.violation import Violation


def group_violations(config: Any) -> list[Violation]:
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
