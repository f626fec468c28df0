"""When an agent checks its host, and what its beats say of it."""

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import ChecksEnded
from drumbeat.agent.core.health import PAUSE_FIRST_S, PAUSE_MAX_S, HealthChecks, HostState
from drumbeat.agent.core.model import Failure
from drumbeat.agent.model.hang import Hang, WorkerProgress
from drumbeat.model import HangKind, HealthState

FREE = HostState()


def a_failure(round_id: int, **more: object) -> Failure:
    return Failure(rank=0, local_rank=0, role_rank=0, happened_at=1.0, round_id=round_id, **more)  # type: ignore[arg-type]


def checked(problem: str = "", *, now: float = 0.0) -> HealthChecks:
    """The checks of a host after the first ones."""
    checks = HealthChecks(has_checks=True)
    checks.begin(now=now)
    assert checks.review(FREE, now=now) == [fx.RunChecks(number=1)]
    checks.ended(ChecksEnded(number=1, problem=problem), now=now)
    return checks


def state_of(checks: HealthChecks) -> HealthState | None:
    checks.check_invariants()
    return None if checks.health is None else checks.health.state


def test_a_host_without_checks_says_nothing_of_its_health() -> None:
    checks = HealthChecks(has_checks=False)
    checks.begin(now=0.0)
    checks.failed(a_failure(0), now=0.0)
    assert checks.review(FREE, now=0.0) == []
    assert state_of(checks) is None


def test_all_failures_of_a_round_are_one_reason_to_check() -> None:
    checks = checked()
    assert state_of(checks) is HealthState.HEALTHY
    for _ in range(8):
        checks.failed(a_failure(0), now=1.0)
        assert state_of(checks) is HealthState.CHECKING
    assert checks.review(FREE, now=1.0) == [fx.RunChecks(number=2)]
    checks.failed(a_failure(0), now=1.0)
    assert checks.review(FREE, now=1.0) == []
    checks.failed(a_failure(1), now=2.0)
    assert checks.review(FREE, now=2.0) == [fx.RunChecks(number=3)]
    assert checks.ended(ChecksEnded(number=2, problem="late"), now=2.0) == []
    assert state_of(checks) is HealthState.CHECKING


def test_a_worker_that_was_stopped_is_no_reason_unless_it_hung() -> None:
    checks = checked()
    checks.failed(a_failure(0, is_stopped_by_agent=True), now=1.0)
    assert state_of(checks) is HealthState.HEALTHY
    hang = Hang(
        kind=HangKind.PROGRESS,
        limit_s=1.0,
        elapsed_s=1.0,
        standing=WorkerProgress(local_rank=0),
        noticed_at=1.0,
    )
    checks.failed(a_failure(0, is_stopped_by_agent=True, hang=hang), now=1.0)
    assert state_of(checks) is HealthState.CHECKING


def test_checks_wait_until_failed_workers_are_gone() -> None:
    checks = checked()
    checks.failed(a_failure(0), now=1.0)
    assert checks.review(HostState(holds_round=True, are_workers_ending=True), now=1.0) == []
    assert checks.review(HostState(holds_round=True), now=2.0) == [fx.RunChecks(number=2)]


def test_checks_that_fail_are_repeated_after_pauses_that_grow_and_end_with_a_success() -> None:
    checks, now, number = checked("no fabric"), 0.0, 1
    pauses: list[float] = []
    while not pauses or pauses[-1] < PAUSE_MAX_S:
        due = checks.next_retry(FREE)
        assert due is not None
        pauses.append(due - now)
        now, number = due, number + 1
        assert checks.review(FREE, now=now) == [fx.RunChecks(number=number)]
        assert state_of(checks) is HealthState.UNHEALTHY
        assert checks.ended(ChecksEnded(number=number, problem="no fabric"), now=now) == []
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    due = checks.next_retry(FREE)
    assert due == now + PAUSE_MAX_S
    checks.review(FREE, now=due)
    told = checks.ended(ChecksEnded(number=number + 1), now=due)
    assert told == [fx.Tell(what="host healthy again", why="all health checks succeed")]
    checks.failed(a_failure(3), now=due)
    checks.review(FREE, now=due)
    checks.ended(ChecksEnded(number=number + 2, problem="no disk"), now=due)
    assert checks.next_retry(FREE) == due + PAUSE_FIRST_S


def test_checks_are_not_repeated_beside_a_round() -> None:
    checks, held = checked("no fabric"), HostState(holds_round=True)
    assert checks.next_retry(held) is None
    assert checks.review(held, now=100.0) == []
    assert checks.review(FREE, now=100.0) == [fx.RunChecks(number=2)]


def test_an_agent_that_ends_stops_its_checks_and_begins_no_others() -> None:
    checks = checked()
    checks.failed(a_failure(0), now=1.0)
    checks.review(FREE, now=1.0)
    ending = HostState(is_ending=True)
    assert checks.review(ending, now=1.0) == [fx.StopChecks()]
    checks.failed(a_failure(1), now=2.0)
    assert checks.review(ending, now=2.0) == []
    assert checks.next_retry(ending) is None
