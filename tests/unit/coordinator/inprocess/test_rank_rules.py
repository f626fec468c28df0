"""Which ranks workers get: each rule alone, and several in order."""

from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.inprocess.rank_rules import (
    FILL_GAPS,
    SHIFT_RANKS,
    Ranking,
    RankRule,
    RuleKind,
    assign,
)
from tests.support.inprocess.rules import active_divisor, active_max, group_sizes

EIGHT = list(range(8))
PAIRS = ["0", "0", "1", "1", "2", "2", "3", "3"]
NO_GROUPS = [""] * 64


def ranking(
    *rules: RankRule,
    gone: set[int] = frozenset(),  # type: ignore[assignment]
    order: list[int] = EIGHT,
    groups: list[str] = NO_GROUPS,
) -> Ranking:
    found = assign(order, gone=gone, groups=groups, rules=rules)
    assert isinstance(found, Ranking), found
    return found


def shortage(*rules: RankRule, gone: set[int], **limits: int) -> str:
    found = assign(EIGHT, gone=gone, groups=PAIRS, rules=rules, **limits)
    assert isinstance(found, str), found
    return found


def test_all_stay_where_they_are_if_nobody_is_gone() -> None:
    for rules in ([], [SHIFT_RANKS], [FILL_GAPS]):
        found = ranking(*rules, order=[3, 0, 2, 1])
        assert found == Ranking(order=[3, 0, 2, 1], active_world_size=4, cuts=(), discarded=())


def test_shifting_keeps_the_order() -> None:
    assert ranking(SHIFT_RANKS, gone={1, 4, 5}).order == [0, 2, 3, 6, 7]


def test_filling_moves_the_highest_into_the_gaps() -> None:
    assert ranking(FILL_GAPS, gone={1, 4, 5}).order == [0, 6, 2, 3, 7]


def test_filling_leaves_out_the_dead_among_the_highest() -> None:
    assert ranking(FILL_GAPS, gone={0, 7}).order == [6, 1, 2, 3, 4, 5]
    assert ranking(FILL_GAPS, gone={6, 7}).order == [0, 1, 2, 3, 4, 5]


def test_rules_work_on_ranks_and_not_on_the_numbers_of_workers() -> None:
    assert ranking(FILL_GAPS, gone={5}, order=[5, 7, 3, 1]).order == [1, 7, 3]
    assert ranking(SHIFT_RANKS, gone={5}, order=[5, 7, 3, 1]).order == [7, 3, 1]


def test_who_left_long_ago_is_no_gap() -> None:
    found = ranking(SHIFT_RANKS, gone={0, 1, 2}, order=[3, 2, 4])
    assert (found.order, found.cuts[0].removed) == ([3, 4], (2,))


def test_a_group_dies_with_one_of_its_workers() -> None:
    found = ranking(group_sizes([2]), SHIFT_RANKS, gone={1, 4, 5}, groups=PAIRS)
    assert found.order == [2, 3, 6, 7]
    assert found.discarded == (0,)


def test_a_group_may_lose_some_if_its_new_size_is_allowed() -> None:
    groups = ["a"] * 4 + ["b"] * 4
    found = ranking(group_sizes([3, 4]), SHIFT_RANKS, gone={0, 4, 5}, groups=groups)
    assert (found.order, found.discarded) == ([1, 2, 3], (6, 7))


def test_workers_without_a_group_are_not_judged() -> None:
    groups = ["a", "a", "", "", "b", "b", "b", ""]
    found = ranking(group_sizes([2]), SHIFT_RANKS, gone=set(), groups=groups)
    assert (found.order, found.discarded) == ([0, 1, 2, 3, 7], (4, 5, 6))


def test_moving_rules_may_come_in_several_steps() -> None:
    found = ranking(FILL_GAPS, group_sizes([2]), SHIFT_RANKS, gone={1}, groups=PAIRS)
    # 7 fills the gap of 1; then 0 is alone in its group, and 6 and 7 are still two.
    assert found.order == [7, 2, 3, 4, 5, 6]
    assert [(cut.removed, cut.is_filled) for cut in found.cuts] == [((1,), True), ((0,), False)]


def test_active_rules_bound_who_calls_the_function() -> None:
    assert ranking(SHIFT_RANKS, active_max(5)).active_world_size == 5
    assert ranking(SHIFT_RANKS, active_max(50)).active_world_size == 8
    assert ranking(SHIFT_RANKS, active_divisor(3)).active_world_size == 6
    assert ranking(active_max(7), active_divisor(2)).active_world_size == 6
    assert ranking(active_divisor(4), active_max(7)).active_world_size == 7


def test_active_rules_count_what_is_left_in_the_end() -> None:
    found = ranking(active_divisor(4), SHIFT_RANKS, gone={0})
    assert (len(found.order), found.active_world_size) == (7, 4)


def test_a_shortage_says_what_is_short() -> None:
    most = {0, 1, 2, 3, 4, 5}
    assert shortage(SHIFT_RANKS, gone=set(EIGHT)) == "no worker is left"
    assert (
        shortage(SHIFT_RANKS, gone=most, world_size_min=3)
        == "2 workers left, at least 3 must take part"
    )
    assert (
        shortage(SHIFT_RANKS, active_max(1), gone=most, active_world_size_min=2)
        == "of 2 workers left, 1 would call the function, at least 2 must"
    )
    assert (
        shortage(SHIFT_RANKS, active_divisor(4), gone=most)
        == "of 2 workers left, 0 would call the function, at least 1 must"
    )
    assert shortage(gone={1}) == "no rule says who takes the ranks of 1 worker"
    assert (
        shortage(SHIFT_RANKS, group_sizes([2]), gone={1})
        == "no rule says who takes the ranks of 1 worker"
    )


def test_minima_are_met_by_just_as_many() -> None:
    found = assign(
        EIGHT,
        gone={0},
        groups=PAIRS,
        rules=[SHIFT_RANKS, active_max(3)],
        world_size_min=7,
        active_world_size_min=3,
    )
    assert isinstance(found, Ranking)


def test_sizes_of_groups_are_bits() -> None:
    rule = RankRule(kind=RuleKind.GROUPS, allowed=b"\x02\x03")
    assert [size for size in range(100) if rule.allows(size)] == [1, 8, 9]
    assert str(RankRule(kind=RuleKind.GROUPS, allowed=b"\x80")) == "GROUPS 7"
    assert str(group_sizes(range(1, 12))) == "GROUPS 1 2 3 4 5 6 7 8 and 3 more"


@given(
    order=st.permutations(range(12)),
    gone=st.sets(st.integers(0, 11), max_size=11),
    rules=st.lists(
        st.sampled_from([SHIFT_RANKS, FILL_GAPS, group_sizes([2, 3]), group_sizes([1])]),
        max_size=4,
    ),
    groups=st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=12, max_size=12),
)
def test_an_order_is_the_fold_of_its_cuts(
    order: list[int], gone: set[int], rules: list[RankRule], groups: list[str]
) -> None:
    found = assign(order, gone=gone, groups=groups, rules=rules)
    if isinstance(found, Ranking):
        for cut in found.cuts:
            order = cut.apply(order)
        assert order == found.order
        removed = [worker for cut in found.cuts for worker in cut.removed]
        assert sorted([*removed, *found.order]) == list(range(12))
        assert set(removed) == gone | set(found.discarded)


@given(order=st.permutations(range(9)), gone=st.sets(st.integers(0, 8), max_size=8))
def test_filling_moves_nobody_who_need_not(order: list[int], gone: set[int]) -> None:
    new = ranking(FILL_GAPS, order=order, gone=gone).order
    for rank, worker in enumerate(new):
        assert order[rank] in (gone | {worker}), "moved although nobody had to"
    movers = [worker for rank, worker in enumerate(new) if order[rank] != worker]
    assert movers == [worker for worker in order[len(new) :] if worker not in gone]
