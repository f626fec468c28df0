"""Who sits where: an independent restatement of TorchElastic's arithmetic, and stickiness."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.phases.ranks import assign_seats, first_order, group_order
from tests.support.world import an_agent

HOSTS = st.lists(
    st.tuples(st.sampled_from(["trainer", "reader", "server"]), st.integers(1, 9)),
    min_size=1,
    max_size=12,
)


def torch_ranks(infos: list[tuple[str, int]]) -> list[dict[str, list[int] | int]]:
    """Return what TorchElastic would give to each agent, from (role, workers) by group rank.

    Stated anew, worker by worker: everyone stands in one line in group rank
    order, and in a second line of its own role.
    """
    line: list[int] = []
    role_lines: dict[str, list[int]] = defaultdict(list)
    for group_rank, (role, size) in enumerate(infos):
        line += [group_rank] * size
        role_lines[role] += [group_rank] * size
    return [
        {
            "ranks": [place for place, who in enumerate(line) if who == group_rank],
            "role_ranks": [p for p, who in enumerate(role_lines[role]) if who == group_rank],
            "role_world_size": len(role_lines[role]),
        }
        for group_rank, (role, _) in enumerate(infos)
    ]


def agents(infos: list[tuple[str, int]]) -> list[AgentIdentity]:
    return [
        an_agent(f"h{index}", role=role, local_world_size=size)
        for index, (role, size) in enumerate(infos)
    ]


@given(HOSTS)
def test_seats_agree_with_torch_elastic(infos: list[tuple[str, int]]) -> None:
    seats = assign_seats(agents(infos)).values()

    def span(first: int, size: int) -> list[int]:
        return list(range(first, first + size))

    assert torch_ranks(infos) == [
        {
            "ranks": span(seat.rank_first, seat.agent.local_world_size),
            "role_ranks": span(seat.role_rank_first, seat.agent.local_world_size),
            "role_world_size": seat.role_world_size,
        }
        for seat in seats
    ]


@given(HOSTS)
def test_ranks_are_a_permutation_of_the_world(infos: list[tuple[str, int]]) -> None:
    seats = assign_seats(agents(infos)).values()
    ranks = [s.rank_first + local for s in seats for local in range(s.agent.local_world_size)]
    assert sorted(ranks) == list(range(sum(size for _, size in infos)))


def test_roles_and_mixed_sizes_by_hand() -> None:
    seats = assign_seats(agents([("trainer", 2), ("reader", 1), ("trainer", 3), ("reader", 4)]))
    table = [
        (s.group_rank, s.rank_first, s.role_rank_first, s.role_world_size) for s in seats.values()
    ]
    assert table == [(0, 0, 0, 5), (1, 2, 0, 5), (2, 3, 2, 5), (3, 6, 1, 5)]


def order_of(names: str, previous: dict[str, int]) -> str:
    return "".join(agent.host for agent in group_order([an_agent(n) for n in names], previous))


@pytest.mark.parametrize(
    ("names", "previous", "expected"),
    [
        ("abc", "abc", "abc"),
        ("cab", "abc", "abc"),
        ("acx", "abc", "axc"),  # a newcomer takes the hole
        ("ac", "abc", "ac"),  # fewer: who is beyond the end moves down
        ("bcd", "abcd", "dbc"),
        ("cd", "abcd", "cd"),  # all beyond the end: they keep their order
        ("xcd", "abcd", "dxc"),  # movers come before newcomers
        ("abxy", "ab", "abxy"),  # more: newcomers come last, in the order given
        ("xyab", "ab", "abxy"),
        ("xy", "ab", "xy"),  # nobody is left
    ],
)
def test_group_ranks_are_sticky(names: str, previous: str, expected: str) -> None:
    ranks = {f"{name}.1": rank for rank, name in enumerate(previous)}
    assert order_of(names, ranks) == expected


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 4))
def test_survivors_below_the_new_size_keep_their_rank(
    shuffled: list[int], lost: int, new: int
) -> None:
    survivors = [an_agent(f"h{i}") for i in shuffled[lost:]]
    newcomers = [an_agent(f"n{i}") for i in range(new)]
    previous = {f"h{i}.1": i for i in range(8)}
    order = group_order([*newcomers, *survivors], previous)
    assert sorted(a.host for a in order) == sorted(a.host for a in [*survivors, *newcomers])
    for rank, agent in enumerate(order):
        before = previous.get(agent.incarnation)
        if before is not None and before < len(order):
            assert rank == before


def test_first_order_is_by_host_with_numbers_as_numbers() -> None:
    names = ["node-10", "node-9", "node-1", "gpu2", "10", "9"]
    ordered = [agent.host for agent in first_order(an_agent(name) for name in names)]
    assert ordered == ["gpu2", "node-1", "node-9", "node-10", "9", "10"]


def test_agents_of_one_host_keep_the_order_given() -> None:
    two = [an_agent("h", incarnation="second"), an_agent("h", incarnation="first")]
    assert first_order(two) == two


@pytest.mark.slow
@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_host_name_can_be_ordered(names: list[str]) -> None:
    ordered = first_order(an_agent(name) for name in names)
    assert sorted(agent.host for agent in ordered) == sorted(names)


@pytest.mark.parametrize("name", ["²", "h²", "①", "h٣"])
def test_a_host_named_with_odd_digits_can_be_ordered(name: str) -> None:
    assert [agent.host for agent in first_order([an_agent(name)])] == [name]
