"""What ranks say of their collectives, and the sentences that users read about it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from drumbeat.coordinator.core.failures.collective_diagnosis import diagnose_collectives
from drumbeat.coordinator.core.failures.collective_evidence import SeenCalls, parse_ranks
from drumbeat.coordinator.core.failures.collective_hang import (
    CollectiveDiagnosis,
    describe_diagnosis,
)
from drumbeat.model import CollectiveCall, GroupCalls

_CALL = re.compile(r"(\w+)(?:>(\d+))?#(\d+)(\*?)(?: (\w+ \[.*\]))?(?: (\d+) s)?")
WORLD = "0 0-3"


def call(text: str) -> CollectiveCall:
    """Return a call, written as "op>peer#number* tensors age"; with * it has not ended."""
    match = _CALL.fullmatch(text)
    assert match, text
    op, peer, number, is_open, tensors, age_s = match.groups()
    return CollectiveCall(
        sequence=int(number),
        op=op,
        tensors=tensors or "float32 [5]",
        is_done=not is_open,
        age_s=float(age_s or (41 if is_open else 42)),
        peer=int(peer) if peer else None,
    )


def answer(groups: Mapping[str, str]) -> tuple[GroupCalls, ...]:
    """Return the groups of a rank, written as "name ranks label", and their calls."""
    found = []
    for group, calls in groups.items():
        name, ranks, label = [*group.split(" "), "", ""][:3]
        known = tuple(map(call, calls.split(", "))) if calls else ()
        found.append(GroupCalls(name=name, ranks=ranks, label=label, calls=known))
    return tuple(found)


def diagnose(
    answers: Mapping[int, Mapping[str, str]], size: int = 4, **more: Any
) -> CollectiveDiagnosis:
    seen = SeenCalls(range(size))
    for rank, groups in answers.items():
        seen.add(rank, answer(groups))
    return diagnose_collectives(seen, **more)


def same(ranks: Iterable[int], **groups: str) -> dict[int, dict[str, str]]:
    """Return ranks with the same calls in the group of all ranks."""
    return {rank: {WORLD: groups["world"]} for rank in ranks}


class Case(NamedTuple):
    """What ranks answer, what is said of it, and in which words."""

    answers: Mapping[int, Mapping[str, str]]
    verdict: str
    lines: str
    more: Mapping[str, Any] = {}
    size: int = 4


WAITS = "all_reduce#6, all_reduce#7*"
MESH = "0 0-3"
ROW, OTHER_ROW = "1 0-1 mesh_tp", "1 2-3 mesh_tp"
CASES = {
    "a rank has not entered a call": Case(
        {
            **{rank: {"0 0-7": "all_reduce#1042* float32 [25557032]"} for rank in range(7)},
            7: {"0 0-7": "all_reduce#1041 float32 [25557032]"},
        },
        "MISSING 7",
        """
        ranks 0-6 of 8 wait in all_reduce #1042 of process group 0 (float32 [25557032]) since 41 s
        rank 7 has not entered it; it finished #1041
        """,
        size=8,
    ),
    "two ranks have not entered a call, one of them has no group": Case(
        {**same((0, 1), world=WAITS), 2: {WORLD: "all_reduce#6"}, 3: {}},
        "MISSING 2,3",
        """
        ranks 0-1 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        rank 2 has not entered it; it finished #6
        rank 3 has not entered it; it has no process group
        """,
    ),
    "a rank has made no call of the group": Case(
        {**same((0, 1, 2), world="broadcast#1*"), 3: {"7 3": "all_reduce#1"}},
        "MISSING 3",
        """
        ranks 0-2 of 4 wait in broadcast #1 of process group 0 (float32 [5]) since 41 s
        rank 3 has not entered it
        """,
    ),
    "the only rank without an answer": Case(
        same((0, 1, 2), world=WAITS),
        "MISSING 3",
        """
        ranks 0-2 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        rank 3 gave no answer; all other ranks of the group have entered it
        """,
    ),
    "several ranks without an answer": Case(
        same((0, 1), world=WAITS),
        "UNKNOWN",
        """
        ranks 0-1 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        cannot tell which rank is the cause: ranks 2-3 gave no answer
        """,
    ),
    "a chain of groups": Case(
        {
            0: {MESH: WAITS, ROW: "all_gather#2"},
            1: {MESH: WAITS, ROW: "all_gather#2"},
            2: {MESH: "all_reduce#6", OTHER_ROW: "all_gather#2*"},
            3: {MESH: "all_reduce#6", OTHER_ROW: "all_gather#1"},
        },
        "MISSING 3",
        """
        ranks 0-1 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        rank 3 has not entered it; it finished #6
        """,
    ),
    "the cause is not in the group of most": Case(
        {
            0: {"5 0-2": "all_reduce#3*"},
            1: {"5 0-2": "all_reduce#3*"},
            2: {"5 0-2": "all_reduce#2", "6 2-3": "broadcast#4*"},
            3: {"6 2-3": "broadcast#3"},
        },
        "MISSING 3",
        """
        rank 2 waits in broadcast #4 of process group 6 of 2 ranks (float32 [5]) since 41 s
        rank 3 has not entered it; it finished #3
        """,
    ),
    "a receive without a send": Case(
        {0: {WORLD: "send>1#3"}, 1: {WORLD: "recv>0#4*"}, 2: {}, 3: {}},
        "MISSING 0",
        """
        rank 1 of 4 waits in recv #4 from rank 0 of process group 0 (float32 [5]) since 41 s
        rank 0 has not made the matching send; it finished #3
        """,
    ),
    "another size": Case(
        {**same((0, 1, 2), world=WAITS), 3: {WORLD: "all_reduce#6, all_reduce#7* float32 [6]"}},
        "MISMATCH 3",
        """
        ranks 0-2 call all_reduce #7 of process group 0 (float32 [5]), rank 3 calls all_reduce #7 \
with float32 [6]
        """,
    ),
    "another operation, though it has ended": Case(
        {**same((0, 1, 2), world=WAITS), 3: {WORLD: "broadcast#6 int64 [1], all_reduce#7*"}},
        "MISMATCH 3",
        """
        ranks 0-2 call all_reduce #6 of process group 0 (float32 [5]), rank 3 calls broadcast #6 \
with int64 [1]
        """,
    ),
    "two sizes, each of as many ranks": Case(
        {
            **same((0, 1), world=WAITS),
            **same((2, 3), world="all_reduce#6, all_reduce#7* float32 [6]"),
        },
        "MISMATCH",
        """
        ranks 0-1 call all_reduce #7 of process group 0 (float32 [5]), ranks 2-3 call \
all_reduce #7 with float32 [6]
        cannot tell which rank is the cause: no majority of the ranks made the same call
        """,
    ),
    "a rank leaves out a call of its row": Case(
        {
            0: {MESH: "all_reduce#7* float32 [5] 40 s", ROW: "all_gather#1"},
            1: {MESH: "all_reduce#6", ROW: "all_gather#2*"},
            2: {MESH: "all_reduce#7* float32 [5] 40 s", OTHER_ROW: "all_gather#2"},
            3: {MESH: "all_reduce#7* float32 [5] 40 s", OTHER_ROW: "all_gather#2"},
        },
        "CYCLE 0",
        """
        ranks 0,2-3 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 40 s
        rank 1 waits in all_gather #2 of process group mesh_tp of 2 ranks (float32 [5]) since 41 s
        rank 0 made its calls in another order than the other ranks
        """,
    ),
    "two groups of two ranks wait for each other": Case(
        {
            0: {"5 0-1": "all_reduce#1*", "6 0-1": ""},
            1: {"5 0-1": "", "6 0-1": "broadcast#1*"},
            2: {},
            3: {},
        },
        "CYCLE",
        """
        rank 0 waits in all_reduce #1 of process group 5 of 2 ranks (float32 [5]) since 41 s
        rank 1 waits in broadcast #1 of process group 6 of 2 ranks (float32 [5]) since 41 s
        cannot tell which rank is the cause: no majority of the ranks agrees on the order \
of these calls
        """,
    ),
    "a device runs two calls in another order": Case(
        {
            0: {MESH: "all_reduce#7* float32 [5] 39 s", ROW: "all_gather#2* float32 [5] 40 s"},
            1: {MESH: "all_reduce#7* float32 [5] 41 s", ROW: "all_gather#2* float32 [5] 40 s"},
            2: {
                MESH: "all_reduce#7* float32 [5] 41 s",
                OTHER_ROW: "all_gather#2* float32 [5] 40 s",
            },
            3: {
                MESH: "all_reduce#7* float32 [5] 41 s",
                OTHER_ROW: "all_gather#2* float32 [5] 40 s",
            },
        },
        "CYCLE 0",
        """
        ranks 0-3 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 39 s
        ranks 0-1 wait in all_gather #2 of process group mesh_tp of 2 ranks (float32 [5]) since 40 s
        rank 0 made its calls in another order than the other ranks
        """,
    ),
    "all ranks have entered a call": Case(
        same(range(4), world=WAITS),
        "STUCK",
        """
        ranks 0-3 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s; all \
ranks of the group have entered it: the network or a device may be stuck
        """,
    ),
    "both sides have made a point-to-point operation": Case(
        {0: {WORLD: "send>1#3*"}, 1: {WORLD: "recv>0#4*"}, 2: {}, 3: {}},
        "STUCK",
        """
        ranks 0-1 of 4 wait in send #3 to rank 1 of process group 0 (float32 [5]) since 41 s; \
both ranks have made it: the network or a device may be stuck
        """,
    ),
    "a slow rank": Case(
        {
            **same((0, 1, 2), world=WAITS),
            3: {WORLD: "all_reduce#6", "9 3": "all_reduce#80 float32 [5] 2 s"},
        },
        "MOVING 3",
        """
        ranks 0-2 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        rank 3 has not entered it, but made a call 2 s ago; it finished #6
        """,
    ),
    "all waits are young": Case(
        {
            **same((0, 1, 2), world="all_reduce#6, all_reduce#7* float32 [5] 2 s"),
            3: {WORLD: "all_reduce#6"},
        },
        "MOVING",
        """
        ranks 0-2 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 2 s
        ranks still make calls
        """,
        {"fresh_s": 5.0},
    ),
    "no rank waits": Case(
        same(range(4), world="all_reduce#7"),
        "NONE",
        "no rank waits in a collective",
    ),
    "no rank answers": Case(
        {},
        "UNKNOWN",
        "cannot tell which rank is the cause: no rank gave an answer",
    ),
    "the missing rank waits where no recorder sees it": Case(
        {**same((0, 1, 2), world=WAITS), 3: {WORLD: "all_reduce#6"}},
        "UNKNOWN",
        """
        ranks 0-2 of 4 wait in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        cannot tell which rank is the cause: rank 3 waits for other ranks in a call that \
is not recorded
        """,
        {"waiting": {3}},
    ),
    "most ranks have not entered a call": Case(
        {0: {WORLD: WAITS}, **same((1, 2, 3), world="all_reduce#6")},
        "UNKNOWN",
        """
        rank 0 of 4 waits in all_reduce #7 of process group 0 (float32 [5]) since 41 s
        cannot tell which rank is the cause: ranks 1-3 wait for no other rank, and are most of \
the group
        """,
    ),
    "a group whose ranks are not known": Case(
        {0: {"5": "all_reduce#2*"}, 1: {}, 2: {}, 3: {}},
        "UNKNOWN",
        "cannot tell which rank is the cause: rank 0 waits for ranks that are not known",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_diagnosis_and_its_sentences(name: str) -> None:
    case = CASES[name]
    found = diagnose(case.answers, case.size, **case.more)
    causes = ",".join(str(each.rank) for each in found.causes)
    assert f"{found.kind} {causes}".strip() == case.verdict
    wanted = [line.strip() for line in case.lines.strip().splitlines()]
    assert list(describe_diagnosis(found)) == wanted


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0-3,8-14:2", {0, 1, 2, 3, 8, 10, 12, 14}),
        ("15", {15}),
        ("0-15", set(range(16))),
        ("", None),
        ("0-16", None),
        ("3-1", None),
        ("0-3:0", None),
        ("0-999999999", None),
        ("0-15,0-15", None),
        ("-1", None),
        ("0,x", None),
    ],
)
def test_ranks_of_a_group_are_read_if_the_world_has_them(text: str, ranks: set[int] | None) -> None:
    assert parse_ranks(text, frozenset(range(16))) == ranks


def test_groups_of_one_name_and_other_ranks_are_others() -> None:
    found = diagnose(
        {
            0: {ROW: "all_gather#2*"},
            1: {ROW: "all_gather#2*"},
            2: {OTHER_ROW: "all_gather#1"},
            3: {OTHER_ROW: "all_gather#1"},
        }
    )
    assert (found.kind, found.waits[0].group_size) == ("STUCK", 2)


def test_a_group_is_the_same_however_its_ranks_are_written() -> None:
    answers = {0: {"0": WAITS}, 1: {"0 0-3": WAITS}, 2: {"0 0,1,2-3": WAITS}}
    found = diagnose({**answers, 3: {"0 0-3": "all_reduce#6"}})
    assert [each.rank for each in found.causes] == [3]
    assert found.waits[0].ranks == (0, 1, 2)


@pytest.mark.parametrize(
    "op", ["all_to_all", "scatter", "gather", "all_gather_v", "reduce_scatter_v"]
)
def test_uneven_calls_are_no_mismatch(op: str) -> None:
    answers = {rank: {WORLD: f"{op}#1* float32 [{rank}]"} for rank in range(4)}
    assert diagnose(answers).kind == "STUCK"


def test_other_sizes_of_a_call_that_all_ranks_have_left_are_no_mismatch() -> None:
    answers = {rank: {WORLD: f"all_gather#6 float32 [{rank}], all_reduce#7*"} for rank in range(3)}
    found = diagnose({**answers, 3: {WORLD: "all_gather#6 float32 [3]"}})
    assert found.kind == "MISSING"


def test_the_first_of_several_pending_calls_counts() -> None:
    pending = "all_reduce#6, all_reduce#7*, all_reduce#8*, all_reduce#9*"
    found = diagnose({**same((0, 1, 2), world=pending), 3: {WORLD: "all_reduce#6"}})
    assert found.waits[0].call.sequence == 7


def test_many_causes_take_a_few_lines_and_hostile_text_one() -> None:
    size = 1000
    op = f"x{'y' * 500}\n\x1b[31m"
    calls = CollectiveCall(sequence=9, op=op, tensors=op)
    group = GroupCalls(name=op, ranks="", calls=(calls,))
    seen = SeenCalls(range(size))
    for rank in range(size):
        mine = CollectiveCall(sequence=1 + rank % 5, op="all_reduce", is_done=True, age_s=50.0)
        waits = CollectiveCall(sequence=9, op=op, tensors=op, age_s=41.0)
        is_waiting = rank % 7 == 0
        world = GroupCalls(name="0", ranks="", label=op, calls=(waits if is_waiting else mine,))
        seen.add(rank, (world, group, world, group) if is_waiting else (world,))
    lines = describe_diagnosis(diagnose_collectives(seen))
    assert len(lines) <= 6
    assert all(len(line) < 600 and line.isprintable() for line in lines), lines


def test_answers_of_strangers_and_second_answers_are_left_out() -> None:
    seen = SeenCalls(range(2))
    seen.add(0, answer({"0 0-1": "all_reduce#1*"}))
    seen.add(0, answer({"0 0-1": "all_reduce#5"}))
    seen.add(7, answer({"0 0-1": "all_reduce#1*"}))
    seen.add(1, answer({"5 0": "all_reduce#1*", "0 0-1": ""}))
    found = diagnose_collectives(seen)
    assert [each.rank for each in found.causes] == [1]
    assert found.waits[0].ranks == (0,)


def test_a_rank_that_may_have_made_calls_before_the_known_ones_is_named() -> None:
    eight = ", ".join(f"all_reduce#{number}*" for number in range(7, 15))
    answers = {**same((0, 1, 2), world=eight), 3: {WORLD: "all_reduce#6"}}
    found = diagnose(answers)
    assert (found.kind, [each.rank for each in found.causes]) == ("MISSING", [3])
    pairs = ", ".join(f"send>0#{number}" for number in range(1, 9))
    found = diagnose({**same((0, 1, 2), world=WAITS), 3: {WORLD: pairs}})
    assert (found.kind, [each.rank for each in found.causes]) == ("MISSING", [3])


def test_a_silent_rank_is_not_named_if_those_that_wait_made_different_calls() -> None:
    rows = {0: {ROW: "all_gather#2"}, 1: {ROW: "all_gather#2"}, 2: {OTHER_ROW: "all_gather#1"}}
    found = diagnose({rank: {MESH: WAITS, **row} for rank, row in rows.items()})
    assert (found.kind, found.causes) == ("UNKNOWN", ())
    rows[2] = {OTHER_ROW: "all_gather#2"}
    found = diagnose({rank: {MESH: WAITS, **row} for rank, row in rows.items()})
    assert [each.rank for each in found.causes] == [3]


def test_two_silent_ranks_are_not_named_though_most_ranks_wait() -> None:
    found = diagnose({rank: {"0 0-7": WAITS} for rank in range(6)}, size=8)
    assert (found.kind, found.causes) == ("UNKNOWN", ())


def test_of_two_orders_with_as_many_ranks_none_is_wrong() -> None:
    first = {rank: {"5 0-3": "all_reduce#1*", "6 0-3": ""} for rank in (0, 1)}
    second = {rank: {"5 0-3": "", "6 0-3": "broadcast#1*"} for rank in (2, 3)}
    found = diagnose({**first, **second})
    assert (found.kind, found.causes) == ("CYCLE", ())


def test_a_mismatch_after_the_call_that_ranks_wait_in_is_not_the_cause() -> None:
    answers = {rank: {WORLD: f"{WAITS}, all_reduce#8* float32 [{rank}]"} for rank in range(3)}
    found = diagnose({**answers, 3: {WORLD: "all_reduce#6"}})
    assert found.kind == "MISSING"


@pytest.mark.parametrize(("size", "more"), [(5, "1 more rank makes"), (6, "2 more ranks make")])
def test_of_many_different_calls_a_few_are_shown(size: int, more: str) -> None:
    answers = {rank: {"0": f"all_reduce#1* float32 [{rank}]"} for rank in range(size)}
    line, _ = describe_diagnosis(diagnose(answers, size))
    assert line.endswith(f"rank 3 calls all_reduce #1 with float32 [3], {more} other calls")
