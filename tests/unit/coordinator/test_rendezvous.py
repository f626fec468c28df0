"""When a round closes."""

from itertools import product
from typing import Any

import pytest

from drumbeat.coordinator.core.model import RunSpec
from drumbeat.coordinator.core.phases.rendezvous import (
    AWAITED_MAX_S,
    GiveUp,
    Rendezvous,
    Wait,
    close_round,
    last_call_deadline,
)
from tests.support.world import a_spec

SPEC = a_spec(2, 4, join_timeout_s=600.0, last_call_s=30.0)


def gathering(present: int, **fields: Any) -> Rendezvous:
    given: dict[str, Any] = {
        "agents_missed": 0,
        "since": 0.0,
        "quorum_since": 100.0 if present >= 2 else None,
        "latest_arrival": 100.0,
        "is_reforming": False,
    }
    return Rendezvous(agents_present=present, **(given | fields))


def test_it_closes_at_the_maximum_at_once() -> None:
    assert close_round(SPEC, gathering(4), now=100.0) == "4 of 4 agents are there"
    assert close_round(SPEC, gathering(9), now=100.0) == "4 of 4 agents are there"


def test_it_waits_for_the_minimum_until_the_join_timeout() -> None:
    assert close_round(SPEC, gathering(1), now=599.9) == Wait(
        reason="1 of 2 agents, waiting for 1", agents_wanted=1, until=600.0
    )
    assert close_round(SPEC, gathering(1), now=600.0) == GiveUp(
        "join timeout: 1 of 2 agents after 600 s"
    )


def test_the_last_call_ends_a_quiet_tenth_after_the_latest_arrival() -> None:
    assert close_round(SPEC, gathering(2), now=102.9) == Wait(
        reason="2 agents are enough, last call for 2 more", agents_wanted=2, until=103.0
    )
    over = "last call is over with 2 of 4 agents"
    assert close_round(SPEC, gathering(2), now=103.0) == over


def test_the_last_call_has_a_cap_however_many_arrive() -> None:
    busy = gathering(3, latest_arrival=129.5)
    assert isinstance(close_round(SPEC, busy, now=129.9), Wait)
    assert isinstance(close_round(SPEC, busy, now=130.0), str)
    assert last_call_deadline(SPEC, first=100.0, latest=129.5) == 130.0
    assert last_call_deadline(SPEC, first=100.0, latest=101.0) == 104.0


def test_a_clock_may_begin_at_zero() -> None:
    early = gathering(3, quorum_since=0.0, latest_arrival=29.5)
    assert isinstance(close_round(SPEC, early, now=30.0), str)


def test_the_join_timeout_does_not_cut_the_last_call_short() -> None:
    late = gathering(2, quorum_since=599.0, latest_arrival=599.0)
    assert isinstance(close_round(SPEC, late, now=601.0), Wait)


def test_a_last_call_of_zero_closes_at_the_minimum() -> None:
    spec = a_spec(2, 4, last_call_s=0.0)
    assert isinstance(close_round(spec, gathering(2), now=100.0), str)


def test_equal_minimum_and_maximum_need_no_last_call() -> None:
    spec = a_spec(3)
    assert isinstance(close_round(spec, gathering(2), now=100.0), Wait)
    assert isinstance(close_round(spec, gathering(3), now=100.0), str)


def test_a_round_that_only_lost_agents_makes_no_last_call() -> None:
    assert (
        close_round(SPEC, gathering(3, is_reforming=True), now=100.0)
        == "3 agents are left, 2 are enough"
    )
    assert isinstance(close_round(SPEC, gathering(1, is_reforming=True), now=100.0), Wait)


def test_who_lost_the_connection_a_moment_ago_is_waited_for() -> None:
    found = close_round(SPEC, gathering(3, agents_missed=1, is_reforming=True), now=100.0)
    assert found == Wait(
        reason="1 of 4 agents lost their connection a moment ago",
        agents_wanted=1,
        until=100.0 + AWAITED_MAX_S,
    )


def test_nobody_is_waited_for_when_there_are_enough_for_the_maximum() -> None:
    assert isinstance(close_round(SPEC, gathering(4, agents_missed=2), now=100.0), str)


def test_agents_that_break_and_return_in_turns_cannot_hold_up_a_round() -> None:
    now = 100.0 + AWAITED_MAX_S
    flapping = gathering(3, agents_missed=1, is_reforming=True)
    assert isinstance(close_round(SPEC, flapping, now=now), str)


@pytest.mark.parametrize("now", [100.0, 103.0, 130.0, 131.0, 600.0, 700.0])
def test_a_wait_never_ends_in_the_past(now: float) -> None:
    """Else the deadline would be due again at once, and the coordinator would spin."""
    for present, missed, is_reforming in product(range(6), range(3), (False, True)):
        facts = gathering(present, agents_missed=missed, is_reforming=is_reforming)
        found = close_round(SPEC, facts, now=now)
        if isinstance(found, Wait):
            assert found.until is None or found.until > now, facts
            assert found.until is not None or missed, f"a wait without an end: {facts}"


def test_health_checks_are_awaited_for_a_last_call_also_by_a_round_that_lost_agents() -> None:
    spec = RunSpec(agents_min=2, agents_max=3, last_call_s=20.0)
    facts = Rendezvous(
        since=0.0,
        agents_present=2,
        agents_checking=1,
        unfit="gpu7 checks its health",
        quorum_since=5.0,
        is_reforming=True,
    )
    reason = "2 agents are enough, but gpu7 checks its health"
    wait = Wait(reason=reason, agents_wanted=1, until=25.0)
    assert close_round(spec, facts, now=6.0) == wait
    assert close_round(spec, facts, now=25.0) == "2 agents are left, 2 are enough"


def test_below_the_minimum_the_unhealthy_host_is_named_until_the_join_timeout() -> None:
    spec = RunSpec(agents_min=2, agents_max=3, join_timeout_s=60.0)
    facts = Rendezvous(since=0.0, agents_present=1, unfit="gpu7 is unhealthy: no fabric")
    wait = close_round(spec, facts, now=1.0)
    assert isinstance(wait, Wait)
    assert wait.reason == "1 of 2 agents, gpu7 is unhealthy: no fabric"
    given_up = close_round(spec, facts, now=60.0)
    assert isinstance(given_up, GiveUp)
    assert given_up.reason.endswith("after 60 s, gpu7 is unhealthy: no fabric")
