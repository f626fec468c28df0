"""Pure. The iteration that a worker is in: what it tells its agent, and when it is interrupted."""

import enum
from typing import NamedTuple

RETRY_FIRST_S, RETRY_MAX_S = 0.01, 1.0
"""A signal may come right before a system call and not break it: it is sent again."""


class Word(enum.StrEnum):
    """What is ordered."""

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


class Enter(NamedTuple):
    """The main thread wants an iteration to begin."""

    iteration: int
    content: object


class Left(NamedTuple):
    """The main thread has left the function; with a cause, for the agent, if that failed."""

    reason: str = ""
    cause: object = None
    is_final: bool = False
    """It takes no part any more, and waits for nothing."""


class Order(NamedTuple):
    """What the agent, or the watch on progress, orders; as an effect, the main thread's answer.

    The content is with ``BEGIN`` the agent's message, with ``INTERRUPT`` the cause if that is here.
    """

    iteration: int
    word: Word
    reason: str = ""
    content: object = None


class Notice(enum.Enum):
    """An event that is no more than that."""

    LOCKED = "`Act.LOCK` was carried out"
    RAISED = "the exception was raised in the main thread"
    DROPPED = "the exception is gone"
    DEADLINE = "`deadline` is over"


class Send(NamedTuple):
    """Tell the agent a step: ``entered``, ``interrupted`` or ``completed``."""

    step: str
    iteration: int
    content: object = None


class Act(enum.Enum):
    """An effect that is no more than that."""

    LOCK = "wait until no atomic code runs, and let none begin; ends as `Notice.LOCKED`"
    UNLOCK = "let atomic code run, and raise nothing any more"
    ABORT = "run the user's hook"
    RAISE = "raise in the main thread"


Event = Enter | Left | Order | Notice
Effect = Send | Order | Act


class WorkerIteration:
    """See the module. After ``cleanup_s`` the exception is raised again in code that cleans up."""

    def __init__(self, cleanup_s: float) -> None:
        self.phase = Phase.OUTSIDE
        self.iteration = -1
        self.reason = ""
        """Why it was interrupted."""
        self._cleanup_s = cleanup_s
        self._aborted: Order | None = None
        """May be said while the main thread still cleans up."""
        self._lost: Order | None = None
        self._is_own_fault = False
        self._left: Left | None = None
        self._is_raised = False
        self._retry_s = RETRY_FIRST_S
        self.deadline: float | None = None
        """When ``Notice.DEADLINE`` is due."""

    def check_invariants(self) -> None:
        """Assert that the exception is raised again exactly while it is wanted."""
        assert (self.deadline is not None) == (self.phase is Phase.RAISING)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Return what is to be done, in this order."""
        match event:
            case Order(word=Word.ABORT):
                self._aborted = event
            case Order(word=Word.LOST):
                self._lost = event
        is_late = isinstance(event, Order) and event.iteration != self.iteration
        effects = [] if is_late else self._react(event, now)
        if self.phase is Phase.ENTERING and self._aborted is not None:
            effects += self._to(Phase.OUTSIDE, self._aborted)
        elif self.phase in (Phase.ENTERING, Phase.COMPLETED) and self._lost is not None:
            effects += self._to(Phase.OUTSIDE, self._lost)
        return effects

    def _to(self, phase: Phase, *effects: Effect) -> list[Effect]:
        self.phase = phase
        return list(effects)

    def _react(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match self.phase, event:
            case ((Phase.LOCKING | Phase.RAISING), _):
                effects = self._on_way_out(event, now)
            case _, Left(is_final=True):
                effects = self._to(Phase.OVER)
            case Phase.OUTSIDE, Enter(iteration, content):
                self.iteration = iteration
                effects = self._to(Phase.ENTERING, Send("entered", iteration, content))
            case Phase.ENTERING, Order(word=Word.BEGIN) as order:
                effects = self._to(Phase.RUNNING, order)
            case Phase.ENTERING, Order(word=Word.INTERRUPT) as order:
                effects = self._to(Phase.OUTSIDE, Send("interrupted", self.iteration), order)
            case Phase.RUNNING, Left(cause=None):
                effects = self._to(Phase.COMPLETED, Send("completed", self.iteration))
            case Phase.RUNNING, Left(reason, cause) as left:
                effects = self._interrupt(reason, cause, left)
            case Phase.RUNNING, Order(word=Word.INTERRUPT, reason=reason, content=cause):
                effects = self._interrupt(reason, cause)
            case Phase.COMPLETED, Order(word=Word.INTERRUPT, reason=reason):
                effects = self._interrupt(reason, left=Left())
            case Phase.COMPLETED, Order(word=Word.COMPLETE) as order:
                effects = self._to(Phase.OUTSIDE, order)
        return effects

    def _on_way_out(self, event: Event, now: float) -> list[Effect]:
        match self.phase, event:
            case Phase.LOCKING, Left(cause=cause) as left if self._left is None or left.is_final:
                self._left = left
                if cause is not None and not self._is_own_fault:
                    # It failed by itself: nothing was aborted here yet.
                    return [Send("interrupted", self.iteration, cause)]
            case Phase.LOCKING, Notice.LOCKED:
                return [Act.ABORT, *(self._leave(self._left) if self._left else self._raise(now))]
            case Phase.RAISING, Left() as left:
                return self._leave(left)
            case Phase.RAISING, Notice.RAISED:
                self._is_raised, self.deadline = True, now + self._cleanup_s
            case Phase.RAISING, Notice.DROPPED if self._is_raised:  # the user's code stopped it
                self._is_raised, self.deadline = False, now + self._retry_s
            case Phase.RAISING, Notice.DEADLINE:
                return self._raise(now)
        return []

    def _interrupt(
        self, reason: str, cause: object = None, left: Left | None = None
    ) -> list[Effect]:
        self.reason, self._is_own_fault, self._left = reason, cause is not None, left
        self._retry_s = RETRY_FIRST_S
        return self._to(Phase.LOCKING, Send("interrupted", self.iteration, cause), Act.LOCK)

    def _raise(self, now: float) -> list[Effect]:
        self._is_raised, self.deadline = False, now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        return self._to(Phase.RAISING, Act.RAISE)

    def _leave(self, left: Left) -> list[Effect]:
        self.deadline = None
        if left.is_final:
            return self._to(Phase.OVER, Act.UNLOCK)
        answer = Order(self.iteration, Word.INTERRUPT, self.reason)
        return self._to(Phase.OUTSIDE, Act.UNLOCK, answer)
