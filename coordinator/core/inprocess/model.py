"""Pure. The values of in-process restart: specs, reports of hosts, what hosts are told.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from coordinator.core.inprocess.rank_rules import SHIFT_RANKS, RankRule

# Of a fault's text in a reason or a record; the whole is in its failure record.
FAULT_CHARACTERS_MAX = 300
# Faults that a reason or a record names; the others are a number.
FAULTS_NAMED_MAX = 4


class InterruptionKind(StrEnum):
    """What ended an iteration for a worker. The values are those of the protocol."""

    EXCEPTION = "EXCEPTION"
    BASE_EXCEPTION = "BASE_EXCEPTION"
    SOFT_TIMEOUT = "SOFT_TIMEOUT"
    HARD_TIMEOUT = "HARD_TIMEOUT"
    TERMINATED = "TERMINATED"
    UNRESPONSIVE = "UNRESPONSIVE"
    UNHEALTHY = "UNHEALTHY"
    HOST_LOST = "HOST_LOST"
    BARRIER_TIMEOUT = "BARRIER_TIMEOUT"
    DISCARDED = "DISCARDED"
    EXITED = "EXITED"


class InprocessStep(StrEnum):
    """How far all workers of a host are in an iteration. The values are those of the protocol."""

    ENTERED = "ENTERED"
    """They wait for it to begin."""
    RUNNING = "RUNNING"
    """It runs."""
    INTERRUPTED = "INTERRUPTED"
    """At least one was interrupted; they clean up."""
    COMPLETED = "COMPLETED"
    """All have completed it."""
    OUTSIDE = "OUTSIDE"
    """Not all have entered the first one of the round."""


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
class Interruption:
    """What ended an iteration for a worker, as its host reports it."""

    local_rank: int
    kind: InterruptionKind
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessReport:
    """What a host's workers do in the iterations of a round: all of it, the latest wins.

    ``terminated`` only grows. ``spec`` comes with the first reports of a call,
    ``groups`` are by local rank, empty if no rule asks for them. ``ahead`` are local
    ranks: of those that have completed what still runs, or wait for the next iteration.
    """

    iteration: int
    step: InprocessStep
    terminated: tuple[Interruption, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    spec: InprocessSpec | None = None
    groups: tuple[str, ...] = ()
    ahead: tuple[int, ...] = ()


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


class InprocessSeat(NamedTuple):
    """A worker's place in an iteration; ``active_rank`` is ``None`` if it stands by.

    A named tuple: a begin makes one for each worker of the fleet.
    Those of its role are counted as those in its rank are: active ones, if it is.
    """

    local_rank: int
    rank: int
    active_rank: int | None
    role_rank: int
    role_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBegin:
    """A host's part of an iteration. A worker without a seat takes no part any more."""

    seats: tuple[InprocessSeat, ...]
    world_size: int
    active_world_size: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationInterrupt:
    """Abort, clean up, enter the next iteration."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationComplete:
    """All have completed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessDirective:
    """What a host's workers shall do in an iteration; the latest wins.

    ``terminated`` are local ranks that take no part any more, whatever they do: their
    host may never have seen the begin that had no seat for them.
    """

    round_id: int
    iteration: int
    kind: IterationBegin | IterationInterrupt | IterationComplete
    terminated: tuple[int, ...] = ()
