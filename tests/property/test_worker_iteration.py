"""One worker's iteration: a main thread that keeps to the rules, and events in any order."""

from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.support.orders import orders
from worker_sdk.inprocess.restart.machine import (
    RETRY_FIRST_S,
    Act,
    Effect,
    Enter,
    Event,
    Left,
    Notice,
    Order,
    Phase,
    Send,
    Word,
    WorkerIteration,
)

CLEANUP_S = 60.0


class IterationMachine(RuleBasedStateMachine):
    """The main thread is outside, waits for an answer, or is in the function."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerIteration(CLEANUP_S)
        self.now = 100.0
        self.main = "outside"
        self.iteration = -1
        self.answers: list[Order] = []
        self.sent: list[Send] = []
        self.is_locked = False
        self.is_lock_due = False
        self.aborts = 0
        self.raises = 0

    def deliver(self, event: Event) -> None:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        for effect in effects:
            self.execute(effect)

    def execute(self, effect: Effect) -> None:
        match effect:
            case Send():
                assert effect.iteration == self.iteration
                is_earlier = any(s.step == "interrupted" and s.iteration == self.iteration
                                 for s in self.sent)  # fmt: skip
                assert not is_earlier or effect.step == "interrupted", "it goes back"
                self.sent.append(effect)
            case Order():
                assert self.main == "waits", "an answer that the main thread does not wait for"
                assert not self.is_locked, "the main thread would wait for atomic code"
                self.answers.append(effect)
                self.main = "inside" if effect.word is Word.BEGIN else "outside"
            case Act.LOCK:
                assert not self.is_locked
                assert not self.is_lock_due
                self.is_lock_due = True
            case Act.UNLOCK:
                assert self.is_locked
                self.is_locked = False
            case Act.ABORT:
                assert self.is_locked, "atomic code may run"
                self.aborts += 1
            case Act.RAISE:
                assert self.is_locked, "atomic code may be torn"
                assert self.main == "inside", "it would be raised outside of the function"
                self.raises += 1

    @precondition(lambda self: self.main == "outside")
    @rule()
    def enter(self) -> None:
        self.iteration += 1
        self.main = "waits"
        self.deliver(Enter(self.iteration, "spec"))

    @precondition(lambda self: self.main == "inside")
    @rule(is_failure=st.booleans())
    def leave(self, *, is_failure: bool) -> None:
        self.main = "waits"
        self.deliver(Left("it failed", "the cause") if is_failure else Left())

    @rule(word=st.sampled_from(Word), behind=st.integers(0, 1))
    def order(self, word: Word, behind: int) -> None:
        """Late and repeated orders come as well; those of the future do not."""
        if word is not Word.LOST and (word is not Word.ABORT or behind):
            self.deliver(Order(self.iteration - behind, word, "a reason"))

    @precondition(lambda self: self.main == "inside")
    @rule()
    def silence(self) -> None:
        self.deliver(Order(self.iteration, Word.INTERRUPT, "silence", "the cause"))

    @precondition(lambda self: self.is_lock_due)
    @rule()
    def lock(self) -> None:
        self.is_lock_due, self.is_locked = False, True
        before = self.aborts
        self.deliver(Notice.LOCKED)
        assert self.aborts == before + 1, "every interruption aborts once"

    @rule(notice=st.sampled_from([Notice.RAISED, Notice.DROPPED]))
    def exception(self, notice: Notice) -> None:
        self.deliver(notice)

    @precondition(lambda self: self.iteration > 3)
    @rule()
    def agent_is_lost(self) -> None:
        self.deliver(Order(-1, Word.LOST))
        assert self.core.phase not in (Phase.ENTERING, Phase.COMPLETED), "it waits for ever"

    @precondition(lambda self: self.core.deadline is not None)
    @rule()
    def time_passes(self) -> None:
        due = self.core.deadline
        assert due is not None
        assert RETRY_FIRST_S <= due - self.now <= CLEANUP_S
        self.now, before = due, self.raises
        self.deliver(Notice.DEADLINE)
        assert self.raises == before + 1, "it is raised again"

    def teardown(self) -> None:
        """The main thread takes no part any more: the machine ends, whatever comes late."""
        self.deliver(Left(is_final=True))
        if self.is_lock_due:
            self.is_lock_due, self.is_locked = False, True
            self.deliver(Notice.LOCKED)
        assert self.core.phase is Phase.OVER
        assert not self.is_locked


IterationMachine.TestCase.settings = orders(120, steps=30)
TestWorkerIteration = cast("type", IterationMachine.TestCase)
