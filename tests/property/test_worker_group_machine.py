"""The worker group against a model of a host's processes, in any order of events."""

import random
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumbeat.agent.model.messages import (
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
)
from drumbeat.agent.workers.supervisor.worker_group import (
    KILL_WAIT_S,
    ChildrenReaped,
    DeadlineReached,
    Effect,
    Event,
    SendSignal,
    SpawnFinished,
    State,
    WorkerGroup,
)
from tests.support.orders import orders

KILL = 9
SIGNALS = st.sampled_from([2, 15, KILL])


def start_of(round_id: int, count: int) -> StartWorkers:
    workers = tuple(WorkerStart(local_rank=rank, env={}) for rank in range(count))
    return StartWorkers(round_id=round_id, argv=("x",), env={}, workers=workers)


class WorkerGroupMachine(RuleBasedStateMachine):
    """A host: workers, their orphans, some of which cannot be killed; and a forgetful agent."""

    def __init__(self) -> None:
        super().__init__()
        self.group = WorkerGroup()
        self.now = 0.0
        self.next_pid = 1
        self.round_id = -1
        self.alive: dict[int, int] = {}  # pid to its round
        self.workers: set[int] = set()
        self.stuck: set[int] = set()  # do not die of SIGKILL
        self.dying: set[int] = set()  # would, if they were not stuck
        self.ended: dict[int, int] = {}  # not reaped yet
        self.exits_reported: dict[int, WorkerExited] = {}
        self.answers_due: dict[int, float] = {}  # round to the latest instant of its answer
        self.spawn_count = 0
        self.fails_at: int | None = None

    def deliver(self, event: Event) -> None:
        events = [event]
        while events:
            for effect in self.group.handle(events.pop(0), now=self.now):
                events.extend(self.execute(effect))

    def execute(self, effect: Effect) -> list[Event]:
        match effect:
            case StartWorkers(workers=workers):
                return [self.spawn(tuple(worker.local_rank for worker in workers))]
            case SendSignal(pids=pids):
                unreaped = self.alive.keys() | self.ended
                assert set(pids) <= unreaped, "a pid was signalled that may be another's now"
                assert set(pids) <= self.workers
            case KillWorkers():
                self.dying |= set(self.alive)
                for pid in sorted(self.dying - self.stuck):
                    self.end(pid, -KILL)
            case WorkerExited(pid=pid):
                assert pid in self.workers
                assert pid not in self.exits_reported, "an exit was reported twice"
                self.exits_reported[pid] = effect
            case WorkersStopped(round_id=round_id, stuck_pids=stuck):
                self.answers_due.pop(round_id, None)
                left = {pid for pid, of in self.alive.items() if of == round_id}
                # What forked after the last kill may be listed although it is about to die.
                assert left <= set(stuck), "a stop was answered while processes live"
            case WorkersStarted() | WorkerStartFailed():
                pass
        return []

    def spawn(self, ranks: tuple[int, ...]) -> SpawnFinished:
        assert not self.alive, "a round started beside a living process"
        pids: dict[int, int] = {}
        for rank in ranks:
            if self.spawn_count == self.fails_at:
                failure = WorkerStartFailed(
                    round_id=self.round_id, local_rank=rank, message="absent"
                )
                return SpawnFinished(pids=pids, failure=failure)
            self.spawn_count += 1
            pids[rank] = self.fork(self.round_id)
        self.workers |= set(pids.values())
        return SpawnFinished(pids=pids)

    def fork(self, round_id: int) -> int:
        pid = self.next_pid
        self.next_pid += 1
        self.alive[pid] = round_id
        return pid

    def end(self, pid: int, exit_code: int) -> None:
        del self.alive[pid]
        self.stuck.discard(pid)
        self.dying.discard(pid)
        self.ended[pid] = exit_code

    def reaped(self) -> ChildrenReaped:
        ended, self.ended = self.ended, {}
        return ChildrenReaped(exit_codes=ended, is_any_left=bool(self.alive))

    @rule(count=st.integers(1, 4), fails_at=st.none() | st.integers(0, 3))
    def start_next_round(self, count: int, fails_at: int | None) -> None:
        self.reap()
        if self.alive:
            return
        self.reap()  # what a kill has ended that came with the first
        self.round_id += 1
        self.spawn_count, self.fails_at = 0, fails_at
        before = set(self.alive)
        self.deliver(start_of(self.round_id, count))
        self.workers |= set(self.alive) - before

    @rule(back=st.integers(0, 2))
    def repeat_start(self, back: int) -> None:
        if self.round_id - back >= 0:
            alive = set(self.alive)
            self.deliver(start_of(self.round_id - back, 1))
            assert set(self.alive) <= alive

    @rule(back=st.integers(0, 2), signal=SIGNALS, timeout_s=st.sampled_from([0.0, 1.0, 30.0]))
    def stop(self, back: int, signal: int, timeout_s: float) -> None:
        self.reap()
        round_id = self.round_id - back
        due = self.now + timeout_s + KILL_WAIT_S
        self.answers_due[round_id] = min(due, self.answers_due.get(round_id, due))
        self.deliver(StopWorkers(round_id=round_id, signum=signal, timeout_s=timeout_s))
        assert back == 0 or round_id not in self.answers_due, "a late stop was left unanswered"

    @rule()
    def kill(self) -> None:
        self.reap()
        due = self.now + KILL_WAIT_S
        self.answers_due[self.round_id] = min(due, self.answers_due.get(self.round_id, due))
        self.deliver(KillWorkers())

    @rule(back=st.integers(0, 1))
    def forward_signal(self, back: int) -> None:
        self.deliver(SignalWorkers(round_id=self.round_id - back, signum=10))

    @rule(back=st.integers(0, 1), local_rank=st.integers(0, 4))
    def signal_one(self, back: int, local_rank: int) -> None:
        self.deliver(
            SignalWorkers(
                round_id=self.round_id - back, local_rank=local_rank, signum=15, is_for_group=True
            )
        )

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), is_reaped=st.booleans())
    def process_ends(self, data: st.DataObject, *, is_reaped: bool) -> None:
        pid = data.draw(st.sampled_from(sorted(self.alive)))
        self.end(pid, data.draw(st.integers(-15, 3)))
        if is_reaped:
            self.reap()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), is_stuck=st.booleans())
    def process_forks(self, data: st.DataObject, *, is_stuck: bool) -> None:
        parent = data.draw(st.sampled_from(sorted(self.alive)))
        pid = self.fork(self.alive[parent])
        if is_stuck:
            self.stuck.add(pid)

    @rule()
    def reap(self) -> None:
        # As the shell does it: woken for nothing, it says nothing.
        if self.ended or not self.alive:
            self.deliver(self.reaped())

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.group.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.reap()
            if self.group.deadline == deadline:
                self.deliver(DeadlineReached(pids=tuple(sorted(self.alive))))
        self.now = end
        self.reap()

    @invariant()
    def is_consistent(self) -> None:
        self.group.check_invariants()
        if self.group.state is State.IDLE:
            assert not self.alive
        assert all(self.now <= due for due in self.answers_due.values()), "a stop went unanswered"

    def teardown(self) -> None:
        """Whatever happened: a kill ends it, and every worker's exit was reported once."""
        self.stuck.clear()
        for pid in sorted(self.dying):
            self.end(pid, -KILL)
        self.kill()
        # Orders of death do not matter.
        self.ended = dict(random.Random(0).sample(list(self.ended.items()), len(self.ended)))
        self.reap()
        assert self.group.state is State.IDLE
        assert not self.answers_due
        assert set(self.exits_reported) == self.workers


WorkerGroupMachine.TestCase.settings = orders(100, steps=40)
TestWorkerGroupMachine = cast("type", WorkerGroupMachine.TestCase)
