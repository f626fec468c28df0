"""Pure. Where this host is in its cluster, as its labels or Slurm say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumbeat.violation import Violation

SLURM = "slurm"
PLACES_MAX = 16  # more levels than any network has
# Of the host, from the switches of the topmost level down to the node; and what each part is.
_ADDRESS, _PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
_TASK = "SLURM_PROCID"


def labels_of(labels: Sequence[str]) -> dict[str, str]:
    """Return the values of labels by their names."""
    return dict(label.split("=", 1) for label in labels)


def slurm_place(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above this node, or else its place among the tasks of its job.

    Raises ``ValueError``.
    """
    parts, kinds = (
        environment.get(_ADDRESS, "").split("."),
        environment.get(_PATTERN, "").split("."),
    )
    if len(kinds) != len(parts):
        kinds = [*("switch" for _ in parts[1:]), "node"]
    place = [part for part, kind in zip(parts, kinds, strict=True) if part and kind != "node"]
    if not place and not (task := environment.get(_TASK, "")):
        raise ValueError(f"neither {_ADDRESS} nor {_TASK} is set: this agent is no task of Slurm")
    return tuple(place or [task])[:PLACES_MAX]


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
