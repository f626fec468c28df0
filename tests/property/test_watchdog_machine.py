"""The watchdog's core against workers that write on their boards whenever they like."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumbeat.agent.core.watchdog import model as fx
from drumbeat.agent.core.watchdog.model import (
    BoardRead,
    DeadlineReached,
    Event,
    EvidenceTaken,
    Slot,
    Snapshot,
    TimerAcquired,
    TimerReleased,
    WatchdogPolicy,
    WorkerGone,
    WorkerKey,
    WorkerStarted,
)
from drumbeat.agent.core.watchdog.watchdog import WatchdogCore
from drumbeat.agent.model.hang import HangEvidence
from tests.support.orders import orders

SIGTERM, SIGKILL = 15, 9
POLICY = WatchdogPolicy(runtime_timeout_s=6.0, kill_grace_s=2.0, timers_max=3)
RUNTIME = "the runtime"

RANKS = range(2)
WORKERS = st.sampled_from(RANKS)
NAMES = st.sampled_from(["a", "b", "c"])
TIMEOUTS = st.sampled_from([0.25, 0.5, 1.0, 1.7, 3.0])
PAUSES = st.sampled_from([0.0, 0.3, 1.1])
SIGNALS = st.sampled_from([None, None, None, 10, 0, -1])


@dataclass(eq=False)
class Limit:
    """One that runs, as a worker sees it: when it is over, and until when that must show."""

    since: float
    limit_s: float
    signal: int | None = None
    early_s: float = 0.0
    """So much later than it says it is over at the earliest: the watchdog stood still."""
    slack_s: float = 0.0
    """So much later at the latest. How long a stall really was is not known."""
    is_handled: bool = False
    is_found: bool = False
    """It was over on a board just read: no later stall gives it more time."""

    @property
    def over_at(self) -> float:
        return self.since + self.limit_s


@dataclass(eq=False)
class Worker:
    """A worker as it is, whatever the watchdog knows of it."""

    look_at: float = float("-inf")
    slots: dict[int, Limit] = field(default_factory=dict)
    calls: dict[str, Limit] = field(default_factory=dict)
    runtime: Limit | None = None
    is_debugged: bool = False
    is_killing: bool = False
    is_examined: bool = False  # its stacks were asked for and have not come
    has_evidence: bool = False
    is_condemned: bool = False  # the signal for its stacks was sent
    is_unreported: bool = False  # something was over, and nothing was said of it yet
    is_uncertain: bool = False  # that something may not have been over: a stall may excuse it
    is_gone: bool = False

    def limits(self) -> list[Limit]:
        runtime = [self.runtime] if self.runtime is not None else []
        return [*self.slots.values(), *self.calls.values(), *runtime]

    def board(self) -> Snapshot:
        slots = (
            Slot(
                slot=number,
                name=f"slot {number}",
                is_section=False,
                since=limit.since,
                deadline=limit.over_at,
                limit_s=limit.limit_s,
                signal=limit.signal,
            )
            for number, limit in self.slots.items()
        )
        return Snapshot(
            owner_pid=1,
            stack_signal=63,
            is_debugged=self.is_debugged,
            beat_at=self.runtime.since if self.runtime is not None else None,
            slots=tuple(slots),
        )


def _is_killing(worker: Worker) -> bool:
    return worker.is_killing


class WatchdogMachine(RuleBasedStateMachine):
    """Workers that keep to the rule when to kick, and a watchdog that may stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.core = WatchdogCore(POLICY)
        self.round_id = 0
        self.workers: dict[int, Worker] = {}
        self.gone: set[int] = set()
        self.is_slow = False
        self.stacks = ""
        for rank in RANKS:
            self.starts(rank)

    # The model.

    def deliver(self, event: Event) -> None:
        effects = self.core.handle(event, now=self.now)
        self.core.check_invariants()
        for effect in effects:
            self.execute(effect)

    def execute(self, effect: fx.Effect) -> None:
        if effect.worker is None:
            return
        rank = effect.worker.local_rank
        worker = self.workers.get(rank)
        assert worker is not None, "something is wanted of a worker that has gone"
        assert not worker.is_gone or isinstance(effect, fx.Report | fx.Signal)
        match effect:
            case fx.AnnounceLook(look_at=look_at):
                assert self.now < look_at <= self.now + POLICY.pulse_s
                worker.look_at = look_at
            case fx.ReadBoard():
                self.deliver(BoardRead(worker=self.key(rank), snapshot=worker.board()))
            case fx.TakeEvidence(is_by_signal=is_by_signal):
                is_as_expected = worker.is_uncertain or is_by_signal == worker.is_unreported
                assert is_as_expected, "what was over is forgotten"
                worker.is_examined = worker.has_evidence = worker.is_unreported = True
                worker.is_uncertain = False
                worker.is_condemned = is_by_signal
                for limit in self.over(worker):
                    limit.is_found = True
                if not self.is_slow:
                    self.stacks_come_of(rank, HangEvidence(stacks=self.stacks))
            case fx.Report():
                self.on_report(worker, effect)
            case fx.Signal(signum=signum):
                self.on_signal(worker, signum)
            case fx.Warn(event="hang not judged"):
                for limit in self.over(worker):
                    self.count_anew(limit, limit.limit_s)
                worker.is_examined = worker.has_evidence = worker.is_unreported = False
                worker.is_condemned = False
            case fx.Warn() | fx.TellUnkilled():
                pass

    def over(self, worker: Worker) -> list[Limit]:
        over = (limit for limit in worker.limits() if limit.over_at + limit.early_s <= self.now)
        return [limit for limit in over if not limit.is_handled]

    @staticmethod
    def due(limit: Limit) -> float:
        return limit.over_at + limit.slack_s

    def on_report(self, worker: Worker, report: fx.Report) -> None:
        scope = report.hang.scope
        if report.aftermath:
            assert worker.has_evidence, "nothing was over"
            assert not worker.is_condemned, "it is killed in any case"
        worker.is_examined = worker.is_unreported = worker.is_uncertain = False
        if "went on" in report.aftermath:  # the look goes on for what else is over by now
            over = self.over(worker)
            worker.is_unreported = bool(over)
            worker.is_uncertain = all(self.due(limit) > self.now for limit in over)
        if report.is_ending or report.aftermath:
            return
        named = {f"slot {number}": limit for number, limit in worker.slots.items()}
        named |= worker.calls
        limit = named.get(scope)
        since = self.now - report.hang.elapsed_s
        if limit is None or limit.since != pytest.approx(since):
            # It was over when the worker was condemned, and has been closed or replaced since.
            assert worker.is_condemned
            return
        assert limit.signal is not None
        assert limit.signal <= 0
        assert limit in self.over(worker), "not over, or reported twice"
        limit.is_handled = True
        if scope in worker.calls:
            del worker.calls[scope]

    def on_signal(self, worker: Worker, signum: int) -> None:
        if worker.is_killing:
            assert signum == SIGKILL
            return
        if worker.is_condemned:  # whatever it says by now
            worker.is_killing = True
            return
        over = self.over(worker)
        assert any(limit.signal is None or limit.signal > 0 for limit in over), "nothing is over"
        assert worker.has_evidence, "no evidence was taken"
        worker.has_evidence = False
        worker.is_killing = signum == SIGTERM
        for limit in over:
            if limit is worker.runtime and not worker.is_killing:
                self.count_anew(limit, POLICY.kill_grace_s)
            elif self.due(limit) <= self.now:
                limit.is_handled = True
            else:
                limit.slack_s = float("inf")  # it can't be told whether it was over

    def count_anew(self, limit: Limit, limit_s: float) -> None:
        """A limit that is over, or may be, gets more time."""
        more_s = self.now + limit_s - limit.over_at
        if self.due(limit) <= self.now:
            limit.early_s = more_s
        limit.slack_s = max(limit.slack_s, more_s)

    def key(self, rank: int) -> WorkerKey:
        return WorkerKey(self.round_id, rank)

    def wrote(self, rank: int, limit: Limit) -> None:
        """A worker has written a limit, and kicks if the watchdog would look too late."""
        worker = self.workers[rank]
        if limit.over_at < worker.look_at:
            self.deliver(BoardRead(worker=self.key(rank), snapshot=worker.board()))

    # Workers.

    @rule(rank=WORKERS)
    def starts(self, rank: int) -> None:
        if rank not in self.gone:
            self.workers.setdefault(rank, Worker())
            self.deliver(WorkerStarted(worker=self.key(rank)))

    @rule(rank=WORKERS, chance=st.integers(0, 5))
    def may_go(self, rank: int, chance: int) -> None:
        if chance == 0:
            self.goes(rank)

    def goes(self, rank: int) -> None:
        self.gone.add(rank)
        if (worker := self.workers.get(rank)) is not None:
            worker.is_gone = True
            self.deliver(WorkerGone(worker=self.key(rank)))
            assert not worker.is_unreported or worker.is_uncertain
            del self.workers[rank]
        self.deliver(WorkerGone(worker=self.key(rank)))

    @precondition(lambda self: self.gone or any(map(_is_killing, self.workers.values())))
    @rule()
    def next_round(self) -> None:
        for rank in list(self.workers):
            self.goes(rank)
        self.round_id, self.gone = self.round_id + 1, set()
        for rank in RANKS:
            self.starts(rank)

    @rule(
        rank=WORKERS,
        number=st.integers(0, 3),
        timeout_s=TIMEOUTS,
        signal=SIGNALS,
        pause_s=PAUSES,
    )
    def opens(
        self, rank: int, number: int, timeout_s: float, signal: int | None, pause_s: float
    ) -> None:
        self.time_passes(pause_s)
        if rank in self.workers:
            limit = Limit(self.now, timeout_s, signal)
            self.workers[rank].slots[number] = limit
            self.wrote(rank, limit)

    @rule(rank=WORKERS, number=st.integers(0, 3))
    def closes(self, rank: int, number: int) -> None:
        if rank in self.workers:
            self.workers[rank].slots.pop(number, None)

    @rule(rank=WORKERS)
    def beats(self, rank: int) -> None:
        if rank in self.workers:
            worker = self.workers[rank]
            is_first = worker.runtime is None
            worker.runtime = Limit(self.now, 6.0)
            if is_first:
                self.deliver(BoardRead(worker=self.key(rank), snapshot=worker.board()))

    @rule(rank=WORKERS, name=NAMES, timeout_s=TIMEOUTS, signal=SIGNALS)
    def acquires(self, rank: int, name: str, timeout_s: float, signal: int | None) -> None:
        if rank in self.workers:
            self.workers[rank].calls[name] = Limit(self.now, timeout_s, signal)
        self.deliver(
            TimerAcquired(worker=self.key(rank), scope=name, timeout_s=timeout_s, signal=signal)
        )

    @rule(rank=WORKERS, name=NAMES)
    def releases(self, rank: int, name: str) -> None:
        if rank in self.workers:
            self.workers[rank].calls.pop(name, None)
        self.deliver(TimerReleased(worker=self.key(rank), scope=name))

    @rule(rank=WORKERS, is_debugged=st.booleans())
    def is_debugged(self, rank: int, *, is_debugged: bool) -> None:
        if rank in self.workers:
            self.workers[rank].is_debugged = is_debugged

    # The host.

    @rule(stacks=st.sampled_from(["", "File a.py"]))
    def workers_answer(self, stacks: str) -> None:
        self.stacks = stacks

    @rule()
    def host_slows_down(self) -> None:
        self.is_slow = True

    @precondition(lambda self: self.is_slow)
    @rule(is_traced=st.booleans(), is_alive=st.booleans())
    def stacks_come(self, *, is_traced: bool, is_alive: bool) -> None:
        self.is_slow = False
        for rank, worker in list(self.workers.items()):
            if worker.is_examined:
                self.stacks_come_of(rank, HangEvidence(is_traced=is_traced, is_alive=is_alive))

    def stacks_come_of(self, rank: int, evidence: HangEvidence) -> None:
        self.workers[rank].is_examined = False
        self.deliver(EvidenceTaken(worker=self.key(rank), evidence=evidence))
        if not evidence.is_alive:
            self.goes(rank)

    # Time.

    @rule(seconds=st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.deliver(DeadlineReached())
            self.everything_over_was_noticed()
        self.now = end

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.5, 5.0, 60.0]))
    def stands_still(self, seconds: float) -> None:
        due = self.core.next_deadline()
        self.now += seconds
        if due is not None and self.now - due > POLICY.stall_s:
            for worker in self.workers.values():
                for limit in worker.limits():
                    limit.early_s += 0.0 if limit.is_found else self.now - due
                    limit.slack_s += self.now - due + POLICY.pulse_s
        self.deliver(DeadlineReached())

    @invariant()
    def everything_over_was_noticed(self) -> None:
        for worker in self.workers.values():
            if worker.is_killing or worker.is_examined:
                continue
            for limit in worker.limits():
                assert limit.is_handled or self.due(limit) > self.now, "not noticed"

    @invariant()
    def only_the_living_are_watched(self) -> None:
        assert set(self.core.workers) == {self.key(rank) for rank in self.workers}
        due = self.core.next_deadline()
        assert (due is None) == (not self.workers)
        assert due is None or due > self.now - POLICY.pulse_s

    def teardown(self) -> None:
        """Nothing of anybody remains."""
        for rank in RANKS:
            self.goes(rank)
        assert self.core.next_deadline() is None
        assert self.core.handle(DeadlineReached(), now=self.now + 1000) == []


WatchdogMachine.TestCase.settings = orders(100, steps=50)
TestWatchdogMachine = cast("type", WatchdogMachine.TestCase)


def test_a_limit_that_is_over_while_stacks_of_an_earlier_one_are_late_is_no_new_look() -> None:
    machine = WatchdogMachine()
    machine.host_slows_down()
    machine.opens(rank=0, number=1, timeout_s=0.25, signal=None, pause_s=0.0)
    machine.stands_still(0.3)
    machine.opens(rank=0, number=1, timeout_s=0.25, signal=None, pause_s=0.0)
    machine.time_passes(7.0)
    machine.everything_over_was_noticed()
    machine.teardown()


def test_a_limit_that_is_over_while_a_debugger_holds_the_process_counts_anew_too() -> None:
    machine = WatchdogMachine()
    machine.host_slows_down()
    machine.beats(0)
    machine.acquires(0, "a", 0.25, None)
    machine.time_passes(7.0)
    machine.workers_answer("File a.py")
    machine.stacks_come(is_alive=True, is_traced=True)
    machine.everything_over_was_noticed()
    machine.teardown()


@pytest.mark.parametrize("next_signal", [10, None])
def test_a_limit_that_replaces_another_while_its_worker_is_condemned_is_another(
    next_signal: int | None,
) -> None:
    machine = WatchdogMachine()
    machine.host_slows_down()
    machine.acquires(0, "a", 0.25, None)
    machine.acquires(0, "b", 0.25, 0)
    machine.time_passes(7.0)
    machine.acquires(0, "b", 0.25, next_signal)
    machine.time_passes(7.0)
    machine.teardown()


def test_a_limit_that_a_stall_may_excuse_does_not_have_to_be_reported() -> None:
    """It replaces one that was over, while the stacks for that one are late."""
    machine = WatchdogMachine()
    machine.acquires(1, "b", 0.25, None)
    machine.host_slows_down()
    machine.time_passes(0.3)
    machine.acquires(1, "b", 0.25, None)
    machine.stands_still(1.5)
    machine.stacks_come(is_alive=True, is_traced=False)
    machine.goes(1)
    machine.teardown()
