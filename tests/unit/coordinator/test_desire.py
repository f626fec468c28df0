"""What each agent shall do, phase by phase."""

from msgspec.structs import replace

from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.model import Exit, Verdict, VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.phases.rendezvous import Wait
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import EndingStarted, RunEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import Assignment, Standby, Stop
from tests.unit.coordinator.test_run_state import started, state_of


def desire(state: RunState, who: str = "a.1", wait: Wait | None = None) -> object:
    members = RunMembers(Policy())
    for member in state.members:
        members.attach(member, f"session of {member}", now=10.0)
    return RunContext(state, members, Policy()).desired_state(who, wait, now=10.0)


def test_a_gathering_run_tells_what_it_waits_for_and_how_long() -> None:
    wait = Wait(reason="1 of 2", agents_wanted=1, until=12.5)
    found = desire(state_of(), wait=wait)
    assert found == Standby(reason="1 of 2", agents_present=2, agents_wanted=1, time_left_s=2.5)


def test_a_wait_that_is_over_or_endless_has_no_negative_time_left() -> None:
    over = desire(state_of(), wait=Wait(reason="", agents_wanted=1, until=9.0))
    endless = desire(state_of(), wait=Wait(reason="", agents_wanted=1, until=None))
    assert isinstance(over, Standby)
    assert isinstance(endless, Standby)
    assert (over.time_left_s, endless.time_left_s) == (0.0, None)


def test_without_a_wait_the_reason_is_that_of_the_run() -> None:
    assert desire(state_of()) == Standby(reason="waiting for agents", agents_present=2)


def test_a_participant_is_told_its_seat_and_others_stand_by() -> None:
    state = state_of(started())
    assert desire(state) == Assignment(
        round_id=0,
        restart_count=0,
        group_rank=0,
        group_world_size=2,
        rank_first=0,
        world_size=3,
        role_rank_first=0,
        role_world_size=3,
        master_addr="10.a",
        master_port=1,
        reason="round 0",
        restarts_max=9,
    )
    reason = "round 0 runs on 2 agents; this one stands by"
    assert desire(state, "c.1") == Standby(reason=reason, agents_present=2)


def test_a_failing_run_stops_everyone_and_an_ended_one_tells_the_verdict() -> None:
    state = state_of(started(), EndingStarted(reason="too bad"))
    assert desire(state) == desire(state, "c.1") == Stop(reason="too bad")
    verdict = Verdict(
        cause=VerdictCause.WORKER_FAILED, reason="too bad", restart_count=0, round_id=0
    )
    state.apply(RunEnded(verdict=verdict))
    end = Exit(verdict=verdict, shown_on="a")
    assert desire(state) == end
    assert desire(state, "c.1") == replace(end, shows_report=False)
