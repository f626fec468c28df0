"""The agent's core against a model of its supervisor, in any order of events."""

import dataclasses
from collections.abc import Callable
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    DeadlineReached,
    Event,
    PortReserved,
    SessionLost,
    SessionWelcomed,
    SignalReceived,
    SupervisorDied,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
    WorkerStep,
)
from drumbeat.agent.core.model import Beat, Exit
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.command.leader_search import REDIRECTS_MAX, Outcome
from drumbeat.inprocess import InprocessDirective, InterruptionKind
from drumbeat.model import Assignment, GroupState, Standby, Stop
from tests.support.agents import CONFIG, NOW, PACE, WORKERS, an_assignment, desired
from tests.support.inprocess.values import (
    a_begin,
    a_complete,
    an_interrupt,
    breaks,
    completes,
    directed,
    enters,
    leaves,
)
from tests.support.orders import orders

ADDRESSES = ("a:1", "b:1", "c:1")


class AgentMachine(RuleBasedStateMachine):
    """A supervisor that does what it is told a little later, and a coordinator with moods."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.core = AgentCore(dataclasses.replace(CONFIG, coordinator=",".join(ADDRESSES)))
        self.at_once = 0  # attempts without a wait, or a welcome
        self.attempt = 0
        self.is_open = False
        self.round_id = -1
        self.wanted: Assignment | None = None
        self.alive: dict[int, set[int]] = {}  # round to its live workers
        self.unstarted: int | None = None  # round whose start was asked for
        self.stopping: int | None = None
        self.succeeded: set[int] = set()
        self.failed: set[int] = set()
        self.started: set[int] = set()
        # Rounds in which somebody spoke of iterations: who ended well, and who at all.
        self.iterating: set[int] = set()
        self.ended: dict[int, dict[int, int]] = {}
        self.given_up: set[tuple[int, int]] = set()
        self.written = 0
        self.exits_written = 0
        self.beat: Beat | None = None
        self.finish: fx.Finish | None = None
        self.is_ending = False
        self.next_port = 5000
        self.execute(self.core.start(now=self.now, beat_phase=0.4))

    # The model.

    def deliver(self, event: Event) -> None:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        self.execute(effects)

    def execute(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            assert self.finish is None, "effects after the finish"
            match effect:
                case fx.OpenSession(attempt=attempt, beat=beat):
                    assert attempt > self.attempt, "an attempt twice"
                    self.at_once = 0 if effect.delay_max_s else self.at_once + 1
                    assert self.at_once <= len(ADDRESSES) + REDIRECTS_MAX, "a storm"
                    self.attempt, self.is_open = attempt, False
                    assert beat.failures_written == self.written
                case fx.StartRound(assignment=assignment):
                    self.on_start(assignment)
                case fx.StopWorkers(round_id=round_id):
                    assert self.stopping is None, "a round is stopped once"
                    self.stopping = round_id
                case fx.WriteFailure(failure=failure):
                    self.written += 1
                    assert failure.sequence == self.written
                    assert failure.round_id in self.started
                    if failure.interruption is not None:
                        assert failure.round_id in self.iterating
                        assert failure.interruption is not InterruptionKind.HOST_LOST
                case fx.WorkerOrder(worker=WorkerKey(round_id=round_id, local_rank=rank)):
                    assert self.stopping != round_id, "orders for those that are being stopped"
                    assert rank in self.alive.get(round_id, ()), "an order for nobody"
                case fx.SignalWorkers(round_id=round_id, local_rank=int(rank), signum=signum):
                    assert self.stopping != round_id, "it is being stopped with the others"
                    assert rank in self.alive.get(round_id, ()), "a signal for nobody"
                    is_again = (round_id, rank) in self.given_up
                    assert signum == (9 if is_again else 15)
                    self.given_up.add((round_id, rank))
                case fx.SendBeat(beat=beat):
                    self.on_beat(beat)
                case fx.Finish():
                    self.finish = effect
                    assert not self.alive, "it finishes beside live workers"
                    assert self.unstarted is None
                case _:
                    pass

    def on_start(self, assignment: Assignment) -> None:
        assert assignment == self.wanted, "not the latest round"
        assert not self.alive, "a round starts beside living processes"
        assert self.unstarted is None
        assert assignment.round_id not in self.started, "a round is started again"
        self.started.add(assignment.round_id)
        self.unstarted, self.stopping = assignment.round_id, None

    def on_beat(self, beat: Beat) -> None:
        assert self.is_open, "a beat without a session"
        assert beat.failures_written == self.written
        assert self.beat is None or beat.failures_written >= self.beat.failures_written
        living = sum(map(len, self.alive.values())) + (self.unstarted is not None)
        assert beat.workers_alive or not living, "live workers are denied"
        if beat.state is GroupState.SUCCEEDED:
            assert beat.round_id is not None
            ended = self.ended.get(beat.round_id, {})
            is_excused = beat.round_id in self.iterating and 0 in ended.values()
            assert beat.round_id in self.succeeded or (is_excused and not living)
        if beat.inprocess is not None:
            self.check_report(beat)
        if beat.state is GroupState.IDLE:
            assert not living
        self.beat = beat

    def check_report(self, beat: Beat) -> None:
        assert beat.round_id in self.iterating
        report, before = beat.inprocess, self.beat.inprocess if self.beat else None
        assert report is not None
        gone = {left.local_rank for left in report.terminated}
        assert set(self.ended.get(beat.round_id, {})) <= gone, "the dead take part"
        if before is not None and self.beat is not None and self.beat.round_id == beat.round_id:
            assert report.iteration >= before.iteration
            assert gone >= {left.local_rank for left in before.terminated}

    def end_round(self, round_id: int) -> None:
        self.alive.pop(round_id, None)
        self.unstarted = self.stopping = None

    # The coordinator.

    @precondition(lambda self: not self.is_open and self.finish is None)
    @rule()
    def welcome(self) -> None:
        if not self.is_ending:
            self.is_open, self.at_once = True, 0
            self.deliver(SessionWelcomed(attempt=self.attempt, pace=PACE))

    @rule(outcome=st.sampled_from(Outcome), leader=st.sampled_from(("", *ADDRESSES, "d:1")))
    def lose_session(self, outcome: Outcome, leader: str) -> None:
        if self.is_open or self.finish is None:
            self.is_open = False
            lost = SessionLost(attempt=self.attempt, reason="reset", outcome=outcome, leader=leader)
            self.deliver(lost)

    @precondition(lambda self: self.is_open)
    @rule()
    def give_up(self) -> None:
        self.is_open, self.wanted = False, None
        refused = Outcome.REFUSED
        lost = SessionLost(attempt=self.attempt, reason="late", is_stale=True, outcome=refused)
        self.deliver(lost)

    @precondition(lambda self: self.is_open)
    @rule(is_same=st.booleans())
    def want_round(self, *, is_same: bool) -> None:
        # An agent that was given up after its success gets its seat in that round again.
        may_repeat = self.wanted is not None or self.round_id in self.succeeded
        if not (is_same and may_repeat):
            self.round_id += 1
        self.wanted = an_assignment(self.round_id)
        self.deliver(desired(self.wanted, attempt=self.attempt))

    @precondition(lambda self: self.is_open)
    @rule(is_stop=st.booleans())
    def want_nothing(self, *, is_stop: bool) -> None:
        self.wanted = None
        state = Stop(reason="failed") if is_stop else Standby(reason="waiting")
        self.deliver(desired(state, attempt=self.attempt, spent=self.next_port))

    @precondition(lambda self: self.is_open and self.round_id > 2)
    @rule(is_success=st.booleans())
    def want_end(self, *, is_success: bool) -> None:
        self.wanted, self.is_ending = None, True
        end = Exit(is_success=is_success, reason="over")
        self.deliver(desired(end, attempt=self.attempt))

    @rule()
    def late_word(self) -> None:
        self.deliver(desired(an_assignment(10_000), attempt=self.attempt - 1))

    # The host.

    @rule()
    def reserve(self) -> None:
        self.next_port += 1
        self.deliver(PortReserved(port=self.next_port))

    @precondition(lambda self: self.unstarted is not None)
    @rule(fails_at=st.none() | st.integers(0, WORKERS - 1))
    def spawn(self, fails_at: int | None) -> None:
        round_id = self.unstarted
        assert round_id is not None
        self.unstarted = None
        ranks = set(range(WORKERS if fails_at is None else fails_at))
        if ranks:
            self.alive[round_id] = ranks
        if fails_at is None:
            self.deliver(WorkersStarted(round_id=round_id))
        else:
            self.failed.add(round_id)
            failed = WorkerStartFailed(round_id=round_id, local_rank=fails_at, message="no")
            self.deliver(failed)

    @precondition(lambda self: self.alive)
    @rule(code=st.sampled_from([0, 0, 1, -9]))
    def worker_ends(self, code: int) -> None:
        ((round_id, ranks),) = self.alive.items()
        rank = ranks.pop()
        self.ended.setdefault(round_id, {})[rank] = code
        if code:
            self.failed.add(round_id)
        if not ranks:
            del self.alive[round_id]
            if round_id not in self.failed | self.iterating:
                self.succeeded.add(round_id)
        self.deliver(
            WorkerExited(
                round_id=round_id,
                local_rank=rank,
                pid=rank + 1,
                exit_code=code,
                is_stopped=self.stopping is not None,
                ended_at=self.now,
            )
        )

    @precondition(lambda self: self.alive)
    @rule(
        rank=st.integers(0, WORKERS - 1),
        iteration=st.integers(0, 3),
        say=st.sampled_from([enters, enters, completes, breaks, leaves]),
    )
    def worker_steps(self, rank: int, iteration: int, say: Callable[..., WorkerStep]) -> None:
        ((round_id, ranks),) = self.alive.items()
        if rank in ranks:
            self.iterating.add(round_id)
            self.deliver(replace(say(rank, iteration), worker=WorkerKey(round_id, rank)))

    @precondition(lambda self: self.alive)
    @rule()
    def all_workers_enter(self) -> None:
        for rank in range(WORKERS):
            self.worker_steps(rank, 0, enters)

    @precondition(lambda self: self.is_open and self.round_id >= 0)
    @rule(
        iteration=st.integers(0, 3),
        direct=st.sampled_from([a_begin, a_begin, an_interrupt, a_complete]),
        ahead=st.sampled_from([0, 0, 0, 1]),
    )
    def coordinator_directs(
        self, iteration: int, direct: Callable[..., InprocessDirective], ahead: int
    ) -> None:
        round_id = self.round_id + ahead
        self.iterating.add(round_id)
        self.deliver(directed(direct(iteration, round_id=round_id), attempt=self.attempt))

    @precondition(lambda self: self.is_open and self.alive)
    @rule(rank=st.integers(0, WORKERS - 1))
    def worker_gets_no_seat(self, rank: int) -> None:
        self.iterating.add(self.round_id)
        begin = a_begin(4, [rank], round_id=self.round_id)
        self.deliver(directed(begin, attempt=self.attempt))

    @precondition(lambda self: self.alive)
    @rule()
    def all_workers_succeed(self) -> None:
        while self.alive:
            self.worker_ends(0)

    @precondition(lambda self: self.is_open and self.round_id in self.succeeded)
    @rule()
    def is_given_up_after_success(self) -> None:
        self.give_up()
        if self.stopping is not None and self.finish is None:
            self.stopped()
        if not self.is_ending and self.finish is None:
            self.welcome()
            self.want_round(is_same=True)

    @precondition(lambda self: self.stopping is not None and self.unstarted is None)
    @rule()
    def stopped(self) -> None:
        round_id = self.stopping
        assert round_id is not None
        self.end_round(round_id)
        self.deliver(WorkersStopped(round_id=round_id))

    @rule()
    def late_stop(self) -> None:
        self.deliver(WorkersStopped(round_id=self.round_id - 1_000))

    @rule()
    def supervisor_dies(self) -> None:
        self.alive, self.unstarted, self.stopping = {}, None, None
        self.deliver(SupervisorDied(ending="was ended by SIGKILL"))

    @precondition(lambda self: self.round_id > 3)
    @rule()
    def signal(self) -> None:
        self.is_ending = True
        self.deliver(SignalReceived(signum=15))

    @rule(seconds=st.sampled_from([0.5, 1.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= end:
            if self.finish is not None:
                break
            self.now = max(self.now, due)
            self.deliver(DeadlineReached())
            after = self.core.next_deadline()
            assert after is None or after > self.now, "a deadline stays due"
        self.now = end

    @invariant()
    def beats_are_recent(self) -> None:
        if self.is_open and self.finish is None and self.beat is not None:
            beat = self.core.workers.beat(self.core._port)
            assert self.beat.news == beat.news or self.core._beat_at is None

    def teardown(self) -> None:
        """Two signals and a supervisor that obeys end it, whatever happened."""
        for _ in range(2):
            if self.finish is None:
                self.deliver(SignalReceived(signum=15))
        if self.unstarted is not None:
            self.spawn(None)
        if self.finish is None and self.stopping is not None:
            self.stopped()
        assert self.finish is not None, "it hangs"


AgentMachine.TestCase.settings = orders(120, steps=50)
TestAgentMachine = cast("type", AgentMachine.TestCase)
