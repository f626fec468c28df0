"""Pure. The values of in-process restart: specs, reports of hosts, what hosts are told.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.inprocess.rank_rules import SHIFT_RANKS, RankRule
from drumbeat.inprocess import HostReport, InterruptionKind

# Of a fault's text in a reason; the whole is in its failure record.
FAULT_CHARACTERS_MAX = 300
# Faults that a reason names; the others are a number.
FAULTS_NAMED_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessSpec:
    """What all workers of a round must agree on. Durations are seconds; 0 of a count: no limit."""

    rules: tuple[RankRule, ...] = (SHIFT_RANKS,)
    world_size_min: int = 0
    active_world_size_min: int = 0
    iterations_max: int = 0
    last_call_wait_s: float = 1.0
    barrier_timeout_s: float = 120.0
    completion_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessReport(HostReport):
    """A host's report; ``spec`` comes with the first ones of a call."""

    spec: InprocessSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What ended an iteration for one worker, or for ``workers`` of a host at once.

    ``rank`` is the lowest one's in that iteration, or at the start of the round if
    it had none.
    """

    rank: int
    host: str
    kind: InterruptionKind
    message: str = ""
    workers: int = 1

    @property
    def is_exit(self) -> bool:
        """Whether the worker has ended having failed at nothing."""
        return self.kind is InterruptionKind.EXITED

    def __str__(self) -> str:
        """Say it in one line."""
        first = self.message.partition("\n")[0]
        return f"{self.who()}: {self.kind}{f': {first}' if first else ''}"

    def who(self) -> str:
        """Name the worker, or the host."""
        if self.workers == 1:
            return f"rank {self.rank} on {self.host}"
        return f"{self.workers} workers on {self.host}"
