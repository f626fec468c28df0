"""Who sits where if hosts have places: neighbours, blocks, and who keeps its ranks."""

from collections import Counter
from itertools import groupby, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.model import AgentIdentity, Seat
from drumbeat.coordinator.core.phases.ranks import assign_seats, next_order
from tests.support.world import an_agent

PLACES = st.tuples(st.sampled_from("abc"), st.sampled_from("123"))


def placed(name: str, *places: str, block: str = "") -> AgentIdentity:
    return an_agent(name, placement=places, block=block)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[AgentIdentity], list[AgentIdentity]]:
    """Return who was seated, and who is present now: some of them, and newcomers."""
    before = draw(st.lists(PLACES, max_size=16))
    new = draw(st.lists(PLACES, max_size=8))
    old = [placed(f"h{number}", *place) for number, place in enumerate(before)]
    stay = draw(st.lists(st.booleans(), min_size=len(old), max_size=len(old)))
    newcomers = [placed(f"n{number}", *place) for number, place in enumerate(new)]
    present = [agent for agent, stays in zip(old, stay, strict=True) if stays] + newcomers
    return old, draw(st.permutations(present))


def seats_of(agents: list[AgentIdentity], agents_max: int = 100) -> dict[str, Seat]:
    return assign_seats(next_order(agents, {}, agents_max=agents_max))


def expect_neighbours(order: list[AgentIdentity]) -> None:
    for depth in (1, 2):
        places = [agent.placement[:depth] for agent in order]
        pieces = [place for place, _ in groupby(places)]
        assert len(pieces) == len(set(places)), pieces


@given(fleets(), st.integers(1, 24))
def test_ranks_have_no_holes_and_each_place_is_in_one_piece(
    fleet: tuple[list[AgentIdentity], list[AgentIdentity]], agents_max: int
) -> None:
    old, present = fleet
    order = next_order(present, seats_of(old), agents_max=agents_max)
    assert len(order) == min(agents_max, len(present))
    assert len({agent.incarnation for agent in order}) == len(order)
    assert {agent.incarnation for agent in order} <= {agent.incarnation for agent in present}
    expect_neighbours(order)


@given(fleets())
def test_the_same_hosts_keep_their_ranks(
    fleet: tuple[list[AgentIdentity], list[AgentIdentity]],
) -> None:
    _, present = fleet
    seats = seats_of(present)
    again = next_order(present[::-1], seats, agents_max=100)
    assert [agent.incarnation for agent in again] == list(seats)


@given(st.lists(PLACES, min_size=1, max_size=16), st.data())
def test_replacements_of_the_same_place_take_the_lost_ranks_and_no_one_else_moves(
    places: list[tuple[str, str]], data: st.DataObject
) -> None:
    seats = seats_of([placed(f"h{number}", *place) for number, place in enumerate(places)])
    lost = data.draw(st.sets(st.sampled_from(list(seats))))
    instead = {
        i: placed(f"new-{i}", *seats[i].agent.placement) if i in lost else seats[i].agent
        for i in seats
    }
    elsewhere = [placed(f"spare{number}", "z", "9") for number in range(3)]
    present = data.draw(st.permutations([*elsewhere, *instead.values()]))
    order = next_order(present, seats, agents_max=len(seats))
    assert [agent.placement for agent in order] == [seat.agent.placement for seat in seats.values()]
    for rank, incarnation in enumerate(seats):
        if incarnation not in lost:
            assert order[rank].incarnation == incarnation


@given(fleets(), st.integers(1, 4), st.integers(1, 6))
def test_only_whole_blocks_are_seated_each_in_one_piece(
    fleet: tuple[list[AgentIdentity], list[AgentIdentity]], size: int, blocks_max: int
) -> None:
    old, present = (
        [placed(a.host, a.placement[1], block=a.placement[0]) for a in agents] for agents in fleet
    )
    before = assign_seats(next_order(old, {}, agents_max=blocks_max * size, block_size=size))
    order = next_order(present, before, agents_max=blocks_max * size, block_size=size)
    sizes = Counter(agent.block for agent in order)
    there = Counter(agent.block for agent in present)
    whole = [block for block, count in there.items() if count >= size]
    assert len(order) == min(len(whole), blocks_max) * size
    assert set(sizes.values()) <= {size}
    assert len([block for block, _ in groupby(agent.block for agent in order)]) == len(sizes)


@pytest.mark.parametrize(
    ("present", "agents_max", "expected"),
    [
        # Mixed arrival, by the first label first.
        ("a1 b1 a2 b2 a1 b1", 9, "a1 a1 a2 b1 b1 b2"),
        # Room for three: the place that has three goes first, and is not torn.
        ("a1 b1 a1 b1 b1", 3, "b1 b1 b1"),
        # Room for more than it: the rest is of one place.
        ("a1 b1 a1 b1 b1", 4, "a1 b1 b1 b1"),
        ("a1 b1 a1 b1 b1", 5, "a1 a1 b1 b1 b1"),
    ],
)
def test_who_is_chosen_and_in_which_order(present: str, agents_max: int, expected: str) -> None:
    agents = [placed(f"h{number}", *place) for number, place in enumerate(present.split())]
    order = next_order(agents, {}, agents_max=agents_max)
    assert " ".join("".join(agent.placement) for agent in order) == expected


def test_a_new_place_takes_the_ranks_of_one_that_is_gone() -> None:
    before = [placed(f"{place}{number}", place) for place in "abc" for number in range(2)]
    present = [agent for agent in before if agent.placement != ("b",)]
    present += [placed("x0", "x"), placed("x1", "x")]
    order = next_order(present, seats_of(before), agents_max=6)
    assert [agent.host for agent in order] == ["a0", "a1", "x0", "x1", "c0", "c1"]


def test_places_stay_whole_over_200_losses_and_replacements() -> None:
    """Of 1,000 hosts in 64 racks; then neighbours differ as seldom as they can."""
    random = Random(1)
    racks = [f"r{random.randrange(64)}" for _ in range(1000)]
    seats = seats_of([placed(f"h{n}", rack) for n, rack in enumerate(racks)], 1000)
    for number in range(20):
        lost = random.sample(list(seats), 10)
        present = [seat.agent for i, seat in seats.items() if i not in lost]
        is_same = number % 2 == 0
        for i in lost:
            rack = seats[i].agent.placement[0] if is_same else f"r{random.randrange(64)}"
            present.append(placed(f"{number}-{i}", rack))
        order = next_order(present, seats, agents_max=1000)
        if is_same:
            kept = [
                seats[a.incarnation].group_rank == n
                for n, a in enumerate(order)
                if a.incarnation in seats
            ]
            assert kept == [True] * 990
        seats = assign_seats(order)
    racks = [seat.agent.placement[0] for seat in seats.values()]
    assert len(racks) == 1000
    # Of so many racks there can't be fewer borders.
    assert sum(one != other for one, other in pairwise(racks)) == len(set(racks)) - 1
