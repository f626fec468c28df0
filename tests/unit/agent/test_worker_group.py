"""The supervisor's worker group: events in, full effect lists out."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import asdict, replace

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
    WorkersUnkilled,
)
from drumbeat.agent.workers.supervisor.worker_group import (
    HISTORY_MAX,
    KILL_WAIT_S,
    UNKILLED_EVERY_S,
    ChildrenReaped,
    DeadlineReached,
    Effect,
    Event,
    InvalidTransition,
    SendSignal,
    SpawnFinished,
    State,
    WorkerGroup,
)

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


STOPPED = WorkersStopped(round_id=ROUND)
FORWARD = SignalWorkers(round_id=ROUND, signum=USR1)
ONE = SignalWorkers(round_id=ROUND, local_rank=1, signum=TERM, is_for_group=True)

EVENTS: dict[str, Event] = {
    "start": START,
    "start of an older round": OLD_START,
    "start of a newer round": NEW_START,
    "spawned": SPAWNED,
    "spawned in part": SpawnFinished(pids={0: 100}, failure=FAILURE),
    "not spawned": SpawnFinished(pids={}, failure=FAILURE),
    "stop": STOP,
    "stop of an older round": StopWorkers(round_id=ROUND - 1, signum=TERM, timeout_s=30.0),
    "stop of a newer round": StopWorkers(round_id=ROUND + 1, signum=TERM, timeout_s=1.0),
    "stop by SIGINT": StopWorkers(round_id=ROUND, signum=INT, timeout_s=30.0),
    "stop by SIGKILL": StopWorkers(round_id=ROUND, signum=KILL, timeout_s=30.0),
    "kill": KillWorkers(),
    "signal all": FORWARD,
    "signal all of an older round": SignalWorkers(round_id=ROUND - 1, signum=USR1),
    "signal one": ONE,
    "signal one of an older round": replace(ONE, round_id=ROUND - 1),
    "signal one that is not there": replace(ONE, local_rank=7),
    "one is gone": ONE_GONE,
    "an orphan is gone": ORPHAN_GONE,
    "the workers are gone": WORKERS_GONE,
    "all are gone": ALL_GONE,
    "nothing is left": NOTHING_LEFT,
    "deadline": DUE,
}
TABLE = Path(__file__).parent / "worker_group.txt"


def shown(effect: Effect) -> str:
    """Write an effect without the fields that say the usual."""
    if isinstance(effect, StartWorkers):
        return f"spawn round {effect.round_id}"
    fields = {name: value for name, value in asdict(effect).items() if value not in ((), None, "")}
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items() if name != "ended_at")
    return f"{type(effect).__name__}({text})"


def rows() -> Iterator[str]:
    """Yield what each event does in each state, and to which state it leads."""
    for state in State:
        impossible = []
        for name, event in EVENTS.items():
            machine = machine_in(state)
            try:
                effects = machine(event)
            except (InvalidTransition, AssertionError):
                impossible.append(name)
                assert machine.group.state is state
            else:
                then = "; ".join(map(shown, effects)) or "nothing"
                yield f"{state.name}, {name} -> {machine.group.state.name}: {then}\n"
        yield f"{state.name} refuses: {', '.join(impossible)}\n\n"


def test_every_event_does_in_every_state_what_the_table_says(
    request: pytest.FixtureRequest,
) -> None:
    table = "".join(rows())
    if request.config.getoption("--rewrite"):
        TABLE.write_text(table)
    assert table == TABLE.read_text()


def test_every_event_type_has_an_example() -> None:
    assert {type(event) for event in EVENTS.values()} == set(get_args(Event))


def test_a_pair_that_cannot_be_is_told_with_what_came_before() -> None:
    for state, event in product(State, EVENTS.values()):
        if (state, type(event)) not in WorkerGroup.TRANSITIONS:
            with pytest.raises(InvalidTransition, match=state.name) as caught:
                machine_in(state)(event)
            assert len(caught.value.history) == len(PATHS[state])
            assert type(event).__name__ in str(caught.value)


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
