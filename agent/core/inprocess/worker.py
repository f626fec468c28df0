"""Pure. One worker of this host, as far as in-process restart is concerned."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.agent.core.model import NO_ITERATION, Abort, WorkerOrder
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.failures.exit_status import describe_exit
from drumbeat.agent.model.hang import Purpose, describe_hang
from drumbeat.agent.model.messages import WorkerExited
from drumbeat.inprocess import (
    DirectiveKind,
    InprocessDirective,
    InprocessSeat,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import HangKind

REPORTED_CHARACTERS_MAX = 500
"""Of a message in a report, which goes out with every beat; records have all of it."""


class Fault(Struct, frozen=True, kw_only=True):
    """What a worker did to an iteration, in which it may have had a ``rank``.

    ``at`` is this host's monotonic clock. ``is_victim``: it was sent away and did nothing wrong.
    ``is_fatal``: the round can't go on in process.
    """

    interruption: Interruption
    iteration: int
    at: float
    rank: int | None = None
    pid: int = 0
    is_victim: bool = False
    is_fatal: bool = False


@dataclass(slots=True, kw_only=True)
class Worker:
    """The latest of one worker. ``left`` says why it takes no part any more.

    ``phase`` is what it does in its latest iteration::

        OUTSIDE --> ENTERED --> RUNNING --> COMPLETED
                      ^  |         |            |
                      |  v         v            v
                      +--------- INTERRUPTED ---+      (COMPLETED --> ENTERED: the next call)
    """

    local_rank: int
    pid: int = 0
    iteration: int = NO_ITERATION
    phase: InprocessStep = InprocessStep.OUTSIDE
    spec: bytes = b""
    group: str = ""
    seat: InprocessSeat | None = None
    """Its place in its iteration, once that began."""
    left: Interruption | None = None
    fault: Fault | None = None
    """Why it left, if it still has to be written down: when it ends."""
    has_said_so: bool = False
    """It announced itself that it leaves."""
    is_gone: bool = False
    kill_at: float | None = None
    """When it gets SIGKILL if it has not ended by then."""
    ordered: tuple[WorkerOrder, InprocessStep] | None = None
    """Its latest order, and what it did when it got that."""

    @property
    def has_exited(self) -> bool:
        """Whether it takes no part any more and has failed at nothing, as it says."""
        return self.left is not None and self.left.kind is InterruptionKind.EXITED

    @property
    def has_begun(self) -> bool:
        """Whether its latest iteration has begun for it."""
        return self.phase not in (InprocessStep.OUTSIDE, InprocessStep.ENTERED)

    @property
    def is_spare(self) -> bool:
        """Whether it stands by in an iteration that has begun."""
        return self.seat is not None and self.seat.active_rank is None

    def gone(self) -> Fault | None:
        """Note that its process has ended; return what that still had to be written down."""
        fault, self.fault, self.is_gone, self.kill_at = self.fault, None, True, None
        return fault

    def fault_by(self, why: Interruption, iteration: int, *, at: float) -> Fault:
        """Return what is to be written down of what it did; by it, it leaves unless it survives."""
        if not why.kind.is_survived:
            self.left = shortened(why)
        rank = self.seat.rank if self.seat is not None else None
        return Fault(interruption=why, iteration=iteration, at=at, rank=rank, pid=self.pid)

    def seat_in(self, directive: InprocessDirective) -> InprocessSeat | None:
        """Return its place in an iteration that begins."""
        seats = directive.kind.seats if isinstance(directive.kind, IterationBegin) else ()
        return next((seat for seat in seats if seat.local_rank == self.local_rank), None)

    def is_left_behind(self, directive: InprocessDirective) -> bool:
        """Return whether the coordinator goes on without it, although it has not ended."""
        if self.local_rank in directive.terminated:
            return True
        if isinstance(directive.kind, IterationBegin):
            return self.seat_in(directive) is None
        latest_begun = self.iteration if self.has_begun else self.iteration - 1
        return isinstance(directive.kind, IterationComplete) and latest_begun < directive.iteration

    def dismiss(self, round_id: int, reason: str, *, at: float) -> WorkerOrder:
        """Return the order to end, because no iteration follows."""
        why = self.interruption(InterruptionKind.TERMINATED, "was told that no iteration follows")
        self.fault = replace(self.fault_by(why, self.iteration, at=at), is_victim=True)
        return self._order(round_id, Abort(reason=reason))

    def discard(self, iteration: int, *, at: float) -> str:
        """Give it up, because an iteration goes on without it; return why."""
        kind, why = InterruptionKind.BARRIER_TIMEOUT, "did not enter it in time"
        why += "; its stderr may say what kept its main thread (docs/inprocess.md, Interruption)"
        if self.iteration >= iteration:
            kind, why = InterruptionKind.DISCARDED, "has no rank in it"
        message = f"iteration {iteration} goes on without this worker, which {why}"
        fault = self.fault_by(self.interruption(kind, message), iteration, at=at)
        self.fault = replace(fault, is_victim=kind is InterruptionKind.DISCARDED)
        return message

    def obey(self, directive: InprocessDirective) -> WorkerOrder | None:
        """Return the order that it still needs, ``None`` if it needs none."""
        kind, over = directive.kind, (InprocessStep.OUTSIDE, InprocessStep.INTERRUPTED)
        # An iteration is over for all once a later one was interrupted.
        is_passed = isinstance(kind, IterationInterrupt) and self.iteration < directive.iteration
        if self.iteration != directive.iteration and not is_passed:
            return None
        match kind:
            case IterationBegin():
                if self.phase is InprocessStep.ENTERED:
                    self.phase, self.seat = InprocessStep.RUNNING, self.seat_in(directive)
                if self.phase is not InprocessStep.RUNNING or self.seat is None:
                    return None
                kind = replace(kind, seats=(self.seat,))
            case IterationInterrupt() if self.phase in over:
                return None
            case IterationComplete() if self.phase is not InprocessStep.COMPLETED:
                return None  # a spare may not even have heard that it began; it says when it waits
        order = self._order(directive.round_id, kind)
        if self.ordered == (order, self.phase):
            return None
        self.ordered = (order, self.phase)
        return order

    def interruption(self, kind: InterruptionKind, message: str) -> Interruption:
        """Return what this worker does to an iteration."""
        return Interruption(local_rank=self.local_rank, kind=kind, message=message)

    def interruption_by(self, event: WorkerExited) -> Interruption:
        """Return what its end is to the iteration it was in."""
        hang, kind = event.hang, InterruptionKind.TERMINATED
        if hang is not None:
            message = describe_hang(hang)
            if hang.purpose is Purpose.HARD_TIMEOUT:
                kind = InterruptionKind.HARD_TIMEOUT
            elif hang.purpose is Purpose.HEARTBEAT or hang.kind is HangKind.RUNTIME:
                kind = InterruptionKind.UNRESPONSIVE
        elif event.error is not None:
            message = event.error.message
        elif event.exit_code == 0:
            message = "it exited with code 0 before the iteration was over"
        else:
            message = f"its process ended: {describe_exit(event.exit_code)}"
        return self.interruption(kind, message)

    def _order(self, round_id: int, kind: DirectiveKind | Abort) -> WorkerOrder:
        key = WorkerKey(round_id, self.local_rank)
        return WorkerOrder(worker=key, iteration=self.iteration, kind=kind)


def shortened(why: Interruption) -> Interruption:
    """Return an interruption as it is in a report."""
    return replace(why, message=why.message[:REPORTED_CHARACTERS_MAX], traceback="")
