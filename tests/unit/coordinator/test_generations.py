"""A run id that is used again: who starts a new run, who hears how the old one ended."""

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached
from drumbeat.coordinator.core.model import Exit
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import MembersForgotten, RunEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import CoordinatorError, RunClosed, RunMissesAgents, SpecMismatch
from tests.support.world import RUN, Story, a_spec, a_story


def a_run_that_ended(how: str, *, began_at: float | None = None) -> Story:
    """Return a story whose run ended like this at once."""
    story = a_story(2 if how == "join timeout" else 1, join_timeout_s=60.0)
    story.join("a", began_at=story.now if began_at is None else began_at)
    story.obey("a")
    if how == "success":
        story.succeed("a")
    elif how == "failure":
        story.fail("a")
    else:
        story.is_lively = True
        story.advance(61.0)
        story.is_lively = False
    assert story.state().phase is Phase.ENDED
    story.obey("a")
    story.break_session("a")
    return story


def refusal(effects: list[fx.Effect]) -> CoordinatorError:
    (reject,) = [effect for effect in effects if isinstance(effect, fx.Reject)]
    return reject.error


WAYS = pytest.mark.parametrize("how", ["success", "failure", "join timeout"])
RESTARTS = pytest.mark.parametrize("is_restarted", [False, True])


@WAYS
@RESTARTS
def test_the_same_command_again_starts_a_new_run(how: str, is_restarted: bool) -> None:
    story = a_run_that_ended(how)
    story.advance(0.001)
    if is_restarted:
        story.restart()
    story.join("a", began_at=story.now)
    first, second = story.state(), story.state(f"{RUN}#2")
    assert (first.generation, first.phase) == (1, Phase.ENDED)
    assert (second.generation, second.phase is Phase.ENDED) == (2, False)
    assert [agent.host for agent in second.members.values()] == ["a"]
    assert not story.of(fx.Reject)
    story.registry.check_invariants()


def test_an_id_is_used_many_times_and_each_run_is_kept_apart() -> None:
    story = a_story(1)
    for number in range(1, 6):
        story.now += 1.0
        story.join("a", began_at=story.now)
        story.obey("a")
        assert story.assignment("a").round_id == 0
        story.succeed("a")
        assert story.state(RUN if number == 1 else f"{RUN}#{number}").phase is Phase.ENDED
    assert [run.state.generation for run in story.registry.runs.values()] == [1, 2, 3, 4, 5]
    story.restart()
    story.registry.check_invariants()
    assert [run.state.generation for run in story.registry.runs.values()] == [1, 2, 3, 4, 5]


@WAYS
def test_an_agent_that_began_before_the_end_is_told_how_it_ended(how: str) -> None:
    story = a_run_that_ended(how)
    began_at = story.now - 0.5
    story.advance(100.0)
    error = refusal(story.join("b", began_at=began_at - 100.0))
    assert isinstance(error, RunClosed)
    assert str(story.state().verdict.reason) in str(error)  # type: ignore[union-attr]
    assert "started again" in str(error)


@RESTARTS
def test_a_host_that_comes_after_the_success_of_a_run_does_not_train_it_again(
    is_restarted: bool,
) -> None:
    story = a_story(1, 2)
    story.join("a", began_at=story.now)
    story.advance(story.spec.last_call_s)
    story.obey("a")
    story.succeed("a")
    story.now += 60.0
    if is_restarted:
        story.restart()
    error = refusal(story.join("b", began_at=story.now))
    assert str(error).startswith("run 'run' has ended before this host came: it succeeded: ")
    assert list(story.registry.runs) == [RUN]
    story.join("a", began_at=story.now)
    assert story.state(f"{RUN}#2").generation == 2
    story.join("b", began_at=story.now)
    assert not story.of(fx.Reject), "it takes part in the new run"


@pytest.mark.parametrize("why", ["no room", "other settings", "failure", "long ago"])
def test_a_host_that_missed_nothing_begins_a_new_run(why: str) -> None:
    story = a_story(1, 1 if why == "no room" else 2)
    story.join("a", began_at=story.now)
    story.advance(story.spec.last_call_s)
    story.obey("a")
    (story.fail if why == "failure" else story.succeed)("a")
    story.advance(60.0 if why != "long ago" else story.spec.coordinator_grace_s + 60.0)
    spec = a_spec(1, 3) if why == "other settings" else story.spec
    story.join("b", began_at=story.now, spec=spec)
    assert not story.of(fx.Reject)
    assert story.state(f"{RUN}#2").generation == 2


def test_hosts_that_begin_in_the_instant_a_run_ends_all_take_part_in_the_next() -> None:
    story = a_run_that_ended("join timeout")
    ended_at = story.state().ended_at
    story.join("b", began_at=ended_at)
    story.join("c", began_at=ended_at)
    assert not story.of(fx.Reject)
    assert len(story.state(f"{RUN}#2").members) == 2


def test_an_agent_that_says_no_uptime_is_told_how_it_ended() -> None:
    story = a_run_that_ended("success")
    assert isinstance(refusal(story.join("b")), RunClosed)


def test_an_agent_that_holds_a_round_began_before_whatever_its_uptime() -> None:
    story = a_run_that_ended("success")
    story.now += 1.0
    story.join("b", began_at=story.now)  # the second run
    story.obey("b")
    story.succeed("b")
    story.now += 5.0
    agent = story.agents["b"]
    agent.began_at = story.now  # its host slept, and its clock with it
    story.registry.runs[f"{RUN}#2"].state.members.clear()
    assert isinstance(refusal(story.back("b")), RunClosed)


@RESTARTS
def test_a_member_hears_of_its_own_run_while_the_next_one_runs(is_restarted: bool) -> None:
    story = a_story(2, join_timeout_s=20.0)
    for name in ("a", "b"):
        story.join(name, began_at=story.now)
    story.obey_all()
    story.break_session("b")
    story.fail("a")
    story.advance(50.0)
    assert story.state().phase is Phase.ENDED
    old, story.agents["old b"] = story.agents["b"], story.agents["b"]
    story.now += 1.0
    story.join("a", began_at=story.now)
    if is_restarted:
        story.restart()
        story.back("a")
    assert old.identity.incarnation not in story.state().members  # it was given up
    error = refusal(story.back("old b"))
    assert isinstance(error, RunClosed)
    assert "it failed" in str(error)
    assert list(story.state(f"{RUN}#2").members) == ["a.2"]


def test_a_member_that_was_away_at_the_end_still_gets_the_verdict_of_its_run() -> None:
    story = a_story(1)
    story.join("a", began_at=story.now)
    story.obey("a")
    story.succeed("a")
    old = story.agents["a"]
    story.break_session("a")
    story.now += 1.0
    story.join("a", began_at=story.now)
    story.agents["old"] = old
    story.back("old")
    desired = story.desired("old").state
    assert isinstance(desired, Exit)
    assert (desired.verdict.is_success, desired.generation) == (True, 1)
    assert story.assignment("a").round_id == 0  # of the second run, which goes on
    assert story.beat("old") == []


def test_a_record_of_the_run_before_is_not_taken_for_one_of_this_run() -> None:
    """An agent adopts what a dead one on its host could not deliver, under its own run id."""
    story = a_run_that_ended("failure")
    story.now += 60.0
    story.join("a", began_at=story.now)
    story.obey("a")
    second = story.state(f"{RUN}#2")
    effects = story.record("a", incarnation="dead", sequence=1, age_s=61.0, round_id=0)
    assert effects == [fx.Answer(request_id=story._counter, result=False)]
    assert second.failures_count == 0
    story.record("a", round_id=0)
    assert second.failures_count == 1


@RESTARTS
def test_changed_settings_start_anew_after_the_only_agent_has_left(is_restarted: bool) -> None:
    story = a_story(2)
    story.join("a", began_at=story.now)
    story.leave("a")
    if is_restarted:
        story.restart()
    story.now += 1.0
    effects = story.join("a", began_at=story.now, spec=a_spec(1))
    assert not [effect for effect in effects if isinstance(effect, fx.Reject)]
    first, second = story.state(), story.state(f"{RUN}#2")
    assert first.verdict is not None
    assert not first.verdict.is_success
    assert "--nnodes (minimum): the run has '2', not '1'" in first.verdict.reason
    assert (second.phase, second.spec.agents_min) == (Phase.RUNNING, 1)
    assert [type(record) for run_id, record in story.journal if run_id == RUN][-1] is RunEnded
    story.registry.check_invariants()


def test_the_same_settings_go_on_after_the_only_agent_has_left() -> None:
    story = a_story(2)
    story.join("a", began_at=story.now)
    story.leave("a")
    story.now += 1.0
    story.join("a", began_at=story.now)
    assert list(story.registry.runs) == [RUN]


@pytest.mark.parametrize("is_missed", [False, True])
def test_changed_settings_are_refused_while_an_agent_is_there_or_may_return(
    is_missed: bool,
) -> None:
    story = a_story(2)
    story.join("a", began_at=story.now)
    if is_missed:
        story.break_session("a")
    error = refusal(story.join("b", began_at=story.now, spec=a_spec(1)))
    assert type(error) is (RunMissesAgents if is_missed else SpecMismatch)
    assert "--nnodes (minimum): the run has '2', not '1'" in str(error)
    assert list(story.registry.runs) == [RUN]
    story.advance(1.0)
    story.back("b")
    assert list(story.registry.runs) == ([RUN, f"{RUN}#2"] if is_missed else [RUN])


def test_impossible_settings_end_no_run() -> None:
    story = a_story(2)
    story.join("a", began_at=story.now)
    story.leave("a")
    refusal(story.join("a", began_at=story.now, spec=a_spec(3, 1)))
    assert (list(story.registry.runs), story.state().phase) == ([RUN], Phase.GATHERING)


def test_a_full_coordinator_still_lets_an_id_begin_anew() -> None:
    story = a_story(2, policy=Policy(runs_max=1))
    story.join("a", began_at=story.now)
    story.leave("a")
    story.now += 1.0
    story.join("a", began_at=story.now, spec=a_spec(1))
    assert list(story.registry.runs) == [RUN, f"{RUN}#2"]


# What is remembered.


def run_once(story: Story, run_id: str, **fields: Any) -> None:
    story.now += 1.0
    story.join(run_id, run_id=run_id, began_at=story.now, **fields)
    story.obey(run_id)
    story.succeed(run_id)


def test_one_id_that_is_used_for_ever_pushes_out_no_other_run() -> None:
    story = a_story(1, policy=Policy(runs_ended_max=5, runs_ended_per_id_max=2))
    run_once(story, "other")
    for _ in range(6):
        run_once(story, "busy")
    assert list(story.registry.runs) == ["other", "busy#4", "busy#5", "busy#6"]
    assert [key for key, _ in story.journal if key == "busy#7"] == []
    story.registry.check_invariants()


def test_ended_runs_have_a_budget_of_bytes_and_the_latest_is_kept() -> None:
    story = a_story(1, policy=Policy(runs_ended_bytes_max=2_000))
    for run_id in ("one", "two", "three"):
        run_once(story, run_id)
    assert [run.state.run_id for run in story.registry.runs.values()] == ["three"]
    story.registry.check_invariants()


def test_an_ended_run_lets_go_of_all_but_verdict_report_and_history() -> None:
    story = a_story(3, restarts_max=0, coordinator_grace_s=100.0)
    for name in ("a", "b", "c"):
        story.join(name)
    story.obey_all()
    story.record("b", message="boom")
    story.fail("b")
    story.is_lively = True
    story.advance(60.0)
    state = story.state()
    assert state.phase is Phase.ENDED
    assert state.verdict is not None
    assert state.verdict.report is not None
    assert state.verdict.report.root_causes[0].message == "boom"
    assert (state.failures, state.failures_bytes, state.failures_heard) == ([], 0, {})
    assert state.failures_count == 1
    assert state.round is not None
    assert (list(state.round.seats), state.round.group_world_size) == (["a.1"], 3)
    assert set(state.members) == {"a.1", "b.1", "c.1"}
    story.restart()  # one may still come for the verdict
    story.advance(200.0)
    story.handle(DeadlineReached())
    assert story.state().members == {}
    assert len(story.records(MembersForgotten)) == 1
    assert story.run().next_deadline() is None


def test_a_record_that_comes_after_the_verdict_is_not_journaled() -> None:
    story = a_story(1)
    story.join("a")
    story.obey("a")
    story.succeed("a")
    journaled = len(story.journal)
    (answer,) = story.record("a")
    assert answer == fx.Answer(request_id=story._counter, result=False)
    assert len(story.journal) == journaled
