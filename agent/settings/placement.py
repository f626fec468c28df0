"""Pure. Where this host is in its cluster, as its labels or Slurm say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    parts = environment.get(_ADDRESS, "").split(".")
    kinds = environment.get(_PATTERN, "").split(".")
    if len(kinds) != len(parts):
        kinds = [*("switch" for _ in parts[1:]), "node"]
    place = [part for part, kind in zip(parts, kinds, strict=True) if part and kind != "node"]
    if not place and not (task := environment.get(_TASK, "")):
        raise ValueError(f"neither {_ADDRESS} nor {_TASK} is set: this agent is no task of Slurm")
    return tuple(place or [task])[:PLACES_MAX]
