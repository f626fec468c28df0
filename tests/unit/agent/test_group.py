"""The worker group's table: every transition, allowed or refused."""

from __future__ import annotations

from itertools import product

import pytest

from agent.core.group_state import _TRANSITIONS, Group
from agent.core.model import GroupState
from tests.support.agents import an_assignment

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
    group = Group()
    group.state = source
    if (source, target) in ALLOWED:
        group._enter(target)
        assert group.state is target
    else:
        with pytest.raises(AssertionError, match="can't become"):
            group._enter(target)


def test_the_table_names_every_state() -> None:
    assert set(_TRANSITIONS) == set(S)


def a_group(*, is_running: bool = True) -> Group:
    group = Group()
    group.assign(an_assignment(3), 2)
    if is_running:
        group.started(3)
    return group


def test_a_round_is_not_started_beside_another() -> None:
    with pytest.raises(AssertionError, match="an older one"):
        a_group().assign(an_assignment(4), 2)


def test_a_group_succeeds_with_its_last_worker() -> None:
    group = a_group()
    assert group.exited(3, 0, is_good=True)
    assert (group.state, group.workers_alive) == (S.RUNNING, 1)
    group.conclude()
    assert group.state is S.RUNNING, "not before"
    assert group.exited(3, 1, is_good=True)
    group.conclude()
    assert (group.state, group.workers_alive) == (S.SUCCEEDED, 0)
    assert group.succeeded_round_id == 3
    group.check_invariants()


@pytest.mark.parametrize(("round_id", "local_rank"), [(2, 0), (4, 0), (3, 2)])
def test_exits_of_others_are_not_ours(round_id: int, local_rank: int) -> None:
    group = a_group()
    assert not group.exited(round_id, local_rank, is_good=False)
    assert (group.state, group.workers_alive) == (S.RUNNING, 2)


def test_an_exit_counts_once() -> None:
    group = a_group()
    assert group.exited(3, 0, is_good=False)
    assert not group.exited(3, 0, is_good=False)


def test_an_exit_before_the_start_was_reported_counts() -> None:
    group = a_group(is_running=False)
    group.exited(3, 0, is_good=False)
    assert group.state is S.FAILED
    group.started(3)
    assert group.state is S.FAILED


def test_workers_behind_one_that_did_not_start_are_not_alive() -> None:
    group = a_group(is_running=False)
    assert group.fail(3, 1)
    assert (group.state, group.workers_alive) == (S.FAILED, 1)
    assert not group.fail(3, 1)


def test_a_start_that_fails_after_the_start_is_late() -> None:
    assert not a_group().fail(3, 0)
    assert not a_group(is_running=False).fail(2, 0)


def test_a_round_is_over_when_it_was_left_and_nothing_is_alive() -> None:
    group = a_group()
    assert group.request_stop()
    assert not group.request_stop()
    group.leave()
    assert (group.state, group.is_free) == (S.STOPPING, False)
    group.exited(3, 0, is_good=False)
    group.exited(3, 1, is_good=False)
    assert group.workers_alive == 1, "something may be left of it until the supervisor says no"
    group.stopped(2)
    assert not group.is_free
    group.stopped(3)
    assert (group.state, group.is_free, group.workers_alive) == (S.IDLE, True, 0)
    assert not group.request_stop()


def test_a_failed_round_is_kept_until_it_is_left() -> None:
    group = a_group()
    group.exited(3, 0, is_good=False)
    group.request_stop()
    group.stopped(3)
    assert (group.state, group.is_free) == (S.FAILED, False)
    group.leave()
    assert (group.state, group.is_free) == (S.IDLE, True)


def test_what_dies_with_the_supervisor_failed() -> None:
    group = a_group()
    group.exited(3, 0, is_good=True)
    assert group.lose_all() == [1]
    assert group.state is S.FAILED
    assert group.lose_all() == []


def test_what_was_being_stopped_did_not_fail() -> None:
    group = a_group()
    group.request_stop()
    group.leave()
    assert group.lose_all() == []
    assert group.is_free


def test_a_success_outlives_the_supervisor() -> None:
    group = a_group()
    group.exited(3, 0, is_good=True)
    group.exited(3, 1, is_good=True)
    group.conclude()
    assert group.lose_all() == []
    assert group.state is S.SUCCEEDED
