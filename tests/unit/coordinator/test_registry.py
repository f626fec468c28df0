"""All runs of one coordinator."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    AgentLeft,
    BeatReceived,
    DeadlineReached,
    Event,
    QuorumFormed,
    SessionOpened,
    TurnCame,
)
from drumbeat.coordinator.core.membership.admission import spec_error
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import InvalidRequest, LimitReached
from drumbeat.model import GroupState, Pace, ReplicaGroup
from tests.support.journal import take_over
from tests.support.world import BEAT_S, RUN, Story, a_running_story, a_spec, a_story


class CallersStory(Story):
    """A story whose agents bring a token."""

    caller = "token"

    def handle(self, event: Event) -> list[fx.Effect]:
        if isinstance(event, SessionOpened):
            event = replace(event, caller=self.caller)
        return super().handle(event)


def end_run(story: Story, run_id: str) -> None:
    story.join(run_id, run_id=run_id)
    story.obey(run_id)
    story.succeed(run_id)


def test_two_runs_never_touch_each_other() -> None:
    story = a_story(1, restarts_max=1)
    for name in ("x", "y"):
        story.join(name, run_id=name)
        story.obey(name)
    untouched = story.state("y").history[:]
    effects = [*story.fail("x"), *story.record("x"), *story.leave("x")]
    assert {effect.run_id for effect in effects if isinstance(effect, fx.Persist)} == {"x"}
    assert {e.session_id for e in effects if isinstance(e, fx.Direct)} == {"s1"}
    assert story.state("y").history == untouched


@pytest.mark.parametrize("what", ["beat", "leave"])
def test_a_session_of_an_unknown_run_is_refused(what: str) -> None:
    story = a_story(1)
    story.join("a")
    story.registry = Registry(story.policy)
    effects = story.beat("a") if what == "beat" else story.leave("a")
    assert [type(effect) for effect in effects] == [fx.Reject]


def test_what_nobody_waits_for_in_an_unknown_run_is_dropped() -> None:
    story = a_story(1)
    story.join("a")
    story.registry = Registry(story.policy)
    assert story.break_session("a") == []
    assert [type(e) for e in story.record("a")] == [fx.Answer]
    assert story.of(fx.Answer)[0].result is False


def test_one_run_too_many_is_refused_until_another_has_ended() -> None:
    story = a_story(1, policy=Policy(runs_max=1))
    story.join("a", run_id="first")
    (refused,) = story.join("b", run_id="second")
    assert isinstance(refused, fx.Reject)
    assert isinstance(refused.error, LimitReached)
    assert (refused.error.args[0], list(story.registry.runs)) == ("runs_max", ["first"])
    story.obey("a")
    story.succeed("a")
    story.back("b")
    assert list(story.registry.runs) == ["first", "second"]


def test_runs_of_one_caller_that_wait_for_agents_leave_room_for_others() -> None:
    story = CallersStory(spec=a_spec(2), policy=Policy(runs_waiting_per_caller_max=2))
    for name in ("a", "b"):
        story.join(name, run_id=name)
        story.break_session(name)
    story.restart()
    (refused,) = story.join("c", run_id="c")
    assert isinstance(refused, fx.Reject)
    assert refused.error.args == ("runs_waiting_per_caller_max", 2)
    story.caller = "other"
    story.join("d", run_id="d")
    story.caller = "token"
    story.back("a")
    story.join("e", run_id="a")
    assert story.registry.runs["a"].state.phase is Phase.RUNNING, "its agents are let in"
    story.back("c")
    assert list(story.registry.runs) == ["a", "b", "d", "c"], "one of the two waits no longer"


def test_the_oldest_ended_run_is_forgotten() -> None:
    story = a_story(1, policy=Policy(runs_ended_max=2))
    for run_id in ("one", "two", "three"):
        end_run(story, run_id)
    assert story.of(fx.Forget) == [fx.Forget(run_id="one")]
    assert (list(story.registry.runs), list(story.registry.ended)) == (["two", "three"],) * 2
    story.registry.check_invariants()


def test_a_run_that_is_due_can_be_forgotten_in_the_same_instant() -> None:
    story = a_story(1, policy=Policy(runs_ended_max=1), join_timeout_s=5.0)
    end_run(story, "old")
    story.join("b", run_id="new", spec=a_spec(2, join_timeout_s=5.0))
    story.now += 5.0  # b's join timeout and both leases at once
    story.handle(DeadlineReached())
    assert list(story.registry.runs) == ["new"]


def test_a_lowered_limit_of_ended_runs_holds_after_a_restart() -> None:
    story = a_story(1)
    for run_id in ("one", "two", "three"):
        end_run(story, run_id)
    states = [story.state(run_id) for run_id in ("one", "two", "three")]
    fresh = a_story(1, policy=Policy(runs_ended_max=1))
    forgotten = take_over(fresh.registry, states, now=0.0)
    kept = fx.KeepForgets(generation=1)
    assert forgotten == [fx.Forget(run_id="one"), fx.Forget(run_id="two"), kept]
    fresh.registry.check_invariants()


def test_a_large_run_beats_as_slowly_as_its_lease_allows_and_keeps_the_lease() -> None:
    story = a_story(1, 99, policy=Policy(agents_at_base_pace=4))
    names = [f"n{index}" for index in range(9)]
    told: list[tuple[int, Pace]] = []
    for name in names:
        story.join(name)
        paces = [effect.pace for effect in story.of(fx.SetPace)]
        told += [(len(paces), paces[0])] if paces else []
    base = story.policy.base_pace
    wider, widest = (replace(base, heartbeat_interval_s=2.0) for _ in range(2))
    delay_s = base.reconnect_delay_max_s
    wider = replace(wider, reconnect_delay_max_s=2 * delay_s, waiting_interval_s=4.0)
    widest = replace(widest, reconnect_delay_max_s=4 * delay_s, waiting_interval_s=8.0)
    assert told == [(5, wider), (9, widest)]
    told = []
    for name in names:
        story.leave(name)
        told += [(0, effect.pace) for effect in story.of(fx.SetPace)[:1]]
    assert told == [(0, wider), (0, base)]


def test_a_run_that_waits_for_many_has_their_pace_from_the_first_one_on() -> None:
    story = a_story(9, policy=Policy(agents_at_base_pace=4))
    for index in range(9):
        story.join(f"n{index}")
        (welcome,) = story.of(fx.Welcome)
        assert welcome.pace.waiting_interval_s == 8.0
        assert not story.of(fx.SetPace)


def told(effects: list[fx.Effect]) -> list[str]:
    """Return what is told to whom, in short."""
    return [
        type(effect.state).__name__ if isinstance(effect, fx.Direct) else type(effect).__name__
        for effect in effects
        if isinstance(effect, fx.Direct | fx.TellMore)
    ]


def test_a_large_run_is_told_in_several_turns_and_each_member_what_is_true_by_then() -> None:
    story = a_running_story(5, restarts_max=3, policy=Policy(told_per_turn=2))
    registry, now = story.registry, story.now
    failed = replace(story.agents["a"].beat(), state=GroupState.FAILED, workers_alive=0)
    sessions = [str(story.agents[name].session_id) for name in "ab"]
    beat = BeatReceived(run_id=RUN, session_id=sessions[0], incarnation="a.1", beat=failed)
    assert told(registry.handle(beat, now=now)) == ["Assignment", "Assignment", "TellMore"]
    more = TurnCame(run_id=story.state().key)
    # In between something else happens, which asks for no turn of its own.
    gone = AgentLeft(run_id=RUN, session_id=sessions[1], incarnation="b.1", reason="it has to go")
    assert told(registry.handle(gone, now=now)) == []
    assert told(registry.handle(more, now=now)) == ["Standby", "Standby", "TellMore"]
    assert told(registry.handle(more, now=now)) == ["Standby", "Standby"]
    assert told(registry.handle(more, now=now)) == []


def test_the_size_of_a_run_is_nothing_to_the_pace_of_another() -> None:
    story = a_story(99, policy=Policy(agents_at_base_pace=4))
    for name in ("x", "y"):
        story.join(name, run_id="small", spec=a_spec(2))
    for index in range(20):
        story.join(f"n{index}", run_id="large")
    small, large = (story.registry.runs[run_id].members.pace for run_id in ("small", "large"))
    assert small == story.policy.base_pace
    assert (large.heartbeat_interval_s, large.lease_s) == (2.0, small.lease_s)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 10_000])
def test_a_silent_host_is_given_up_after_the_same_time_at_any_size(size: int) -> None:
    story = a_story(size, size + 1)
    for index in range(size):
        story.join(f"n{index}")
    story.join("silent")  # which closes the round, and says nothing from here on
    began = story.now
    others = [f"n{index}" for index in range(size)]
    story.obey_all()
    while "silent.1" in story.state().members and story.now < began + 10.0:
        story.now += 0.5
        if story.now % 1.0 == 0.0:
            for name in others:
                story.beat(name)
        story.handle(DeadlineReached())
    assert story.now - began == 5.0


def test_a_restored_registry_expects_all_its_agents_at_their_pace() -> None:
    """Else those who were told to take their time would come after their grace."""
    story = a_story(9, policy=Policy(agents_at_base_pace=1))
    for index in range(9):
        story.join(f"n{index}")
    story.obey_all()
    story.restart()
    story.back("n0")
    (welcome,) = story.of(fx.Welcome)
    assert welcome.pace.heartbeat_interval_s == 2.0
    assert welcome.pace.reconnect_delay_max_s == 16 * story.policy.base_pace.reconnect_delay_max_s
    assert not story.of(fx.SetPace)
    delay = welcome.pace.reconnect_delay_max_s
    deadline = story.registry.next_deadline()
    assert deadline is not None
    for index in range(1, 9):
        story.now += delay / 4
        story.back(f"n{index}")
    story.advance(100.0)
    assert story.state().round_id == 0
    story.registry.check_invariants()


@pytest.mark.parametrize("size", [10, 3000])
def test_what_an_event_causes_does_not_grow_with_the_number_of_agents(size: int) -> None:
    story = a_story(size, size + 2, policy=Policy(agents_at_base_pace=10**6))
    for index in range(size):
        story.join(f"n{index}")
    story.advance(3.0)
    story.obey("n1")
    assert story.state().phase is Phase.RUNNING
    counts = {
        "beat": len(story.beat("n1")),
        "success": len(story.succeed("n1")),
        "record": len(story.record("n2")),
        "join": len(story.join("late")),
        "break": len(story.break_session("n3")),
        "back": len(story.back("n3")),
        "surplus leaves": len(story.leave("late")),
    }
    assert counts == {
        "beat": 0,
        "success": 1,
        "record": 2,
        "join": 4,
        "break": 0,
        "back": 2,
        "surplus leaves": 2,
    }
    assert len(story.of(fx.Direct)) == 0


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("agents_min", 0),
        ("agents_max", 1),
        ("master_port", 65_536),
        ("join_timeout_s", -1.0),
        ("join_timeout_s", 30 * 86400.0 + 1),
        ("last_call_s", float("nan")),
        ("shutdown_timeout_s", float("inf")),
        ("coordinator_grace_s", -0.5),
        ("exit_barrier_timeout_s", -1.0),
        ("exit_barrier_timeout_s", 0.0),
    ],
)
def test_an_impossible_spec_is_refused_by_field(field: str, given: Any) -> None:
    fields: dict[str, Any] = {"agents_min": 2, "agents_max": 2} | {field: given}
    error = spec_error(a_spec(**fields), Policy(agents_max=9))
    assert isinstance(error, InvalidRequest)
    assert (error.field, error.value) == (f"spec.{field.removesuffix('_s')}", given)
    story = Story(spec=a_spec(**fields))
    assert [type(effect) for effect in story.join("a")] == [fx.Reject]
    assert not story.registry.runs


def test_a_sound_spec_is_accepted() -> None:
    assert (
        spec_error(a_spec(2, 4, exit_barrier_timeout_s=1.0, last_call_s=0.0), Policy(agents_max=9))
        is None
    )


def test_a_run_that_could_never_start_is_refused() -> None:
    policy = Policy(agents_max=3)
    story = Story(spec=a_spec(4, 8), policy=policy)
    (reject,) = story.join("a")
    assert isinstance(reject, fx.Reject)
    assert str(reject.error) == "spec.agents_min: 4 is given, allowed is at most 3"
    assert not story.registry.runs


def test_a_coordinator_is_deserted_once_none_of_its_agents_can_be_heard() -> None:
    story = a_running_story(2)
    assert not story.registry.is_deserted
    story.silence("b")
    story.advance(2 * BEAT_S)
    assert not story.registry.is_deserted, "one is left"
    story.break_session("a")
    assert story.registry.is_deserted, "one is away, and the other one is suspect"
    story.back("a")
    assert not story.registry.is_deserted


def test_a_coordinator_that_agents_have_not_come_to_yet_is_not_deserted() -> None:
    story = a_running_story(2)
    story.restart()
    assert not story.registry.is_deserted


@pytest.mark.parametrize("how", ["one agent", "agents that leave", "an ended run"])
def test_a_coordinator_is_not_deserted_by(how: str) -> None:
    story = a_running_story(1 if how == "one agent" else 2)
    names = list(story.agents)
    for name in names:
        if how == "an ended run":
            story.succeed(name)
    for name in names:
        if how == "agents that leave":
            story.leave(name)
        else:
            story.break_session(name)
    assert not story.registry.is_deserted


def test_of_too_many_quorums_one_of_a_job_without_live_groups_is_forgotten() -> None:
    story = a_story(1, policy=Policy(quorums_kept_max=1))
    group = ReplicaGroup(job="live", index=0, count=1)
    story.join("a", run_id=group.run_id, spec=a_spec(1, replica_group=group))

    def keep(job: str) -> list[fx.Effect]:
        kept = KeptQuorum(job=job, quorum_id=1, members={0: "a"})
        return story.registry.handle(QuorumFormed(quorum=kept, request_id=7), now=story.now)

    answer = fx.Answer(request_id=7, result=None)
    live, ended, other = (
        fx.KeepQuorum(quorum=KeptQuorum(job=job, quorum_id=1, members={0: "a"}))
        for job in ("live", "ended", "other")
    )
    assert keep("live") == [live, answer]
    assert keep("ended") == [ended, answer]
    assert keep("other") == [other, replace(ended, is_kept=False), answer]
    assert list(story.registry.quorums) == ["live", "other"]
