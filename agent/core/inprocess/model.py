"""Pure. The values of in-process restart: steps of workers, reports of the host, orders.

An iteration is one call of the training function by all workers that take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from agent.watchdog.core.model import WorkerKey
from drumbeat.inprocess import DirectiveKind, HostReport, InprocessStep, Interruption

NO_ITERATION = -1
"""Before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """A worker said how far it is in an iteration: it waits for it, or its function has returned.

    Or the iteration can't go on here, without ``interruption`` if the worker only heard of that;
    or the worker takes no part any more. ``spec`` is what all workers of a round must agree on, as
    it was encoded: an agent compares it and hands it on, the coordinator may be newer.
    """

    worker: WorkerKey
    iteration: int
    kind: Literal["entered", "completed", "interrupted", "terminated"]
    interruption: Interruption | None = None
    spec: bytes = b""
    group: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """No iteration follows: end, with an exception for the caller of the function."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Tell a worker what to do in an iteration; the latest counts. A begin has its seat only."""

    worker: WorkerKey
    iteration: int
    kind: DirectiveKind | Abort
