"""One run: rounds, restarts, losses, the exit barrier, the verdict."""

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    BeatReceived,
    Deafened,
    FailureReported,
    SessionOpened,
)
from drumbeat.coordinator.core.failures.root_cause import root_causes
from drumbeat.coordinator.core.model import Beat, Release
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    FailureRecorded,
    GroupSucceeded,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import SessionReplaced, StaleSession
from drumbeat.coordinator.observe.goodput.stretches import Marks, ProgressNoted
from drumbeat.model import Assignment, GroupState, Standby, Stop
from tests.support.world import RUN, START, a_record, a_running_story, a_story, an_agent

MET = "2 of 2 agents are there"


def test_the_first_agent_creates_the_run_and_the_last_one_starts_the_round() -> None:
    story = a_story(2)
    a, b = an_agent("a"), an_agent("b")
    pace = story.policy.base_pace
    wait = "1 of 2 agents, waiting for 1"
    waiting = Standby(reason=wait, agents_present=1, agents_wanted=1, time_left_s=600.0)
    assert story.join("a") == [
        fx.Persist(run_id=RUN, record=RunCreated(run_id=RUN, spec=story.spec, created_at=START)),
        fx.Persist(run_id=RUN, record=AgentAdmitted(agent=a, at_s=START)),
        fx.Decided(run_id=RUN, decision="agent admitted", reason="a joined"),
        fx.Welcome(session_id="s1", pace=pace, name="a"),
        fx.Direct(session_id="s1", state=waiting),
    ]
    effects = story.join("b")
    current = story.state().round
    assert current is not None
    started = RoundStarted(
        round_id=0,
        participants=("a.1", "b.1"),
        master_addr="10.a",
        master_port=20_000,
        reason=MET,
        closing=MET,
        at_s=START,
    )

    def run(group_rank: int) -> Assignment:
        return Assignment(
            round_id=0,
            restart_count=0,
            group_rank=group_rank,
            group_world_size=2,
            rank_first=group_rank,
            world_size=2,
            role_rank_first=group_rank,
            role_world_size=2,
            master_addr="10.a",
            master_port=20_000,
            reason=MET,
        )

    assert effects == [
        fx.Persist(run_id=RUN, record=AgentAdmitted(agent=b, at_s=START)),
        fx.Decided(run_id=RUN, decision="agent admitted", reason="b joined"),
        fx.Welcome(session_id="s2", pace=pace, name="b"),
        fx.Persist(run_id=RUN, record=started),
        fx.Decided(run_id=RUN, decision="round started", reason=f"2 agents; {MET}", round_id=0),
        fx.Persist(run_id=RUN, record=ProgressNoted(marks=Marks(), at_s=START)),
        fx.Direct(session_id="s1", state=run(0), master_port_spent=20_000),
        fx.Direct(session_id="s2", state=run(1)),
    ]


def test_a_failed_worker_restarts_everyone_at_once() -> None:
    story = a_running_story(3, restarts_max=2)
    story.fail("b")
    (ended,) = story.records(RoundEnded)
    assert (ended.cause, story.state().restart_count) == (RoundEnd.WORKER_FAILED, 1)
    told = {effect.session_id: effect.state.round_id for effect in story.of(fx.Direct)}
    assert told == {"s1": 1, "s2": 1, "s3": 1}
    assert story.ranks() == ["a", "b", "c"]


def test_failures_of_one_round_cost_one_restart() -> None:
    story = a_running_story(3, restarts_max=2)
    for name in "abc":
        story.fail(name)
    assert story.state().restart_count == 1
    assert len(story.records(RoundStarted)) == 2


def test_a_repeated_beat_changes_nothing() -> None:
    story = a_running_story(2, restarts_max=2)
    assert story.beat("a") == []
    story.succeed("a")
    assert story.succeed("a") == []
    assert len(story.records(GroupSucceeded)) == 1


def test_a_spent_budget_stops_everyone_and_waits_for_records() -> None:
    story = a_running_story(2)
    story.beat("a", GroupState.FAILED, workers_alive=0, sequence=1)
    reason = "round 0 failed: a worker on a; no restarts are allowed"
    assert [e.state for e in story.of(fx.Direct)] == [Stop(reason=reason)] * 2
    story.beat("b", GroupState.STOPPING, workers_alive=0)
    assert story.state().phase is Phase.ENDING
    story.record("a", sequence=1, exit_code=3)
    verdict = story.verdict("b")
    assert verdict.reason == f"{reason}; root cause: rank 0 on a (exit code 3)"
    assert [record.exit_code for record in verdict.report.root_causes] == [3]


def test_a_failing_run_waits_no_longer_than_stopping_may_take() -> None:
    story = a_running_story(2, shutdown_timeout_s=30.0)
    story.beat("a", GroupState.FAILED, sequence=1)
    story.advance(39.9)
    assert story.state().phase is Phase.ENDING
    story.advance(0.2)
    assert story.state().verdict is not None


def test_a_dead_machine_whose_victims_fail_too_costs_nothing() -> None:
    story = a_running_story(3, agents_min=2, restarts_max=0)
    story.break_session("a")
    story.fail("b")
    assert story.state().phase is Phase.RUNNING  # whether a died is known soon
    story.advance(0.5)
    assert story.state().restart_count == 0
    assert [record.cause for record in story.records(RoundEnded)] == [RoundEnd.AGENT_LOST]
    assert story.ranks() == ["c", "b"]


def test_agents_that_break_in_turns_do_not_postpone_a_restart_for_ever() -> None:
    story = a_running_story(3, restarts_max=1)
    story.break_session("b")
    story.fail("a")
    for _ in range(50):
        story.break_session("c")
        story.back("b")
        story.advance(0.2)
        story.break_session("b")
        story.back("c")
        story.advance(0.2)
    assert story.records(RoundEnded), "20 s after the failure nothing has happened"


def test_a_member_back_within_its_grace_was_never_lost() -> None:
    story = a_running_story(2)
    story.break_session("a")
    story.advance(0.4)
    story.back("a")
    story.advance(10.0)
    assert len(story.records(RoundStarted)) == 1
    assert isinstance(story.desired("a").state, Assignment)


def test_a_silent_host_is_given_up_when_its_lease_is_over() -> None:
    story = a_running_story(2)
    story.silence("a")
    story.advance(4.9)
    assert not story.records(AgentRemoved)
    story.advance(0.2)
    (removed,) = story.records(AgentRemoved)
    assert (removed.incarnation, removed.reason) == ("a.1", "nothing was heard of it for 5 s")
    assert story.standby("b").agents_wanted == 1


def test_a_stalled_coordinator_gives_nobody_up() -> None:
    """It could not read beats, nor accept who was just reconnecting."""
    story = a_running_story(3)
    story.break_session("c")
    story.stall(60.0)
    assert not story.records(AgentRemoved)
    story.back("c")
    story.advance(20.0)
    assert not story.records(AgentRemoved)


def test_messages_of_a_stale_session_are_refused() -> None:
    story = a_running_story(1)
    agent = story.agents["a"]
    story.back("a")
    assert [type(effect.error) for effect in story.of(fx.Reject)] == [SessionReplaced]
    agent.session_id = "s1"
    for effects in (story.fail("a"), story.leave("a")):
        assert [type(e.error) for e in effects if isinstance(e, fx.Reject)] == [StaleSession]
        assert len(effects) == 1
    assert story.state().phase is Phase.RUNNING


def test_a_late_joiner_scales_the_round_up_after_a_quiet_moment() -> None:
    story = a_running_story(2, 4, agents_min=2)
    story.join("c")
    assert story.standby("c").reason == "round 0 runs on 2 agents; this one stands by"
    story.advance(2.9)
    assert len(story.records(RoundStarted)) == 1
    story.advance(0.2)
    assert story.ranks() == ["a", "b", "c"]
    assert story.state().restart_count == 0


def test_nobody_scales_up_a_round_in_which_somebody_has_succeeded() -> None:
    story = a_running_story(2, 4, agents_min=2)
    story.succeed("a")
    story.join("c")
    story.advance(60.0)
    assert len(story.records(RoundStarted)) == 1


def test_who_has_succeeded_may_go_and_the_others_end_the_run() -> None:
    story = a_running_story(3)
    story.succeed("a")
    story.leave("a")
    story.succeed("b")
    story.break_session("b")
    story.advance(10.0)
    story.succeed("c")
    assert story.verdict("c").is_success


def test_a_participant_lost_after_others_succeeded_makes_all_run_again() -> None:
    story = a_running_story(3, agents_min=2)
    story.succeed("a")
    story.leave("b")
    assert story.assignment("a").round_id == 1
    story.obey_all()
    story.succeed("a")
    assert story.state().verdict is None
    story.succeed("c")
    assert story.verdict("a").is_success


def test_the_exit_barrier_waits_as_long_as_leases_hold_unless_told_otherwise() -> None:
    patient, limited = a_running_story(2), a_running_story(2, exit_barrier_timeout_s=60.0)
    for story in (patient, limited):
        story.succeed("a")
        story.advance(600.0)
        assert story.state().phase is Phase.RUNNING
        assert isinstance(story.desired("b").state, Assignment)
    assert isinstance(patient.desired("a").state, Assignment)
    assert limited.desired("a").state == Release(
        reason="exit barrier timeout: 1 agent not done after 60 s: b (group rank 1)"
    )


def test_each_agent_waits_as_long_from_its_own_success_on() -> None:
    story = a_running_story(3, exit_barrier_timeout_s=60.0)
    story.succeed("b")
    story.advance(30.0)
    story.succeed("a")
    story.advance(30.0)
    assert isinstance(story.desired("b").state, Release)
    assert isinstance(story.desired("a").state, Assignment)
    story.leave("b")
    story.advance(30.0)
    assert isinstance(story.desired("a").state, Release)
    story.leave("a")
    story.succeed("c")
    assert story.verdict("c").is_success


def test_an_agent_whose_release_was_lost_hears_of_it_again() -> None:
    story = a_running_story(2, exit_barrier_timeout_s=60.0)
    story.succeed("a")
    story.advance(59.9)
    story.break_session("a")
    story.advance(0.2)
    story.back("a")
    assert isinstance(story.desired("a").state, Release)
    story.restart()
    for name in "ab":
        story.back(name)
    story.advance(60.0)
    assert isinstance(story.desired("a").state, Release)


def test_a_failure_after_a_release_is_the_others_matter() -> None:
    """The one that left is not run again; without enough agents the run waits for another."""
    story = a_running_story(3, agents_min=2, restarts_max=1, exit_barrier_timeout_s=60.0)
    story.succeed("a")
    story.advance(60.0)
    story.leave("a")
    story.record("b")
    story.fail("b")
    story.advance(story.spec.last_call_s + 1)
    assert story.assignment("b").round_id == 1
    assert sorted(story.ranks()) == ["b", "c"]


def test_a_lost_agent_that_returns_is_a_fresh_member_with_its_old_rank() -> None:
    story = a_running_story(2)
    story.silence("a")
    story.advance(6.0)
    story.back("a")
    assert story.ranks() == ["a", "b"]
    assert story.assignment("a").round_id == 1
    assert len(story.records(AgentAdmitted)) == 3


def test_records_count_once_and_repeats_are_acknowledged() -> None:
    story = a_running_story(1, restarts_max=1)
    story.record("a")
    story.record("a", sequence=1)
    assert [effect.result for effect in story.of(fx.Answer)] == [False]
    assert len(story.records(FailureRecorded)) == 1
    story.restart()
    story.record("a", sequence=1)
    assert len(story.records(FailureRecorded)) == 1


def test_a_record_is_placed_on_the_coordinators_clock() -> None:
    story = a_running_story(1)
    story.record("a", age_s=2.5)
    (recorded,) = story.records(FailureRecorded)
    assert (recorded.record.happened_at, recorded.record.age_s) == (START - 2.5, 0.0)


def test_records_of_rounds_that_never_were_are_not_kept() -> None:
    story = a_story(2)
    story.join("a")
    story.record("a")
    story.join("b")
    story.record("b", round_id=10**9)
    assert [effect.result for effect in story.of(fx.Answer)] == [False]
    assert not story.records(FailureRecorded)


def test_records_of_too_many_incarnations_are_not_kept() -> None:
    policy = Policy(incarnations_heard_max=2)
    story = a_running_story(1, restarts_max=1, policy=policy)
    story.fail("a")
    for name in "xyz":
        story.record("a", incarnation=name, sequence=1)
    story.record("a", incarnation="x", sequence=2)
    assert [r.record.incarnation for r in story.records(FailureRecorded)] == ["x", "y", "x"]


def test_waiting_agents_are_told_how_it_goes() -> None:
    story = a_story(3)
    story.join("a")
    story.join("b")
    story.advance(2.0)
    assert story.standby("a").agents_present == 2
    story.leave("b")
    story.advance(2.0)
    assert story.standby("a").agents_present == 1


@pytest.mark.parametrize("last", ["gathering", "running", "ending"])
def test_a_restored_run_without_members_does_not_wait_for_ever(last: str) -> None:
    story = a_story(1, join_timeout_s=60.0) if last == "gathering" else a_running_story(1)
    if last == "gathering":
        story.join("a", port=0)
    elif last == "ending":
        story.beat("a", GroupState.FAILED, sequence=1)
    # The coordinator died after it journaled the loss and before it journaled more.
    story.journal.append((RUN, AgentRemoved(incarnation="a.1", reason="lost")))
    story.restart()
    assert story.registry.next_deadline() is not None
    story.advance(700.0)
    assert story.state().verdict is not None


def test_a_restarted_coordinator_keeps_the_round() -> None:
    story = a_running_story(3)
    story.advance(100.0)
    story.restart()
    for name in "abc":
        story.advance(4.0)
        story.back(name)
        assert story.assignment(name).round_id == 0
    story.advance(60.0)
    assert len(story.records(RoundStarted)) == 1


def test_a_restarted_coordinator_gives_up_who_does_not_return() -> None:
    story = a_running_story(2, agents_min=1)
    story.restart()
    story.back("a")
    story.advance(story.policy.restart_grace_s + 0.1)
    assert story.ranks() == ["a"]


def test_a_failure_waits_for_all_who_still_may_come_back_to_a_restarted_coordinator() -> None:
    """Others come back late, so they have longer, and one of them has died before."""
    story = a_running_story(3, 3, agents_min=1, restarts_max=3)
    story.restart()
    story.back("b")
    story.fail("b")
    story.advance(11.0)
    story.back("a")
    story.advance(10.0)
    story.handle(Deafened(seconds=1.0))  # which counts in no silence
    story.advance(story.policy.restart_grace_s - 10.0)
    assert story.records(RoundEnded) == []
    assert 0.0 < (story.run().waits_until or 0.0) - story.now < 3.0
    story.advance(3.0)
    (ended,) = story.records(RoundEnded)
    assert (ended.cause, ended.is_charged) == (RoundEnd.AGENT_LOST, False)


def test_a_failure_does_not_wait_for_ever_for_those_who_come_and_go() -> None:
    story = a_running_story(3, 3, agents_min=1, restarts_max=3)
    story.restart()
    story.back("b")
    story.fail("b")
    for _ in range(200):
        story.advance(0.4)
        story.back("a")
        story.back("c")
        story.break_session("a")
        story.break_session("c")
    (ended,) = story.records(RoundEnded)
    assert ended.at_s - START <= story.run().members.return_max_s + 1.0


def test_a_verdict_waits_for_agents_that_were_away() -> None:
    story = a_running_story(2)
    story.succeed("a")
    story.break_session("a")
    story.succeed("b")
    story.advance(10.0)
    story.restart()
    story.back("a")
    assert story.verdict("a").is_success
    assert len(story.records(RunEnded)) == 1


def test_rounds_that_an_agent_has_held_are_not_numbered_again() -> None:
    """Goal: a coordinator without memory fences old rounds. Method: an agent that holds one."""
    story = a_story(1)
    opened = SessionOpened(
        run_id=RUN,
        spec=story.spec,
        session_id="s1",
        agent=an_agent("a"),
        beat=Beat(state=GroupState.RUNNING, round_id=5, master_port=1),
    )
    story.registry.handle(opened, now=story.now)
    assert story.state().round_id == 6


def test_an_impossible_start_ends_the_run_whatever_budget_is_left() -> None:
    story = a_running_story(3, restarts_max=5)
    story.beat("b", GroupState.FAILED, workers_alive=0, sequence=1, is_start_impossible=True)
    stop = Stop(reason="round 0 could not start: a worker on b")
    assert [e.state for e in story.of(fx.Direct)] == [stop] * 3
    for name in "ac":
        story.beat(name, GroupState.STOPPING, workers_alive=0)
    story.record("b", sequence=1, exit_code=127, rank=1, message="cannot start ./train: gone")
    verdict = story.verdict("c")
    assert verdict.reason == "round 0 could not start: rank 1 on b: cannot start ./train: gone"
    assert (verdict.is_success, verdict.restart_count) == (False, 0)


def test_an_impossible_start_whose_record_is_there_is_told_at_once() -> None:
    story = a_running_story(2, restarts_max=5)
    story.record("b", sequence=1, exit_code=127, rank=1, message="cannot start ./train: gone")
    story.beat("b", GroupState.FAILED, workers_alive=0, sequence=1, is_start_impossible=True)
    reason = "round 0 could not start: rank 1 on b: cannot start ./train: gone"
    assert [e.state for e in story.of(fx.Direct)] == [Stop(reason=reason)] * 2


def test_an_impossible_start_is_not_hidden_by_an_agent_that_is_missed() -> None:
    story = a_running_story(3, agents_min=2, restarts_max=5)
    story.break_session("a")
    story.beat("b", GroupState.FAILED, workers_alive=0, is_start_impossible=True)
    assert story.state().phase is Phase.ENDING


def test_a_start_that_failed_after_others_worked_costs_a_restart() -> None:
    story = a_running_story(2, restarts_max=1)
    story.beat("b", GroupState.FAILED, workers_alive=0)
    assert [record.cause for record in story.records(RoundEnded)] == [RoundEnd.WORKER_FAILED]


def test_an_agent_that_leaves_over_stuck_processes_is_remembered_with_their_pids() -> None:
    story = a_running_story(2, agents_min=1, restarts_max=1)
    why = "processes of round 0 outlived SIGKILL: pid 71, 72"
    story.leave("b", why)
    assert any(why in entry.reason for entry in story.state().history)


def test_two_that_failed_within_a_millisecond_are_both_shown() -> None:
    story = a_running_story(3)
    story.record("b", rank=1, age_s=2.0005)
    story.record("c", rank=2, age_s=2.0)
    story.record("a", rank=0, age_s=1.99)
    for name in "abc":
        story.beat(name, GroupState.FAILED, workers_alive=0, sequence=1)
    report = story.verdict("a").report
    assert [record.worker.rank for record in report.root_causes] == [1, 2]
    assert [record.worker.rank for record in report.victims] == [0]
    assert report.victims_count == 1
    assert "rank 1 on b (exit code 1) or rank 2 on c" in story.verdict("a").reason


def test_a_record_that_was_long_under_way_is_still_the_cause() -> None:
    """Goal: the network does not choose the cause. Method: it keeps the first record for 3 s."""
    story = a_running_story(2)
    for name in ("a", "b"):
        agent = story.agents[name]
        beat = BeatReceived(
            run_id=RUN,
            session_id=str(agent.session_id),
            incarnation=agent.identity.incarnation,
            beat=agent.beat(),
            uptime_s=50.0,
        )
        story.registry.handle(beat, now=story.now)
    began = story.now - 50.0
    for name, happened_at, told_at in (("b", 1.5, 1.6), ("a", 1.0, 4.0)):
        sent_at = happened_at + 0.1
        record = replace(
            a_record(incarnation=story.agents[name].identity.incarnation, age_s=0.1), host=name
        )
        story.registry.handle(
            FailureReported(
                run_id=RUN, request_id=1, record=record, uptime_s=sent_at + story.now - began
            ),
            now=story.now + told_at,
        )
    (cause,) = root_causes(story.state().failures, 0)
    assert cause.host == "a"
    assert cause.happened_at == pytest.approx(story.now + 1.0)
