"""Pure. The values of in-process restart: steps of workers, reports of the host, orders.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumbeat.inprocess import (
    DirectiveKind,
    HostReport,
    InprocessStep,
    Interruption,
)

NO_ITERATION = -1
"""Before the first one."""


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
class InprocessReport(HostReport):
    """This host's report; ``spec`` is as it was encoded. Messages in it are shortened."""

    spec: bytes | None = None

    @property
    def news(self) -> InprocessReport | None:
        """What of it has to be told at once, ``None`` if nothing: the rest can wait for a beat.

        Else each worker would be worth a message, where each host is.
        """
        if self.step is InprocessStep.OUTSIDE and not self.terminated:
            return None
        if self.step is InprocessStep.ENTERED:
            return self
        return replace(self, ahead=(), spec=None, groups=())


# What is wanted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """No iteration follows: end, with an exception for the caller of the function."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker shall do in an iteration; the latest wins. A begin has its seat only."""

    iteration: int
    kind: DirectiveKind | Abort
