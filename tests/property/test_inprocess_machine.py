"""One host's iterations: workers and a coordinator that keep to the protocol, and bad luck."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    DeadlineReached,
    Event,
    PortReserved,
    SessionWelcomed,
    WorkersStarted,
)
from drumbeat.agent.core.model import Beat, InprocessReport, WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    InprocessStep,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import GroupState
from tests.support.agents import CONFIG, NOW, PACE, PORT, an_assignment, desired
from tests.support.inprocess.values import (
    a_begin,
    a_complete,
    an_interrupt,
    breaks,
    completes,
    directed,
    enters,
    exits,
    leaves,
)
from tests.support.orders import orders

WORKERS = 3
CALLS_MAX = 2


class At(StrEnum):
    """What a worker does."""

    OUTSIDE = "OUTSIDE"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CLEANING = "CLEANING"
    ENDING = "ENDING"
    GONE = "GONE"


@dataclass(eq=False)
class Worker:
    """A worker that keeps to the protocol. Its latest step is under way, as is its order."""

    rank: int
    at: At = At.OUTSIDE
    next: int = 0
    calls: int = 0
    step: WorkerStep | None = None
    order: WorkerOrder | None = None
    signalled: int = 0
    is_spare: bool = False

    @property
    def iteration(self) -> int:
        return self.next - 1

    def enter(self) -> None:
        if self.at is At.OUTSIDE:
            self.calls += 1
        self.step, self.at = enters(self.rank, self.next), At.WAITING
        self.next += 1

    def finish(self) -> None:
        self.step, self.at = completes(self.rank, self.iteration), At.DONE

    def fail(self) -> None:
        self.step, self.at = breaks(self.rank, self.iteration), At.CLEANING

    def leave(self) -> None:
        self.step, self.at = leaves(self.rank, self.iteration), At.ENDING

    def hear(self) -> None:
        order = self.order
        if order is None or order.iteration != self.iteration:
            return
        match order.kind:
            case IterationBegin(seats=(InprocessSeat(active_rank=active_rank),)):
                if self.at is At.WAITING:
                    self.at, self.is_spare = At.RUNNING, active_rank is None
            case IterationInterrupt():
                if self.at in (At.WAITING, At.RUNNING, At.DONE):
                    self.step = breaks(self.rank, self.iteration, None)
                    self.at = At.CLEANING
            case IterationComplete():
                if self.at is At.DONE:
                    self.at = At.OUTSIDE


class InprocessMachine(RuleBasedStateMachine):
    """An agent with the workers of a round; steps, orders and directives take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.core = AgentCore(replace(CONFIG, nproc_per_node=WORKERS))
        self.workers = [Worker(rank) for rank in range(WORKERS)]
        self.beat: Beat | None = None
        self.reports: list[InprocessReport] = []
        self.directives: list[InprocessDirective] = []
        self.iteration = -1
        self.phase = "NONE"
        self.seated: set[int] = set()
        self.records: list[tuple[int, InterruptionKind | None]] = []
        self.good: set[int] = set()
        self.execute(self.core.start(now=self.now))
        self.deliver(PortReserved(port=PORT))
        self.deliver(SessionWelcomed(attempt=1, pace=PACE))
        self.deliver(desired(an_assignment()))
        self.deliver(WorkersStarted(round_id=0, pids={rank: 70 + rank for rank in range(WORKERS)}))

    # The model.

    def deliver(self, event: Event) -> None:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        self.execute(effects)

    def execute(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.WorkerOrder(worker=WorkerKey(local_rank=rank)) as order:
                    worker = self.workers[rank]
                    assert order.iteration <= worker.iteration, "an order it can't know what for"
                    assert worker.at is not At.GONE, "an order for nobody"
                    worker.order = order
                case fx.SignalWorkers(local_rank=int(rank), signum=signum):
                    worker = self.workers[rank]
                    assert (worker.signalled, signum) in ((0, 15), (15, 9)), "not SIGTERM, SIGKILL"
                    assert rank not in self.seated, "who is counted on is ended"
                    worker.signalled = signum
                case fx.WriteFailure(failure=failure):
                    self.records.append((failure.local_rank, failure.interruption))
                case fx.SendBeat(beat=beat):
                    self.on_beat(beat)
                case fx.StopWorkers():
                    raise AssertionError("the end of a worker stops the others")
                case _:
                    pass

    def on_beat(self, beat: Beat) -> None:
        self.beat = beat
        report = beat.inprocess
        if report is None:
            assert not self.reports, "a report is taken back"
            return
        if self.reports:
            before = self.reports[-1]
            assert report.iteration >= before.iteration, "iterations only rise"
            assert set(before.terminated) <= set(report.terminated), "it only grows"
        ranks = [left.local_rank for left in report.terminated]
        assert ranks == sorted(set(ranks))
        present = [w for w in self.workers if w.rank not in ranks]
        assert all(w.at is not At.GONE for w in present), "the dead take part"
        if report.step is InprocessStep.ENTERED:
            assert all(w.iteration >= report.iteration for w in present)
            assert report.spec is not None
        self.reports.append(report)

    def living(self, *at: At) -> list[Worker]:
        return [worker for worker in self.workers if worker.at in at]

    @property
    def report(self) -> InprocessReport | None:
        return self.reports[-1] if self.reports else None

    # Workers.

    @rule(rank=st.integers(0, WORKERS - 1), is_heard=st.booleans())
    def enter(self, rank: int, *, is_heard: bool) -> None:
        worker = self.workers[rank]
        is_again = worker.at is At.OUTSIDE and worker.calls < CALLS_MAX
        if (is_again or worker.at is At.CLEANING) and not worker.signalled:
            worker.enter()
            self.say(worker, is_heard=is_heard)

    @rule()
    def all_enter(self) -> None:
        """What is likely, so that more of what comes after it is seen."""
        for worker in self.workers:
            self.order_arrives(worker.rank)
            self.enter(worker.rank, is_heard=True)
        self.decide(0, is_one_discarded=False)
        for worker in self.workers:
            self.order_arrives(worker.rank)

    @precondition(lambda self: self.living(At.RUNNING))
    @rule(data=st.data(), is_heard=st.booleans())
    def function_ends(self, data: st.DataObject, *, is_heard: bool) -> None:
        worker = data.draw(st.sampled_from(self.living(At.RUNNING)))
        if data.draw(st.integers(0, 2)):
            worker.finish()
        else:
            worker.fail()
        self.say(worker, is_heard=is_heard)

    @precondition(lambda self: self.leavers())
    @rule(data=st.data(), is_heard=st.booleans())
    def leave(self, data: st.DataObject, *, is_heard: bool) -> None:
        worker = data.draw(st.sampled_from(self.leavers()))
        worker.leave()
        self.say(worker, is_heard=is_heard)

    def leavers(self) -> list[Worker]:
        # A spare is not waited for, so it may leave after all have completed: a failure.
        able = self.living(At.RUNNING, At.CLEANING)
        return [worker for worker in able if not worker.is_spare]

    def say(self, worker: Worker, *, is_heard: bool) -> None:
        if is_heard:
            self.step_arrives(worker.rank, is_repeated=False)

    @rule(rank=st.integers(0, WORKERS - 1), is_repeated=st.booleans())
    def step_arrives(self, rank: int, *, is_repeated: bool) -> None:
        worker = self.workers[rank]
        if worker.step is not None and worker.at is not At.GONE:
            for _ in range(1 + is_repeated):
                self.deliver(worker.step)

    @rule(rank=st.integers(0, WORKERS - 1))
    def order_arrives(self, rank: int) -> None:
        if self.workers[rank].at is not At.GONE:
            self.workers[rank].hear()

    @precondition(lambda self: self.is_engaged() and self.beat.workers_alive > 1)
    @rule(rank=st.integers(0, WORKERS - 1), code=st.sampled_from([0, 1, -9]))
    def dies(self, rank: int, code: int) -> None:
        worker = self.workers[rank]
        if worker.at is not At.GONE and (worker.at is not At.OUTSIDE or worker.signalled):
            self.end(worker, code)

    def is_engaged(self) -> bool:
        """Whether the agent knows of an iteration that is not over."""
        return self.core._inprocess.is_on

    def end(self, worker: Worker, code: int) -> None:
        before = len([r for r in self.records if r[0] == worker.rank and _ends(r[1])])
        worker.at = At.GONE
        self.deliver(exits(worker.rank, code))
        after = len([r for r in self.records if r[0] == worker.rank and _ends(r[1])])
        assert after - before <= 1, "a death is one record"
        if after == before:
            assert code == 0, "a bad end without a record"
            self.good.add(worker.rank)

    # The coordinator.

    def direct(self, directive: InprocessDirective) -> None:
        self.directives.append(directive)
        self.deliver(directed(directive))

    @rule(spares=st.integers(0, WORKERS), is_one_discarded=st.booleans())
    def decide(self, spares: int, *, is_one_discarded: bool) -> None:
        report = self.report
        if report is None:
            return
        gone = {left.local_rank for left in report.terminated}
        if self.phase == "RUNNING":
            if report.iteration == self.iteration and report.step is InprocessStep.COMPLETED:
                self.phase = "COMPLETED"
                self.direct(a_complete(self.iteration))
            elif (
                (report.iteration == self.iteration and report.step is InprocessStep.INTERRUPTED)
                or report.iteration > self.iteration
                or gone & self.seated
            ):
                self.interrupt()
        elif report.iteration == self.iteration + 1 and report.step is InprocessStep.ENTERED:
            left = [rank for rank in range(WORKERS) if rank not in gone]
            seated = left[1:] if is_one_discarded else left
            active = seated[: max(0, len(seated) - spares)]
            self.iteration, self.phase, self.seated = report.iteration, "RUNNING", set(seated)
            spare = [rank for rank in seated if rank not in active]
            self.direct(a_begin(self.iteration, active, spare))

    @precondition(lambda self: self.phase == "RUNNING")
    @rule()
    def interrupt(self) -> None:
        self.phase = "INTERRUPTED"
        self.direct(an_interrupt(self.iteration))

    @precondition(lambda self: self.phase == "INTERRUPTED")
    @rule()
    def interrupt_before_it_begins(self) -> None:
        self.iteration += 1
        self.direct(an_interrupt(self.iteration))

    @precondition(lambda self: self.directives)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An earlier word arrives again, or late."""
        before = [worker.order for worker in self.workers]
        self.deliver(directed(data.draw(st.sampled_from(self.directives))))
        assert [worker.order for worker in self.workers] == before, "a late word is obeyed"

    @precondition(lambda self: self.core._inprocess.deadline is not None)
    @rule()
    def time_passes(self) -> None:
        self.now += CONFIG.shutdown_timeout
        self.deliver(DeadlineReached())
        due = self.core.next_deadline()
        assert due is None or due > self.now, "a deadline stays due"

    # The end.

    def teardown(self) -> None:
        """Without more bad luck the workers come to an end, and the host to a state."""
        for _ in self.patience():
            is_idle = not self.living(At.WAITING, At.RUNNING, At.DONE, At.CLEANING, At.ENDING)
            if is_idle and (self.phase != "RUNNING" or not self.is_engaged()):
                break
            self.go_on()
        for worker in self.living(At.OUTSIDE):
            self.end(worker, 0)
        assert self.beat is not None
        assert self.beat.workers_alive == 0
        if self.good and not self.core._inprocess.is_on:
            assert self.beat.state is GroupState.SUCCEEDED
        else:
            assert self.beat.state is GroupState.RUNNING

    def patience(self) -> Iterator[int]:
        yield from range(100)
        raise AssertionError(
            f"it hangs: {self.phase} {self.iteration} {self.workers} {self.report}"
        )

    def go_on(self) -> None:
        is_call_open = any(w.iteration > self.completed() for w in self.living(*At))
        for worker in self.living(*At):
            if worker.at is At.GONE:
                continue
            if worker.signalled:
                self.end(worker, -worker.signalled)
            elif worker.at is At.ENDING:
                self.step_arrives(worker.rank, is_repeated=False)
                self.end(worker, 1)
            elif worker.at is At.CLEANING:
                worker.enter()
            elif worker.at is At.RUNNING:
                worker.finish()
            elif worker.at is At.OUTSIDE and is_call_open and worker.iteration < self.iteration + 1:
                worker.enter()
            self.step_arrives(worker.rank, is_repeated=True)
        self.decide(0, is_one_discarded=False)
        for worker in self.workers:
            self.order_arrives(worker.rank)

    def completed(self) -> int:
        found = [d.iteration for d in self.directives if isinstance(d.kind, IterationComplete)]
        return max(found, default=-1)


def _ends(kind: InterruptionKind | None) -> bool:
    return kind is not None and not kind.is_survived


InprocessMachine.TestCase.settings = orders(100, steps=40)
TestInprocessMachine = cast("type", InprocessMachine.TestCase)
