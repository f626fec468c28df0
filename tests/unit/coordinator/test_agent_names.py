"""What people call an agent: by a name of its own, by its host's, and never two alike."""

from __future__ import annotations

from functools import partial

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DrainAsked
from drumbeat.coordinator.core.membership.admission import numbered
from tests.support.world import Story, a_story, an_agent


def two_on_one_host(**names: str) -> Story:
    story = a_story(2, restarts_max=1)
    story.join("a", host="node7", name=names.get("a", ""))
    story.join("b", host="node7", name=names.get("b", ""))
    story.obey_all()
    return story


def history(story: Story) -> str:
    return "\n".join(entry.reason for entry in story.state().history)


def test_a_name_that_is_taken_gets_the_next_number() -> None:
    assert numbered(an_agent("b", host="node7"), {"node7#3"}).name == "node7"
    assert numbered(an_agent("c", host="node7"), {"node7", "node7#3"}).name == "node7#2"
    assert numbered(an_agent("d", host="node7"), {"node7", "node7#2", "node7#3"}).name == "node7#4"


def test_an_agent_is_told_its_name_also_when_it_is_let_in_after_a_drain() -> None:
    story = two_on_one_host()
    story.join("c", host="node7")
    assert [welcome.name for welcome in story.of(fx.Welcome)] == ["node7#3"]
    ask = partial(DrainAsked, request_id=1, caller="op")
    story.handle(ask(name="late"))
    story.join("d", host="late")
    assert [welcome.name for welcome in story.of(fx.Welcome)] == [""]
    story.handle(ask(name="late", is_lifted=True))
    assert [welcome.name for welcome in story.of(fx.Welcome)] == ["late"]


def test_agents_of_one_host_are_told_apart_in_reasons() -> None:
    story = two_on_one_host()
    assert "node7#2 joined" in history(story)
    story.leave("b")
    assert "round 0 lost node7#2" in history(story)


def test_a_name_that_was_given_is_used_instead_of_the_hosts() -> None:
    story = two_on_one_host(a="left", b="right")
    story.leave("b")
    assert "round 0 lost right" in history(story)
    assert "node7" not in history(story)


def test_a_failure_names_its_agent_even_after_that_is_gone() -> None:
    story = two_on_one_host()
    story.leave("b")
    story.record("b")
    assert story.state().failures[0].agent == "node7#2"
    story.record("a")
    assert {record.agent for record in story.state().failures} == {"node7", "node7#2"}


def test_a_name_is_free_again_when_its_agent_is_gone() -> None:
    story = two_on_one_host()
    story.leave("a")
    story.join("c", host="node7")
    names = {agent.name for agent in story.state().members.values()}
    assert names == {"node7", "node7#2"}


def test_a_restarted_coordinator_knows_the_names_and_lets_their_agents_back_in() -> None:
    story = two_on_one_host()
    story.restart()
    for name in "ab":
        story.back(name)
    story.join("c", host="node7")
    names = [agent.name for agent in story.state().members.values()]
    assert names == ["node7", "node7#2", "node7#3"]
