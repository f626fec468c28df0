"""The supervisor's worker group: events in, full effect lists out."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, get_args

import pytest

from drumbeat.agent.workers.supervisor.messages import (
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
    WorkersUnkilled,
)
from drumbeat.agent.workers.supervisor.worker_group import (
    HISTORY_MAX,
    KILL_WAIT_S,
    NO_ROUND,
    UNKILLED_EVERY_S,
    ChildrenReaped,
    DeadlineReached,
    Event,
    InvalidTransition,
    SendSignal,
    SpawnFinished,
    State,
    WorkerGroup,
)

if TYPE_CHECKING:
    from drumbeat.agent.workers.supervisor.worker_group import Effect

ROUND = 4
PIDS = {0: 100, 1: 101}
ORPHAN = 200
TERM, INT, KILL, USR1 = 15, 2, 9, 10
FAILURE = WorkerStartFailed(round_id=ROUND, local_rank=1, message="cannot start x")


def start_of(round_id: int) -> StartWorkers:
    workers = tuple(WorkerStart(local_rank=rank, env={}) for rank in range(2))
    return StartWorkers(round_id=round_id, argv=("x",), env={}, workers=workers)


START, OLD_START, NEW_START = start_of(ROUND), start_of(ROUND - 1), start_of(ROUND + 1)
STOP = StopWorkers(round_id=ROUND, signum=TERM, timeout_s=30.0)
OLD_STOP = StopWorkers(round_id=ROUND - 1, signum=TERM, timeout_s=30.0)
SPAWNED = SpawnFinished(pids=PIDS)
ALL_GONE = ChildrenReaped(exit_codes={100: 0, 101: 1}, is_any_left=False)
ONE_GONE = ChildrenReaped(exit_codes={101: -TERM}, is_any_left=True)
ORPHAN_GONE = ChildrenReaped(exit_codes={ORPHAN: 0}, is_any_left=True)
WORKERS_GONE = ChildrenReaped(exit_codes=ALL_GONE.exit_codes, is_any_left=True)
NOTHING_LEFT = ChildrenReaped(exit_codes={}, is_any_left=False)


class Machine:
    """A group with a clock that only the test moves."""

    def __init__(self) -> None:
        self.group = WorkerGroup()
        self.now = 1000.0

    def __call__(self, event: Event, *, after: float = 0.0) -> list[Effect]:
        self.now += after
        effects = self.group.handle(event, now=self.now)
        self.group.check_invariants()
        return effects

    @property
    def deadline(self) -> float | None:
        """Seconds from now."""
        deadline = self.group.deadline
        return None if deadline is None else deadline - self.now


DUE = DeadlineReached(pids=(101, ORPHAN))

PATHS: dict[State, tuple[Event, ...]] = {
    State.IDLE: (),
    State.STARTING: (START,),
    State.RUNNING: (START, SPAWNED),
    State.STOPPING: (START, SPAWNED, STOP),
    State.KILLING: (START, SPAWNED, KillWorkers()),
    State.STUCK: (START, SPAWNED, KillWorkers(), DUE),
}
"""How to get into each state."""


def machine_in(state: State) -> Machine:
    """Return a group in a state, at the instant 1000."""
    machine = Machine()
    machine.now -= KILL_WAIT_S * (DUE in PATHS[state])
    for event in PATHS[state]:
        machine(event, after=KILL_WAIT_S if event is DUE else 0.0)
    assert machine.group.state is state
    return machine


def exited(
    local_rank: int, exit_code: int, *, is_stopped: bool, ended_at: float = 1000.0
) -> WorkerExited:
    return WorkerExited(
        round_id=ROUND,
        local_rank=local_rank,
        pid=PIDS[local_rank],
        exit_code=exit_code,
        is_stopped=is_stopped,
        ended_at=ended_at,
    )


def both_exited(*, is_stopped: bool) -> list[Effect]:
    return [exited(0, 0, is_stopped=is_stopped), exited(1, 1, is_stopped=is_stopped)]


STARTED = WorkersStarted(round_id=ROUND, pids=PIDS)
STOPPED = WorkersStopped(round_id=ROUND)
OLD_STOPPED = WorkersStopped(round_id=ROUND - 1)
SIGNAL_ALL = SendSignal(pids=(100, 101), signum=TERM, is_for_group=True)
FORWARD = SignalWorkers(round_id=ROUND, signum=USR1)
OLD_FORWARD = SignalWorkers(round_id=ROUND - 1, signum=USR1)
FORWARDED = SendSignal(pids=(100, 101), signum=USR1, is_for_group=False)
ONE = SignalWorkers(round_id=ROUND, local_rank=1, signum=TERM, is_for_group=True)
OLD_ONE = SignalWorkers(round_id=ROUND - 1, local_rank=1, signum=TERM, is_for_group=True)
NO_ONE = SignalWorkers(round_id=ROUND, local_rank=7, signum=TERM, is_for_group=True)
ONE_SIGNALLED = SendSignal(pids=(101,), signum=TERM, is_for_group=True)

CASES: list[tuple[State, Event, list[Effect], State]] = [
    (State.IDLE, START, [START], State.STARTING),
    (State.IDLE, STOP, [STOPPED], State.IDLE),
    (State.IDLE, KillWorkers(), [WorkersStopped(round_id=NO_ROUND)], State.IDLE),
    (State.IDLE, FORWARD, [], State.IDLE),
    (State.IDLE, ONE, [], State.IDLE),
    (State.IDLE, NOTHING_LEFT, [], State.IDLE),
    (State.STARTING, SPAWNED, [STARTED], State.RUNNING),
    (
        State.STARTING,
        SpawnFinished(pids={0: 100}, failure=FAILURE),
        [FAILURE],
        State.RUNNING,
    ),
    (
        State.STARTING,
        SpawnFinished(pids={}, failure=FAILURE),
        [FAILURE],
        State.IDLE,
    ),
    (State.RUNNING, START, [STARTED], State.RUNNING),
    (State.RUNNING, OLD_START, [OLD_STOPPED], State.RUNNING),
    (State.RUNNING, STOP, [SIGNAL_ALL], State.STOPPING),
    (State.RUNNING, OLD_STOP, [OLD_STOPPED], State.RUNNING),
    (
        State.RUNNING,
        StopWorkers(round_id=ROUND + 1, signum=TERM, timeout_s=1.0),
        [WorkersStopped(round_id=ROUND + 1)],
        State.RUNNING,
    ),
    (
        State.RUNNING,
        StopWorkers(round_id=ROUND, signum=KILL, timeout_s=30.0),
        [KillWorkers()],
        State.KILLING,
    ),
    (State.RUNNING, KillWorkers(), [KillWorkers()], State.KILLING),
    (State.RUNNING, FORWARD, [FORWARDED], State.RUNNING),
    (State.RUNNING, ONE, [ONE_SIGNALLED], State.RUNNING),
    (State.RUNNING, OLD_ONE, [], State.RUNNING),
    (State.RUNNING, NO_ONE, [], State.RUNNING),
    (State.RUNNING, OLD_FORWARD, [], State.RUNNING),
    (State.RUNNING, ONE_GONE, [exited(1, -TERM, is_stopped=False)], State.RUNNING),
    (State.RUNNING, ORPHAN_GONE, [], State.RUNNING),
    (State.RUNNING, WORKERS_GONE, both_exited(is_stopped=False), State.RUNNING),
    (State.RUNNING, ALL_GONE, both_exited(is_stopped=False), State.IDLE),
    (State.STOPPING, START, [], State.STOPPING),
    (State.STOPPING, OLD_START, [OLD_STOPPED], State.STOPPING),
    (State.STOPPING, STOP, [], State.STOPPING),
    (State.STOPPING, OLD_STOP, [OLD_STOPPED], State.STOPPING),
    (
        State.STOPPING,
        StopWorkers(round_id=ROUND, signum=INT, timeout_s=30.0),
        [SendSignal(pids=(100, 101), signum=INT, is_for_group=True)],
        State.STOPPING,
    ),
    (
        State.STOPPING,
        StopWorkers(round_id=ROUND, signum=KILL, timeout_s=30.0),
        [KillWorkers()],
        State.KILLING,
    ),
    (State.STOPPING, KillWorkers(), [KillWorkers()], State.KILLING),
    (State.STOPPING, FORWARD, [FORWARDED], State.STOPPING),
    (State.STOPPING, ONE, [], State.STOPPING),
    (State.STOPPING, OLD_FORWARD, [], State.STOPPING),
    (State.STOPPING, ONE_GONE, [exited(1, -TERM, is_stopped=True)], State.STOPPING),
    (State.STOPPING, ORPHAN_GONE, [], State.STOPPING),
    (
        State.STOPPING,
        WORKERS_GONE,
        [*both_exited(is_stopped=True), KillWorkers()],
        State.KILLING,
    ),
    (State.STOPPING, ALL_GONE, [*both_exited(is_stopped=True), STOPPED], State.IDLE),
    (State.STOPPING, DUE, [], State.STOPPING),
    (State.KILLING, START, [], State.KILLING),
    (State.KILLING, OLD_START, [OLD_STOPPED], State.KILLING),
    (State.KILLING, STOP, [], State.KILLING),
    (State.KILLING, OLD_STOP, [OLD_STOPPED], State.KILLING),
    (State.KILLING, KillWorkers(), [], State.KILLING),
    (State.KILLING, FORWARD, [], State.KILLING),
    (State.KILLING, ONE, [], State.KILLING),
    (
        State.KILLING,
        ONE_GONE,
        [exited(1, -TERM, is_stopped=True), KillWorkers()],
        State.KILLING,
    ),
    (State.KILLING, ORPHAN_GONE, [KillWorkers()], State.KILLING),
    (State.KILLING, ALL_GONE, [*both_exited(is_stopped=True), STOPPED], State.IDLE),
    (State.KILLING, DUE, [], State.KILLING),
    (State.STUCK, START, [KillWorkers()], State.KILLING),
    (State.STUCK, OLD_START, [OLD_STOPPED], State.STUCK),
    (State.STUCK, STOP, [KillWorkers()], State.KILLING),
    (State.STUCK, OLD_STOP, [OLD_STOPPED], State.STUCK),
    (State.STUCK, KillWorkers(), [KillWorkers()], State.KILLING),
    (State.STUCK, FORWARD, [], State.STUCK),
    (State.STUCK, ONE, [], State.STUCK),
    (State.STUCK, ONE_GONE, [exited(1, -TERM, is_stopped=True)], State.STUCK),
    (State.STUCK, ALL_GONE, both_exited(is_stopped=True), State.IDLE),
    (State.STUCK, DUE, [], State.STUCK),
]


@pytest.mark.parametrize(("state", "event", "effects", "after"), CASES)
def test_transition(state: State, event: Event, effects: list[Effect], after: State) -> None:
    machine = machine_in(state)
    assert machine(event) == effects
    assert machine.group.state is after


def test_every_pair_of_the_table_has_a_case() -> None:
    assert {(state, type(event)) for state, event, _, _ in CASES} == set(WorkerGroup.TRANSITIONS)


EXAMPLES: tuple[Event, ...] = (
    START,
    SPAWNED,
    STOP,
    KillWorkers(),
    FORWARD,
    ONE,
    ALL_GONE,
    DUE,
)
MISSING = [
    (state, event)
    for state, event in product(State, EXAMPLES)
    if (state, type(event)) not in WorkerGroup.TRANSITIONS
]


def test_every_event_type_has_an_example() -> None:
    assert {type(event) for event in EXAMPLES} == set(get_args(Event))


@pytest.mark.parametrize(("state", "event"), MISSING)
def test_missing_pair_is_an_invalid_transition(state: State, event: Event) -> None:
    machine = machine_in(state)
    with pytest.raises(InvalidTransition) as caught:
        machine(event)
    error = caught.value
    assert len(error.history) == len(PATHS[state])
    assert state.name in str(error)
    assert type(event).__name__ in str(error)
    assert machine.group.state is state


@pytest.mark.parametrize("state", [State.RUNNING, State.STOPPING, State.KILLING, State.STUCK])
def test_no_round_starts_while_an_older_one_is_alive(state: State) -> None:
    machine = machine_in(state)
    with pytest.raises(InvalidTransition):
        machine(NEW_START)
    assert machine.group.state is state


def test_history_is_bounded_and_names_state_and_event() -> None:
    machine = machine_in(State.RUNNING)
    for _ in range(HISTORY_MAX):
        machine(FORWARD)
    with pytest.raises(InvalidTransition) as caught:
        machine(DUE)
    assert caught.value.history == ("RUNNING SignalWorkers",) * HISTORY_MAX


def test_signal_is_escalated_at_the_deadline_and_not_before() -> None:
    machine = machine_in(State.RUNNING)
    assert machine.deadline is None
    machine(STOP)
    assert machine.deadline == 30.0
    assert machine(DUE, after=29.5) == []
    assert machine(DUE, after=0.5) == [KillWorkers()]
    assert machine.deadline == KILL_WAIT_S


def test_survivors_of_the_kill_are_told_at_its_deadline_and_not_before() -> None:
    machine = machine_in(State.KILLING)
    assert machine(DUE, after=KILL_WAIT_S - 0.5) == []
    assert machine(ORPHAN_GONE) == [KillWorkers()]
    assert machine(DUE, after=0.5) == [WorkersStopped(round_id=ROUND, stuck_pids=(101, ORPHAN))]
    assert machine.deadline == UNKILLED_EVERY_S


def test_it_is_told_every_10_s_which_processes_do_not_die_of_sigkill() -> None:
    machine = machine_in(State.STUCK)
    assert machine(DUE, after=9.5) == []
    (first,) = machine(DUE, after=0.5)
    assert first == WorkersUnkilled(round_id=ROUND, pids=(101, ORPHAN), after_s=15.0)
    machine(KillWorkers(), after=2.0)  # a second kill does not begin the count anew
    machine(DUE, after=KILL_WAIT_S)
    (second,) = machine(DUE, after=UNKILLED_EVERY_S)
    assert second == WorkersUnkilled(round_id=ROUND, pids=(101, ORPHAN), after_s=32.0)
    machine(ALL_GONE)
    assert machine.deadline is None


def test_second_stop_shortens_but_never_prolongs_the_deadline() -> None:
    machine = machine_in(State.STOPPING)
    machine(StopWorkers(round_id=ROUND, signum=TERM, timeout_s=60.0), after=1.0)
    assert machine.deadline == 29.0
    machine(StopWorkers(round_id=ROUND, signum=TERM, timeout_s=5.0), after=1.0)
    assert machine.deadline == 5.0


def test_stop_without_patience_kills_at_once() -> None:
    machine = machine_in(State.RUNNING)
    machine(StopWorkers(round_id=ROUND, signum=TERM, timeout_s=0.0))
    assert machine.deadline == 0.0
    assert machine(DUE) == [KillWorkers()]


def test_kill_during_a_stop_restarts_the_clock_and_a_repeated_kill_does_not() -> None:
    machine = machine_in(State.STOPPING)
    machine(KillWorkers(), after=1.0)
    assert machine.deadline == KILL_WAIT_S
    machine(KillWorkers(), after=1.0)
    assert machine.deadline == KILL_WAIT_S - 1.0


def test_leftovers_live_on_until_a_stop_and_are_then_killed_at_once() -> None:
    machine = machine_in(State.RUNNING)
    machine(WORKERS_GONE)
    assert machine(FORWARD) == []
    assert machine(STOP) == [KillWorkers()]
    assert machine(ChildrenReaped(exit_codes=ORPHAN_GONE.exit_codes, is_any_left=False)) == [
        STOPPED
    ]


def test_only_living_workers_are_signalled() -> None:
    machine = machine_in(State.RUNNING)
    machine(ONE_GONE)
    assert machine(FORWARD) == [SendSignal(pids=(100,), signum=USR1, is_for_group=False)]
    assert machine(STOP) == [SendSignal(pids=(100,), signum=TERM, is_for_group=True)]


def test_pid_of_an_ended_worker_may_come_back_as_an_orphan() -> None:
    machine = machine_in(State.RUNNING)
    machine(ONE_GONE)
    assert machine(ONE_GONE) == []


def test_exit_carries_the_time_of_its_reaping() -> None:
    machine = machine_in(State.RUNNING)
    assert machine(ONE_GONE, after=7.5) == [
        exited(1, -TERM, is_stopped=False, ended_at=1007.5),
    ]


def test_repeated_start_after_a_failure_repeats_the_failure() -> None:
    machine = machine_in(State.STARTING)
    failed = machine(SpawnFinished(pids={0: 100}, failure=FAILURE))
    assert machine(START) == failed


@pytest.mark.parametrize("late", [START, OLD_START])
def test_round_that_is_over_is_not_started_again(late: StartWorkers) -> None:
    machine = machine_in(State.RUNNING)
    machine(ALL_GONE)
    assert machine(late) == [WorkersStopped(round_id=late.round_id)]
    assert machine.group.state is State.IDLE


def test_next_round_starts_afresh_when_all_is_gone() -> None:
    machine = machine_in(State.STOPPING)
    machine(ALL_GONE)
    assert machine(KillWorkers()) == [STOPPED]
    assert machine(NEW_START) == [NEW_START]
    assert machine(SpawnFinished(pids={0: 300})) == [
        WorkersStarted(round_id=ROUND + 1, pids={0: 300})
    ]
    assert machine(StopWorkers(round_id=ROUND + 1, signum=TERM, timeout_s=1.0)) == [
        SendSignal(pids=(300,), signum=TERM, is_for_group=True)
    ]


def test_child_without_a_round_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="without a round"):
        machine_in(State.IDLE)(ORPHAN_GONE)


def test_worker_that_vanishes_without_an_exit_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="without an exit"):
        machine_in(State.RUNNING)(NOTHING_LEFT)
