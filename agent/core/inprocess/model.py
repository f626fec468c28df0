"""Pure. The values of in-process restart: steps of workers, reports of the host, orders.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

NO_ITERATION = -1
"""Before the first one."""


class InterruptionKind(StrEnum):
    """What ended an iteration for a worker. The values are those of the protocol."""

    label: str
    """What happened, as a report has it."""

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


class HostStep(StrEnum):
    """How far all workers of a host are. The values are those of ``InprocessStep``."""

    ENTERED = "ENTERED"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    COMPLETED = "COMPLETED"
    OUTSIDE = "OUTSIDE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Something that ended an iteration for a worker."""

    local_rank: int
    kind: InterruptionKind
    message: str = ""
    traceback: str = ""


# What workers say.


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """It waits for the iteration to begin.

    ``spec`` is what all workers of a round must agree on, as it was encoded: an agent compares
    it and hands it on, the coordinator may be newer.
    """

    spec: bytes
    group: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    """The function has returned here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The iteration can't go on here; ``None``: the worker only heard of it."""

    interruption: Interruption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """The worker takes no part any more."""

    interruption: Interruption


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """How far a worker is in an iteration."""

    iteration: int
    kind: Entered | Completed | Interrupted | Terminated


# What the host says.


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessReport:
    """What this host's workers do in the iterations of a round. See the protocol.

    Messages are shortened and there are no tracebacks; failure records have them.
    """

    iteration: int
    step: HostStep
    terminated: tuple[Interruption, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    spec: bytes | None = None
    groups: tuple[str, ...] = ()
    ahead: tuple[int, ...] = ()

    @property
    def news(self) -> InprocessReport | None:
        """What of it has to be told at once, ``None`` if nothing: the rest can wait for a beat.

        Else each worker would be worth a message, where each host is.
        """
        if self.step is HostStep.OUTSIDE and not self.terminated:
            return None
        if self.step is HostStep.ENTERED:
            return self
        return replace(self, ahead=(), spec=None, groups=())


# What is wanted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker's place in an iteration; ``active_rank`` is ``None`` if it stands by.

    ``role_world_size`` is 0 if the coordinator does not tell places within a role.
    """

    local_rank: int
    rank: int
    active_rank: int | None = None
    role_rank: int = 0
    role_world_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """It begins. A worker without a seat takes no part any more."""

    seats: tuple[Seat, ...]
    world_size: int
    active_world_size: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """It was interrupted somewhere: abort, clean up, enter the next one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Complete:
    """All have completed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessDirective:
    """What the coordinator wants of this host in an iteration; the latest wins.

    ``terminated`` are local ranks that take no part any more, whatever they do: a begin
    that had no seat for them may have been replaced before it arrived.
    """

    round_id: int
    iteration: int
    kind: Begin | Interrupt | Complete
    terminated: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int, int, int]:
        """The greater is the later. One that was interrupted is complete if all have exited."""
        stage = (Begin, Interrupt, Complete).index(type(self.kind))
        return (self.round_id, self.iteration, stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """No iteration follows: end, with an exception for the caller of the function."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker shall do in an iteration; the latest wins. A ``Begin`` has its seat only."""

    iteration: int
    kind: Begin | Interrupt | Complete | Abort
