"""The worker group: every transition, allowed or refused, and what leads to it."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import SupervisorDied, WorkersStarted, WorkerStartFailed
from drumbeat.agent.core.round_workers import _TRANSITIONS, RoundWorkers
from drumbeat.model import GroupState, PreflightFinding
from tests.support.agents import CONFIG, NOW, an_assignment
from tests.support.inprocess.values import exits

S = GroupState
ALLOWED = {
    (S.IDLE, S.STARTING),
    (S.STARTING, S.RUNNING),
    (S.STARTING, S.FAILED),
    (S.STARTING, S.STOPPING),
    (S.RUNNING, S.SUCCEEDED),
    (S.RUNNING, S.FAILED),
    (S.RUNNING, S.STOPPING),
    (S.RUNNING, S.IDLE),
    (S.SUCCEEDED, S.STOPPING),
    (S.SUCCEEDED, S.IDLE),
    (S.FAILED, S.STOPPING),
    (S.FAILED, S.IDLE),
    (S.STOPPING, S.IDLE),
}


@pytest.mark.parametrize(("source", "target"), list(product(S, S)))
def test_every_pair_of_states_is_allowed_or_refused(source: S, target: S) -> None:
    group = RoundWorkers(CONFIG)
    group.state = source
    if (source, target) in ALLOWED:
        group._enter(target)
        assert group.state is target
    else:
        with pytest.raises(AssertionError, match="can't become"):
            group._enter(target)


def test_the_table_names_every_state() -> None:
    assert set(_TRANSITIONS) == set(S)


def a_group(*, is_running: bool = True) -> RoundWorkers:
    group = RoundWorkers(CONFIG)
    group.begin(an_assignment(3))
    if is_running:
        group.started(WorkersStarted(round_id=3))
    return group


def ended(group: RoundWorkers, *local_ranks: int, code: int = 0, **more: Any) -> list[fx.Effect]:
    effects = [group.exited(exits(rank, code, **{"round_id": 3} | more)) for rank in local_ranks]
    group.check_invariants()
    return [effect for each in effects for effect in each]


def unstarted(group: RoundWorkers, local_rank: int, round_id: int = 3) -> list[fx.Effect]:
    event = WorkerStartFailed(round_id=round_id, local_rank=local_rank, message="no")
    return group.start_failed(event, now=NOW)


def died(group: RoundWorkers) -> list[int]:
    """Return the workers that are said to have failed with the supervisor."""
    effects = group.lost(SupervisorDied(ending="was killed"), now=NOW)
    return [each.failure.local_rank for each in effects if isinstance(each, fx.WriteFailure)]


def test_a_round_is_not_started_beside_another() -> None:
    with pytest.raises(AssertionError, match="an older one"):
        a_group().begin(an_assignment(4))


def test_a_group_succeeds_with_its_last_worker() -> None:
    group = a_group()
    ended(group, 0)
    group.conclude()
    assert (group.state, group.workers_alive) == (S.RUNNING, 1), "not before"
    ended(group, 1)
    group.conclude()
    assert (group.state, group.workers_alive) == (S.SUCCEEDED, 0)
    assert group.succeeded_round_id == 3


@pytest.mark.parametrize(("round_id", "local_rank"), [(2, 0), (4, 0), (3, 2)])
def test_exits_of_others_are_not_ours(round_id: int, local_rank: int) -> None:
    group = a_group()
    assert ended(group, local_rank, code=1, round_id=round_id) == []
    assert (group.state, group.workers_alive) == (S.RUNNING, 2)


def test_an_exit_counts_once() -> None:
    group = a_group()
    assert ended(group, 0, code=1)
    assert ended(group, 0, code=1) == []


def test_an_exit_before_the_start_was_reported_counts() -> None:
    group = a_group(is_running=False)
    ended(group, 0, code=1)
    assert group.state is S.FAILED
    group.started(WorkersStarted(round_id=3))
    assert group.state is S.FAILED


def test_workers_behind_one_that_did_not_start_are_not_alive() -> None:
    group = a_group(is_running=False)
    assert unstarted(group, 1)
    assert (group.state, group.workers_alive) == (S.FAILED, 1)
    assert unstarted(group, 1) == []


def test_a_start_that_fails_after_the_start_is_late() -> None:
    assert unstarted(a_group(), 0) == []
    assert unstarted(a_group(is_running=False), 0, round_id=2) == []


def test_a_round_is_over_when_it_was_left_and_nothing_is_alive() -> None:
    group = a_group()
    assert group.stop()
    assert not group.stop()
    group.leave()
    assert group.state is S.STOPPING
    ended(group, 0, 1, code=-15, is_stopped=True)
    assert group.workers_alive == 1, "something may be left of it until the supervisor says no"
    group.stopped(2)
    assert group.assignment is not None
    group.stopped(3)
    assert (group.state, group.workers_alive) == (S.IDLE, 0)
    assert not group.stop()


def test_a_failed_round_is_kept_until_it_is_left() -> None:
    group = a_group()
    ended(group, 0, code=1)
    group.stopped(3)
    assert (group.state, group.assignment) == (S.FAILED, an_assignment(3))
    group.leave()
    assert (group.state, group.assignment) == (S.IDLE, None)


def test_what_dies_with_the_supervisor_failed() -> None:
    group = a_group()
    ended(group, 0)
    assert died(group) == [1]
    assert group.state is S.FAILED
    assert died(group) == []


def test_what_was_being_stopped_did_not_fail() -> None:
    group = a_group()
    group.stop()
    group.leave()
    assert died(group) == []
    assert group.assignment is None


def test_a_success_outlives_the_supervisor() -> None:
    group = a_group()
    ended(group, 0, 1)
    group.conclude()
    assert died(group) == []
    assert group.state is S.SUCCEEDED


def test_a_preflight_that_ran_says_nothing_of_whether_the_program_can_start() -> None:
    group = RoundWorkers(CONFIG)
    group.begin(replace(an_assignment(3), is_preflight=True))
    group.started(WorkersStarted(round_id=3))
    named = (PreflightFinding(ranks=(1,), reason="slow"),)
    ended(group, 0, preflight=named)
    ended(group, 1)
    group.conclude()
    beat = group.beat(0)
    assert (beat.state, beat.preflight) == (S.SUCCEEDED, named)
    group.leave()
    group.stopped(3)
    group.begin(an_assignment(4))
    assert group.beat(0).preflight == ()
    unstarted(group, 0, 4)
    assert group.beat(0).is_start_impossible
