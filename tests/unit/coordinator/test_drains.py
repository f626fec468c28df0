"""Agents that an operator keeps out of rounds: who leaves, who waits outside."""

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import AgentLeft, DrainAsked, StopAsked
from drumbeat.coordinator.core.membership.drains import CALLS_KNOWN_MAX, Drains
from drumbeat.coordinator.core.model import Exit, KeptDrain, Release
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.state import DRAINED_KNOWN_MAX
from drumbeat.coordinator.errors import LimitReached
from drumbeat.model import Assignment, Standby
from tests.support.operator import ask
from tests.support.world import RUN, Story, a_running_story, a_spec


def desired(story: Story, name: str) -> object:
    direct = story.agents[name].desired
    assert direct is not None
    return direct.state


def drained(name: str, *, is_lifted: bool = False, run_id: str = "") -> KeptDrain:
    return KeptDrain(name=name, run_id=run_id, is_lifted=is_lifted)


def test_who_drained_whom_and_why_is_an_event() -> None:
    story = a_running_story(2)
    ask(story, DrainAsked, name="b", reason="disk")
    noted = next(entry for entry in story.state().history if entry.decision == "agent drained")
    assert (noted.reason, noted.caller) == ("b: disk", "op")
    assert desired(story, "b") == Release(reason="drained by op: disk", is_drained=True)
    story.join("b")
    assert isinstance(desired(story, "b"), Standby)
    ask(story, DrainAsked, name="b", is_lifted=True, reason="repaired", caller="op2")
    noted = next(entry for entry in story.state().history if entry.decision == "agent undrained")
    assert (noted.reason, noted.caller) == ("b: repaired", "op2")


def test_an_agent_that_did_not_hear_it_is_told_again_also_after_a_restart_and_an_undrain() -> None:
    story = a_running_story(2)
    story.break_session("b")
    ask(story, DrainAsked, name="b")
    story.restart()
    ask(story, DrainAsked, name="b", is_lifted=True)
    story.back("b")
    assert desired(story, "b") == Release(reason="drained by op", is_drained=True)
    assert story.agents["b"].identity.incarnation not in story.state().members


def test_what_a_leaving_agent_says_harms_nothing() -> None:
    story = a_running_story(2)
    ask(story, DrainAsked, name="b")
    story.beat("b")
    assert not story.of(fx.Reject)
    (told,) = story.of(fx.Direct)
    assert told.state == Release(reason="drained by op", is_drained=True), "it is told again"
    agent = story.agents["b"]
    goodbye = AgentLeft(
        run_id=RUN,
        session_id=agent.session_id or "",
        incarnation=agent.identity.incarnation,
        reason="drained",
    )
    assert story.handle(goodbye) == []


def test_a_drain_of_one_run_leaves_others_alone() -> None:
    drains = Drains(most=9)
    story = a_running_story(1)
    agent = story.agents["a"].identity
    drains.put(drained("a", run_id="other"), "")
    assert drains.find(RUN, agent) is None
    drains.put(drained(agent.host), "")
    assert drains.find(RUN, agent) == drained(agent.host)


def test_a_late_repetition_of_a_drain_that_was_lifted_changes_nothing() -> None:
    story = a_running_story(2)
    ask(story, DrainAsked, name="b", call_id="1")
    ask(story, DrainAsked, name="b", call_id="2", is_lifted=True)
    answer = ask(story, DrainAsked, name="b", call_id="1")
    assert isinstance(answer, fx.Steered)
    assert not answer.is_new
    assert story.registry.drains.active == []


@pytest.mark.parametrize("is_known", [True, False])
def test_lifting_what_is_not_drained_is_harmless(is_known: bool) -> None:
    story = a_running_story(1)
    if is_known:
        ask(story, DrainAsked, name="z")
        ask(story, DrainAsked, name="z", is_lifted=True)
    answer = ask(story, DrainAsked, name="z", is_lifted=True)
    assert answer == fx.Steered(outcome="it is not drained", is_new=False)


def test_a_drain_while_a_run_ends_does_not_take_agents_from_it() -> None:
    story = a_running_story(2)
    story.fail("a")
    story.obey("a")
    ask(story, DrainAsked, name="b")
    assert not isinstance(desired(story, "b"), Release)


def test_drains_are_bounded() -> None:
    story = Story(policy=Policy(drains_max=2), spec=a_spec(1, 1))
    for name in ("a", "b"):
        ask(story, DrainAsked, name=name)
    assert isinstance(ask(story, DrainAsked, name="c"), LimitReached)
    for number in range(5):
        ask(story, DrainAsked, name=f"x{number}", run_id="r", is_lifted=True)
    ask(story, DrainAsked, name="a", is_lifted=True)
    for name in ("d", "e", "f"):
        ask(story, DrainAsked, name=name)
        ask(story, DrainAsked, name=name, is_lifted=True)
    assert len(story.registry.drains.kept) == 1 + 2
    assert any(isinstance(e, fx.KeepDrain) and not e.is_kept for e in story.effects)


def test_of_one_name_the_latest_calls_are_known() -> None:
    drains = Drains(most=3)
    for number in range(CALLS_KNOWN_MAX + 2):
        drains.put(drained("a"), str(number))
    assert not drains.is_known(("", "a"), "1")
    assert drains.is_known(("", "a"), "2")
    assert not drains.is_known(("", "b"), "2")


def test_a_run_remembers_the_latest_that_were_drained() -> None:
    story = a_running_story(2)
    state = story.state()
    state.drained = dict.fromkeys(map(str, range(DRAINED_KNOWN_MAX)), "")
    ask(story, DrainAsked, name="b")
    assert len(state.drained) == DRAINED_KNOWN_MAX


def test_an_ended_run_lets_in_no_agent_whose_drain_is_lifted() -> None:
    story = a_running_story(1)
    ask(story, DrainAsked, name="z")
    story.join("z")
    ask(story, StopAsked)
    story.obey("a")
    ask(story, DrainAsked, name="z", is_lifted=True)
    assert story.agents["z"].identity.incarnation not in story.state().members
    assert isinstance(desired(story, "z"), Exit)


def test_others_train_on() -> None:
    story = Story(spec=a_spec(1, 2), is_lively=True)
    for name in ("a", "b"):
        story.join(name)
    ask(story, DrainAsked, name="a")
    assert isinstance(desired(story, "b"), Assignment)
    assert story.state().restarts_used == 0
