"""Which processes count as left by a dead agent."""

from drumbeat.agent.host.leftovers import Process, leftovers


def process(parent: int = 1, *, marked: bool = False, agent: bool = False) -> Process:
    return Process(parent, marked, agent)


def test_what_is_marked_is_left_with_all_below_it() -> None:
    found = {5: process(marked=True), 6: process(5), 7: process(6), 8: process()}
    assert leftovers(found) == {5, 6, 7}


def test_a_living_agent_below_a_leftover_is_spared_with_its_workers_and_what_it_is_below() -> None:
    found = {
        5: process(marked=True),
        6: process(5, marked=True, agent=True),
        7: process(6, marked=True),
        8: process(5, marked=True),
    }
    assert leftovers(found) == {8}


def test_a_number_that_was_given_anew_ends_the_line() -> None:
    assert leftovers({5: process(6, marked=True), 6: process(5)}) == {5, 6}
