"""Pure. What a run's history and its log say of iterations."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.inprocess.records import IterationBegan, IterationInterrupted, IterationRecord
from coordinator.core.model import Round
from drumbeat.format import count

BEGAN, INTERRUPTED, COMPLETED = "iteration began", "iteration interrupted", "iteration completed"
# A line of the log, but no decision that would be kept.
WAITING = "iteration waiting"
ITERATION_DECISIONS = frozenset({BEGAN, INTERRUPTED, COMPLETED})


def told(record: IterationRecord) -> tuple[str, str]:
    """Return the name of a decision, and why it was taken."""
    match record:
        case IterationBegan(active_world_size=active):
            what = f"iteration {record.iteration}, called by {count(active, 'worker')}"
            return BEGAN, f"{what}; {record.reason}" if record.reason else what
        case IterationInterrupted():
            return INTERRUPTED, record.reason
        case _:
            return COMPLETED, f"iteration {record.iteration} is complete"


def hosts_of(order: Iterable[int], current: Round) -> dict[str, int]:
    """Return the agents of these workers with the lowest rank of each, in that order. Linear."""
    owners = [i for i, seat in current.seats.items() for _ in range(seat.agent.local_world_size)]
    hosts: dict[str, int] = {}
    for rank, worker in enumerate(order):
        hosts.setdefault(owners[worker], rank)
    return hosts
