"""Pure. The values of in-process restart that agents and the coordinator exchange.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

from msgspec import Struct


class InterruptionKind(StrEnum):
    """What ended an iteration for a worker. The values are those of the protocol."""

    label: str  # what happened, as a report has it

    def __new__(cls, value: str, label: str) -> Self:
        """Make a member whose value is the first of the two."""
        kind = str.__new__(cls, value)
        kind._value_, kind.label = value, label
        return kind

    EXCEPTION = "EXCEPTION", "an exception"
    BASE_EXCEPTION = "BASE_EXCEPTION", "an exception that ends the worker"
    SOFT_TIMEOUT = "SOFT_TIMEOUT", "no progress within the soft timeout"
    HARD_TIMEOUT = "HARD_TIMEOUT", "no progress within the hard timeout"
    TERMINATED = "TERMINATED", "the end of the worker"
    UNRESPONSIVE = "UNRESPONSIVE", "no sign of life of the worker"
    UNHEALTHY = "UNHEALTHY", "a worker that can't go on"
    HOST_LOST = "HOST_LOST", "the loss of the host"
    BARRIER_TIMEOUT = "BARRIER_TIMEOUT", "a worker that was late at the barrier"
    DISCARDED = "DISCARDED", "a rule that left the worker without a rank"
    EXITED = "EXITED", "an exit with 0"

    @property
    def is_survived(self) -> bool:
        """Whether the worker takes part in the restart."""
        return self in (InterruptionKind.EXCEPTION, InterruptionKind.SOFT_TIMEOUT)


class InprocessStep(StrEnum):
    """How far all workers of a host are in an iteration. The values are those of the protocol."""

    ENTERED = "ENTERED"  # they wait for it to begin
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"  # at least one was; they clean up
    COMPLETED = "COMPLETED"
    OUTSIDE = "OUTSIDE"  # not all have entered the first one of the round


class Interruption(Struct, frozen=True, kw_only=True):
    """What ended an iteration for a worker. Reports of hosts have no traceback."""

    local_rank: int
    kind: InterruptionKind
    message: str = ""
    traceback: str = ""


class HostReport(Struct, frozen=True, kw_only=True):
    """What a host's workers do in the iterations of a round: all of it, the latest wins."""

    iteration: int
    step: InprocessStep
    terminated: tuple[Interruption, ...] = ()  # only grows
    interruptions: tuple[Interruption, ...] = ()
    groups: tuple[str, ...] = ()  # by local rank, empty if no rule asks for them
    ahead: tuple[int, ...] = ()  # have completed what still runs, or wait for the next one
    # Of the iteration before, as they enter: the report that said so may not have been sent.
    before: tuple[Interruption, ...] = ()


class InprocessSeat(NamedTuple):  # a begin makes one for each worker of the fleet
    """A worker's place in an iteration; ``active_rank`` is ``None`` if it stands by.

    The role's are active ones, if it is; a size of 0: the coordinator tells no places in roles.
    """

    local_rank: int
    rank: int
    active_rank: int | None = None
    role_rank: int = 0
    role_world_size: int = 0


class IterationBegin(Struct, frozen=True, kw_only=True):
    """A host's part of an iteration. A worker without a seat takes no part any more."""

    seats: tuple[InprocessSeat, ...]
    world_size: int
    active_world_size: int
    master_addr: str
    master_port: int
    has_store: bool = False


class IterationInterrupt(Struct, frozen=True, kw_only=True):
    """It was interrupted somewhere: abort, clean up, enter the next one."""

    reason: str


class IterationComplete(Struct, frozen=True):
    """All have completed it."""


DirectiveKind = IterationBegin | IterationInterrupt | IterationComplete


class InprocessDirective(Struct, frozen=True, kw_only=True):
    """What a host's workers shall do in an iteration; the latest wins."""

    round_id: int
    iteration: int
    kind: DirectiveKind
    # Local ranks that take no part any more: their host may not have seen the begin without them.
    terminated: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int, int, int]:
        """The greater is the later. One that was interrupted is complete if all have exited."""
        stage = (IterationBegin, IterationInterrupt, IterationComplete).index(type(self.kind))
        return (self.round_id, self.iteration, stage)
