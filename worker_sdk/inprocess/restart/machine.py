"""Pure. The iteration that a worker is in: what it tells its agent, and when it is interrupted.

Events come from the main thread (``Enter``, ``Left``), from the agent (``Ordered``,
``Notice.AGENT_LOST``), from the watch on progress (``Silent``), from the exception that is raised
in the main thread (``RAISED``, ``DROPPED``), and from an effect that takes time (``LOCKED``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

RETRY_FIRST_S = 0.01
RETRY_MAX_S = 1.0
"""A signal may come right before a system call and not break it: it is sent again."""


class Word(enum.StrEnum):
    """What the agent orders, and what the main thread is answered."""

    BEGIN = "begin"
    INTERRUPT = "interrupt"
    COMPLETE = "complete"
    ABORT = "abort"
    """No iteration follows."""
    LOST = "lost"
    """The agent will give no more orders."""


class Phase(enum.Enum):
    """Where the main thread is."""

    OUTSIDE = "it cleans up, or is between two iterations"
    ENTERING = "it waits for the iteration to begin"
    RUNNING = "it is in the function"
    LOCKING = "the iteration is interrupted as soon as no atomic code runs"
    RAISING = "it is brought out of the function"
    COMPLETED = "it waits for the other workers"
    OVER = "the call has ended"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why this worker interrupts the iteration; the content is for the agent."""

    reason: str
    content: object


@dataclass(frozen=True, slots=True)
class Enter:
    """The main thread wants an iteration to begin."""

    iteration: int
    content: object


@dataclass(frozen=True, slots=True)
class Left:
    """The main thread has left the function; with a cause if that failed."""

    cause: Cause | None = None
    is_final: bool = False
    """It takes no part any more, and waits for nothing."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """The agent has sent an order."""

    iteration: int
    word: Word | None
    """``None``: something that is newer than this code."""
    reason: str = ""
    content: object = None


@dataclass(frozen=True, slots=True)
class Silent:
    """The soft timeout is over."""

    iteration: int
    cause: Cause


class Notice(enum.Enum):
    """An event that is no more than that."""

    AGENT_LOST = "the agent will give no more orders"
    LOCKED = "`Act.LOCK` was carried out"
    RAISED = "the exception was raised in the main thread"
    DROPPED = "the exception is gone"
    DEADLINE = "`next_deadline` is over"


Event = Enter | Left | Ordered | Silent | Notice


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the agent a step: ``entered``, ``interrupted`` or ``completed``."""

    step: str
    iteration: int
    content: object = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell the main thread, which waits for it."""

    word: Word
    reason: str = ""
    content: object = None


class Act(enum.Enum):
    """An effect that is no more than that."""

    LOCK = "wait until no atomic code runs, and let none begin; ends as `Notice.LOCKED`"
    UNLOCK = "let atomic code run, and raise nothing any more"
    ABORT = "run the user's hook"


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise in the main thread."""

    reason: str


Effect = Send | Answer | Raise | Act


class WorkerIteration:
    """See the module. After ``cleanup_s`` the exception is raised again in code that cleans up."""

    def __init__(self, cleanup_s: float) -> None:
        self.phase = Phase.OUTSIDE
        self.iteration = -1
        self._cleanup_s = cleanup_s
        self._end: Answer | None = None
        """That no iteration follows; may be said while the main thread still cleans up."""
        self._is_lost = False
        self._reason = ""
        self._is_own_fault = False
        self._left: Left | None = None
        self._is_raised = False
        self._retry_s = RETRY_FIRST_S
        self._deadline: float | None = None
        self._in = {
            Phase.OUTSIDE: self._outside,
            Phase.ENTERING: self._entering,
            Phase.RUNNING: self._running,
            Phase.LOCKING: self._locking,
            Phase.RAISING: self._raising,
            Phase.COMPLETED: self._completed,
        }

    def next_deadline(self) -> float | None:
        """Return when ``Notice.DEADLINE`` is due."""
        return self._deadline

    def check_invariants(self) -> None:
        """Assert that the exception is raised again exactly while it is wanted."""
        assert (self._deadline is not None) == (self.phase is Phase.RAISING)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Return what is to be done, in this order."""
        if event is Notice.AGENT_LOST:
            self._is_lost = True
        elif isinstance(event, Ordered) and event.word is Word.ABORT:
            self._end = Answer(Word.ABORT, event.reason)
        if isinstance(event, Ordered) and event.iteration != self.iteration:
            effects = []
        else:
            effects = self._in[self.phase](event, now)
        if self.phase is Phase.ENTERING and self._end is not None:
            effects += self._to(Phase.OUTSIDE, self._end)
        elif self.phase in (Phase.ENTERING, Phase.COMPLETED) and self._is_lost:
            effects += self._to(Phase.OUTSIDE, Answer(Word.LOST))
        return effects

    def _to(self, phase: Phase, *effects: Effect) -> list[Effect]:
        self.phase = phase
        return list(effects)

    def _outside(self, event: Event, _: float) -> list[Effect]:
        match event:
            case Enter(iteration, content):
                self.iteration = iteration
                return self._to(Phase.ENTERING, Send("entered", iteration, content))
            case Left(is_final=True):
                return self._to(Phase.OVER)
        return []

    def _entering(self, event: Event, _: float) -> list[Effect]:
        match event:
            case Ordered(word=Word.BEGIN, content=content):
                return self._to(Phase.RUNNING, Answer(Word.BEGIN, content=content))
            case Ordered(word=Word.INTERRUPT, reason=reason):
                told, answer = self._interrupted(), Answer(Word.INTERRUPT, reason)
                return self._to(Phase.OUTSIDE, told, answer)
            case Left():
                return self._to(Phase.OVER)
        return []

    def _running(self, event: Event, _: float) -> list[Effect]:
        match event:
            case Left(is_final=True):
                return self._to(Phase.OVER)
            case Left(cause=None):
                return self._to(Phase.COMPLETED, Send("completed", self.iteration))
            case Left(cause=Cause() as cause):
                return self._interrupt(cause.reason, cause, event)
            case Silent(iteration, cause) if iteration == self.iteration:
                return self._interrupt(cause.reason, cause)
            case Ordered(word=Word.INTERRUPT, reason=reason):
                return self._interrupt(reason)
        return []

    def _completed(self, event: Event, _: float) -> list[Effect]:
        match event:
            case Ordered(word=Word.COMPLETE):
                return self._to(Phase.OUTSIDE, Answer(Word.COMPLETE))
            case Ordered(word=Word.INTERRUPT, reason=reason):
                return self._interrupt(reason, left=Left())
            case Left():
                return self._to(Phase.OVER)
        return []

    def _interrupted(self, cause: Cause | None = None) -> Send:
        content = None if cause is None else cause.content
        return Send("interrupted", self.iteration, content)

    def _interrupt(
        self, reason: str, cause: Cause | None = None, left: Left | None = None
    ) -> list[Effect]:
        self._reason, self._is_own_fault, self._left = reason, cause is not None, left
        return self._to(Phase.LOCKING, self._interrupted(cause), Act.LOCK)

    def _locking(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Left) and (self._left is None or event.is_final):
            self._left = event
        elif event is Notice.LOCKED:
            if self._left is None:
                self.phase, self._is_raised, self._retry_s = Phase.RAISING, False, RETRY_FIRST_S
                return [Act.ABORT, *self._raise(now)]
            cause = self._left.cause
            # It failed by itself before anything was aborted here.
            told = [] if cause is None or self._is_own_fault else [self._interrupted(cause)]
            return [*told, Act.ABORT, *self._leave(self._left)]
        return []

    def _raising(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Left():
                return self._leave(event)
            case Notice.RAISED:
                self._is_raised, self._deadline = True, now + self._cleanup_s
            case Notice.DROPPED if self._is_raised:  # the code of the user's stopped it
                self._is_raised, self._deadline = False, now + self._retry_s
            case Notice.DEADLINE if self._deadline is not None and now >= self._deadline:
                self._is_raised = False
                return self._raise(now)
        return []

    def _raise(self, now: float) -> list[Effect]:
        self._deadline = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        return [Raise(self._reason)]

    def _leave(self, left: Left) -> list[Effect]:
        self._deadline = self._left = None
        if left.is_final:
            return self._to(Phase.OVER, Act.UNLOCK)
        return self._to(Phase.OUTSIDE, Act.UNLOCK, Answer(Word.INTERRUPT, self._reason))
