"""What is planned waits for training that wants to save, and for nothing else."""

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import CheckpointAsked, DrainAsked, RestartAsked, StopAsked
from drumbeat.coordinator.core.model import Release
from drumbeat.coordinator.core.phases.notices import ANSWERS_WAIT_S
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.notice import Leaving, NoticeEnded, NoticeGiven, PendingNotice
from drumbeat.coordinator.core.run.records import AgentRemoved, RoundEnd, RoundEnded, RoundStarted
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import WrongPhase
from drumbeat.model import NoticeKind, NoticeReport
from tests.support.operator import ask
from tests.support.world import Story, a_running_story

GRACE_S = 60.0
STEP = 10


def a_training_story(size: int = 3, agents_min: int = 2, agents_max: int = 3) -> Story:
    """Return a run whose planned changes wait for at most a minute."""
    policy = Policy(checkpoint_grace_s=GRACE_S)
    return a_running_story(size, agents_max, agents_min=agents_min, policy=policy)


def report(story: Story, names: str, **fields: Any) -> None:
    """Let hosts say what their workers say of the notice as it is now."""
    for name in names:
        notice = story.state().notice
        if notice is None:
            return
        steps = {"chosen": notice.chosen, "proposed": notice.proposed}
        known = {"notice_id": notice.notice_id, **steps, **fields}
        story.beat(name, more={"notice": NoticeReport(**known)})
        story.agents[name].more = {}


def pending(story: Story) -> PendingNotice:
    """Return the notice that is pending."""
    notice = story.state().notice
    assert notice is not None, "no notice is pending"
    return notice


def choose(story: Story, names: str = "abc") -> None:
    """Let all ranks say where they are, and that they will stop at the step that is proposed."""
    report(story, names, asked=STEP)
    report(story, names, asked=STEP, is_ready=True)


def save(story: Story, names: str = "abc") -> None:
    """Let all ranks ask when to save, and do."""
    choose(story, names)
    report(story, names, asked=STEP + 5, is_saved=True)


def ended(story: Story) -> list[RoundEnd]:
    return [record.cause for record in story.records(RoundEnded)]


def removed(story: Story) -> list[str]:
    return [record.incarnation for record in story.records(AgentRemoved)]


def test_a_drain_waits_until_all_have_saved() -> None:
    story = a_training_story()
    answer = ask(story, DrainAsked, name="b", reason="disk")
    assert isinstance(answer, fx.Steered)
    told = "1 agent to leave once training has saved; those that come wait until"
    assert answer.outcome == f"{told} `coordinator undrain`"
    notice = pending(story)
    assert (notice.kind, notice.reason) == (NoticeKind.DRAIN, "b is drained by op: disk")
    assert notice.until_s == story.now + GRACE_S
    choose(story)
    report(story, "ab", asked=STEP + 5, is_saved=True)
    assert removed(story) == []
    report(story, "c", asked=STEP + 5, is_saved=True)
    assert removed(story) == ["b.1"]
    assert ended(story) == [RoundEnd.AGENT_LOST]
    assert story.desired("b").state == Release(reason="drained by op: disk", is_drained=True)
    assert story.of(fx.TellNotice) == [], "those that wait for the change hear nothing before it"
    assert story.run().reason(story.now) == "waiting for the workers of b to end"
    story.obey("b")
    assert story.ranks() == ["a", "c"]
    assert story.state().restarts_used == 0


@pytest.mark.parametrize("kind", [StopAsked, RestartAsked, DrainAsked])
def test_training_that_does_not_ask_is_not_waited_for(kind: Any) -> None:
    story = a_training_story()
    fields = {"name": "b"} if kind is DrainAsked else {}
    ask(story, kind, **fields)
    report(story, "ab")
    assert story.state().phase is Phase.RUNNING
    assert story.state().round_id == 0
    report(story, "c")
    assert story.records(NoticeEnded)[-1].reason == "training does not ask when to save"
    if kind is DrainAsked:
        story.obey("b")
    assert story.state().phase is Phase.ENDING or story.state().round_id == 1


def test_hosts_of_an_earlier_version_say_nothing_and_are_not_waited_for() -> None:
    story = a_training_story()
    ask(story, RestartAsked)
    story.advance(ANSWERS_WAIT_S)
    assert ended(story) == [RoundEnd.RESTART_ASKED]
    story.obey_all()
    ask(story, RestartAsked)
    report(story, "ab", asked=STEP)
    story.advance(ANSWERS_WAIT_S)
    assert ended(story) == [RoundEnd.RESTART_ASKED] * 2


@pytest.mark.parametrize("grace_s", [None, 5.0])
def test_time_is_up_at_the_latest(grace_s: float | None) -> None:
    story = a_training_story()
    answer = ask(story, StopAsked, grace_s=grace_s)
    limit_s = grace_s or GRACE_S
    assert isinstance(answer, fx.Steered)
    assert answer.outcome.startswith("training may save for ")
    choose(story)
    story.advance(limit_s - 0.5)
    assert story.state().phase is Phase.RUNNING
    story.advance(0.5)
    assert story.state().phase is Phase.ENDING


def test_without_grace_it_is_done_at_once() -> None:
    story = a_training_story()
    ask(story, DrainAsked, name="b", grace_s=0.0)
    assert removed(story) == ["b.1"]
    assert story.records(NoticeGiven) == []


def test_asked_again_nothing_changes_but_that_there_may_be_less_time() -> None:
    story = a_training_story()
    ask(story, DrainAsked, name="b", call_id="1")
    report(story, "abc", asked=STEP)
    story.advance(1)
    for call_id in ("1", "2"):
        answer = ask(story, DrainAsked, name="b", call_id=call_id)
        assert answer == fx.Steered(outcome="it is drained already", is_new=False)
    assert len(story.records(NoticeGiven)) == 1
    ask(story, DrainAsked, name="b", call_id="3", grace_s=7.0)
    assert {each.time_left_s for each in story.of(fx.TellNotice)} == {7.0}
    ask(story, DrainAsked, name="b", call_id="4", grace_s=0.0)
    assert removed(story) == ["b.1"]
    assert {given.notice.notice_id for given in story.records(NoticeGiven)} == {1}


def test_a_stop_wins_over_a_drain_that_waits_and_does_not_wait_anew() -> None:
    story = a_training_story()
    ask(story, DrainAsked, name="b")
    ask(story, StopAsked)
    assert story.state().phase is Phase.RUNNING
    save(story)
    assert story.state().phase is Phase.ENDING
    assert removed(story) == []
    assert len(story.records(NoticeGiven)) == 1


def test_all_that_waits_for_a_notice_takes_one_round() -> None:
    story = a_training_story()
    story.join("d")
    ask(story, RestartAsked)
    ask(story, DrainAsked, name="b")
    ask(story, DrainAsked, name="c")
    save(story)
    story.obey("b")
    assert len(story.records(RoundStarted)) == 1
    story.obey("c")
    assert len(story.records(RoundStarted)) == 2
    assert story.ranks() == ["a", "d"]


def test_a_drain_that_is_lifted_meanwhile_takes_no_one() -> None:
    story = a_training_story()
    ask(story, DrainAsked, name="b")
    ask(story, DrainAsked, name="b", is_lifted=True)
    save(story)
    assert removed(story) == []
    assert ended(story) == []


def test_one_that_stands_by_leaves_at_once() -> None:
    story = a_training_story(2, agents_max=2)
    story.join("c")
    ask(story, DrainAsked, name="c")
    assert removed(story) == ["c.1"]
    assert story.records(NoticeGiven) == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_round_that_breaks_meanwhile_takes_what_is_planned_along(is_lost: bool) -> None:
    policy = Policy(checkpoint_grace_s=GRACE_S)
    story = a_running_story(3, 3, agents_min=1, restarts_max=1, policy=policy)
    ask(story, DrainAsked, name="b")
    if is_lost:
        story.leave("c")
    else:
        story.fail("c")
    story.obey("b")
    assert story.ranks() == (["a"] if is_lost else ["a", "c"])
    assert story.state().restarts_used == (not is_lost)
    assert len(story.records(RoundStarted)) == 2


def test_a_run_that_is_to_stop_begins_no_round_after_a_failure() -> None:
    story = a_training_story()
    ask(story, StopAsked)
    story.fail("c")
    assert story.state().phase is Phase.ENDING
    story.obey_all()
    verdict = story.state().verdict
    assert verdict is not None
    assert verdict.cause == "STOPPED"
    assert len(story.records(RoundStarted)) == 1


def test_a_drain_while_a_run_ends_counts_if_the_run_goes_on_after_all() -> None:
    story = a_running_story(3, 3, agents_min=1, restarts_max=0)
    story.silence("a")
    story.advance(1)
    story.fail("b")
    assert story.state().phase is Phase.ENDING
    ask(story, DrainAsked, name="c")
    assert removed(story) == []
    story.advance(20)
    assert "c.1" in removed(story)
    story.obey("c")
    assert story.ranks() == ["b"]


def test_a_coordinator_that_comes_back_goes_on_with_what_waits() -> None:
    story = a_training_story()
    ask(story, DrainAsked, name="b")
    choose(story)
    until = story.records(NoticeGiven)[0].notice.until_s
    story.restart()
    assert pending(story).until_s == until
    for name in "abc":
        story.back(name)
    story.advance(ANSWERS_WAIT_S / 2)
    report(story, "abc", asked=STEP + 5, is_saved=True)
    assert len(story.records(NoticeGiven)) == 1
    assert removed(story) == ["b.1"]


def test_agents_that_come_back_late_to_a_new_coordinator_are_waited_for() -> None:
    story = a_training_story()
    ask(story, RestartAsked)
    choose(story)
    story.restart()
    story.advance(ANSWERS_WAIT_S / 2)
    for name in "ab":
        story.back(name)
    report(story, "ab", asked=STEP + 5, is_saved=True)
    story.advance(ANSWERS_WAIT_S / 2)
    assert ended(story) == [], "c has not said whether it saved"
    story.back("c")
    report(story, "c", asked=STEP + 5, is_saved=True)
    assert ended(story) == [RoundEnd.RESTART_ASKED]


def test_a_scale_up_waits_as_well_and_a_late_joiner_that_goes_costs_no_round() -> None:
    story = a_training_story(2)
    story.join("c")
    story.advance(GRACE_S / 2)
    assert story.state().notice is None, "nobody answered, so it went on"
    assert ended(story) == [RoundEnd.AGENT_JOINED]
    story = a_training_story(2)
    story.join("c")
    assert pending(story).kind is NoticeKind.SCALE_UP
    choose(story, "ab")
    story.leave("c")
    report(story, "ab", asked=STEP + 5, is_saved=True)
    assert story.state().notice is None
    assert ended(story) == []


def test_while_a_preempted_host_leaves_the_others_go_on_waiting() -> None:
    story = a_training_story()
    story.beat("b", more={"leaving": Leaving(reason="goes", time_left_s=20.0)})
    save(story)
    assert story.state().notice is None
    told = {story.sessions[each.session_id] for each in story.of(fx.TellNotice) if each.is_over}
    assert told == {"b"}
    story.leave("b")
    assert story.ranks() == ["a", "c"]


def test_a_host_that_goes_sooner_than_what_is_planned_shortens_the_wait() -> None:
    story = a_training_story()
    ask(story, RestartAsked)
    story.beat("b", more={"leaving": Leaving(reason="goes", time_left_s=20.0)})
    assert pending(story).until_s == story.now + 20.0
    story.beat("b", more={"leaving": Leaving(reason="goes", time_left_s=19.9)})
    assert len(story.records(NoticeGiven)) == 2, "that is the same, said again"


def test_training_saves_when_it_is_asked_to_and_goes_on() -> None:
    story = a_training_story()
    done = ask(story, CheckpointAsked, reason="before the network is changed", call_id="one")
    assert isinstance(done, fx.Steered)
    assert done.is_new
    assert pending(story).kind is NoticeKind.CHECKPOINT
    for call_id in ("one", "two"):
        again = ask(story, CheckpointAsked, call_id=call_id)
        assert isinstance(again, fx.Steered)
        assert not again.is_new
    save(story)
    assert story.state().notice is None
    assert ended(story) == []
    assert story.state().phase is Phase.RUNNING
    told = {story.sessions[each.session_id] for each in story.of(fx.TellNotice) if each.is_over}
    assert told == {"a", "b", "c"}


def test_a_run_without_a_round_saves_nothing() -> None:
    story = a_training_story()
    ask(story, StopAsked, grace_s=0.0)
    assert isinstance(ask(story, CheckpointAsked), WrongPhase)
