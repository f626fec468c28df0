"""What people call an agent: by a name of its own, by its host's, and never two alike."""

from functools import partial
from itertools import chain, count
from random import Random

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DrainAsked
from drumbeat.coordinator.core.membership.admission import Names
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
    assert Names(["node7#3"]).add(an_agent("b", host="node7")).name == "node7"
    assert Names(["node7", "node7#3"]).add(an_agent("c", host="node7")).name == "node7#2"
    names = Names(["node7", "node7#2", "node7#3"])
    assert names.add(an_agent("d", host="node7")).name == "node7#4"


def test_a_name_stays_free_until_a_member_has_it() -> None:
    names = Names(["node7"])
    for _ in range(2):
        assert names.numbered(an_agent("b", host="node7")).name == "node7#2"
    names.add(an_agent("b", host="node7"))
    assert names.numbered(an_agent("c", host="node7")).name == "node7#3"


def test_the_lowest_free_number_is_given_whoever_came_and_went() -> None:
    """Compared with a search, with names that look numbered, and after a replay."""
    random = Random(7)
    names, taken = Names([]), list[str]()
    for number in range(2_000):
        if number % 100 == 99:
            names = Names(taken)
        if taken and random.random() < 0.48:
            gone = taken.pop(random.randrange(len(taken)))
            names.discard(gone)
            continue
        asked = random.choice(["a", "a", "a", "b", "a#2", "a#3", "a#03", "a#x", "#2"])
        numbers = (f"{asked}#{n}" for n in count(2))
        lowest = next(name for name in chain([asked], numbers) if name not in taken)
        assert names.add(an_agent("i", host=asked)).name == lowest
        taken.append(lowest)


def test_equal_names_cost_no_search_however_many_there_are() -> None:
    looks = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names, agent = Names([]), an_agent("a", host="box")
    for _ in range(1_000):
        names.add(agent)
    taken = names._taken
    names._taken = {Counted(name) for name in taken}
    for number in (2, 500, 700):
        names.discard(f"box#{number}")
    looks = 0
    assert [names.add(agent).name for _ in range(4)] == ["box#2", "box#500", "box#700", "box#1001"]
    assert looks < 20


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
