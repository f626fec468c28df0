"""Who causes a hang, by what was seen of all ranks."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.failures.hang_diagnosis import (
    CAUSES_MAX,
    GROUPS_MAX,
    RANKS_CHARACTERS_MAX,
    STACK_CHARACTERS_MAX,
    diagnose,
)
from drumbeat.coordinator.core.failures.hang_evidence import SeenRanks
from drumbeat.model import HangKind
from tests.support.hangs import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    COPY,
    LOADER,
    LOCK,
    a_limit,
    a_stack,
    causes,
    judged,
    seen,
    unreached,
)


@pytest.mark.parametrize("expired", [(0,), (1,), (0, 1)])
def test_of_two_ranks_the_one_in_its_loader_causes_the_hang(expired: tuple[int, ...]) -> None:
    found = judged(seen(0, BACKWARD), seen(1, LOADER), expired=expired)
    assert causes(found) == [1]
    assert found.summary == (
        "rank 1 on h1 is in __getitem__ (data.py:9), 1 rank waits in backward (train.py:20) "
        "(no further heartbeat within 20 s)"
    )
    (cause,) = found.causes
    assert (cause.stacks, cause.place) == (LOADER, "in __getitem__ (data.py:9)")
    assert [(g.ranks, g.is_cause) for g in found.groups] == [("1", True), ("0", False)]
    assert "__getitem__" in found.groups[0].stack
    assert "Thread" not in found.groups[0].stack


def test_the_limit_that_was_exceeded_by_most_is_told() -> None:
    limits = {0: a_limit(elapsed_s=30.0), 1: a_limit(elapsed_s=90.0, limit_s=60.0)}
    limits[2] = a_limit(elapsed_s=95.0, limit_s=90.0)
    found = diagnose(3, SeenRanks.of([seen(rank) for rank in range(3)]), limits, now=500.0)
    assert found.limit == limits[1]


def test_the_cause_is_said_to_be_at_an_earlier_step_if_it_is() -> None:
    found = judged(seen(0), seen(1, LOCK, step=6), seen(2))
    assert found.summary.startswith("rank 1 on h1 is in get (cache.py:31) at step 6, 2 ranks wait ")


@pytest.mark.parametrize("stacks", [ALL_REDUCE, BACKWARD, COPY])
def test_ranks_that_are_all_at_one_place_do_not_tell(stacks: str) -> None:
    found = judged(*(seen(rank, stacks) for rank in range(4)), expired=(0, 1, 2, 3))
    assert causes(found) == []
    assert found.summary == (
        "cannot tell which rank causes the hang: all ranks are at one place and at one step "
        "(no further heartbeat within 20 s)"
    )
    assert [group.ranks for group in found.groups] == ["0-3"]


def test_a_stopped_rank_causes_the_hang_whichever_others_are_busy() -> None:
    found = judged(seen(0), seen(1, "", is_stopped=True), seen(2, LOADER))
    assert causes(found) == [1]
    assert found.summary.startswith("rank 1 on h1 is stopped, 1 rank waits ")


def test_ranks_that_are_all_stopped_do_not_tell() -> None:
    found = judged(seen(0, "", is_stopped=True), seen(1, "", is_stopped=True))
    assert "cannot tell which rank causes the hang: all ranks are stopped" in found.summary


def test_the_ranks_of_the_one_host_that_does_not_answer_cause_the_hang() -> None:
    found = judged(seen(0, host=0), seen(1, host=0), unreached(2, host=1), unreached(3, host=1))
    assert causes(found) == [2, 3]
    assert found.summary.startswith(
        "ranks 2-3 on h1 are on a host that does not answer, 2 ranks wait "
    )
    assert found.causes[0].notes == "its agent has not answered within 4 s"


def test_of_two_hosts_that_do_not_answer_none_is_named_by_chance() -> None:
    found = judged(seen(0), seen(1), unreached(2), unreached(3))
    assert causes(found) == []
    assert "cannot tell which rank causes the hang: 2 ranks gave no stack" in found.summary


def test_a_host_that_does_not_answer_is_innocent_if_another_rank_waits_for_none() -> None:
    assert causes(judged(seen(0), seen(1, LOADER), unreached(2))) == [1]


def test_a_host_that_does_not_answer_is_not_named_if_a_rank_that_waits_is_the_odd_one_out() -> None:
    ranks = [seen(0), seen(1), seen(2), seen(3, BARRIER), unreached(4)]
    assert causes(judged(*ranks)) == []
    assert causes(judged(*ranks[:4])) == [3]
    assert causes(judged(*ranks[:3], ranks[4])) == [4]


def test_a_rank_whose_interpreter_does_not_answer_causes_the_hang() -> None:
    found = judged(seen(0), seen(1, "", problem="no answer within 2 s"), seen(2))
    assert causes(found) == [1]
    assert found.causes[0].notes == "no answer within 2 s"
    assert found.summary.startswith("rank 1 on h1 is silent, 2 ranks wait ")


def test_a_rank_that_never_attached_is_not_blamed_for_its_silence() -> None:
    """Many programs use the SDK in rank 0 alone."""
    silent = [seen(rank, "", runtime_age_s=None, heartbeat_age_s=None) for rank in (1, 2)]
    assert causes(judged(seen(0), *silent)) == []


def test_a_silent_rank_is_not_told_from_a_host_that_does_not_answer() -> None:
    assert causes(judged(seen(0), seen(1, ""), unreached(2))) == []


def test_a_rank_that_keeps_the_interpreters_lock_waits_for_no_other_rank() -> None:
    ranks = [seen(0), seen(1), seen(2)]
    assert causes(judged(*ranks, expired=(1,), kind=HangKind.RUNTIME)) == [1]
    assert causes(judged(*ranks, expired=(1,), kind=HangKind.TIMER)) == []


def test_ranks_that_go_on_are_left_out() -> None:
    moving = [seen(rank, LOADER, heartbeat_age_s=0.2) for rank in (2, 3)]
    found = judged(seen(0), seen(1, LOCK), *moving)
    assert causes(found) == [1]
    assert [group.ranks for group in found.groups] == ["1", "0"]


def test_a_rank_that_exceeds_a_limit_is_judged_though_it_had_a_heartbeat() -> None:
    found = judged(seen(0), seen(1, LOADER, heartbeat_age_s=0.2), expired=(0, 1))
    assert causes(found) == [1]


def test_a_stopped_rank_is_judged_though_it_had_a_heartbeat() -> None:
    assert causes(judged(seen(0), seen(1, "", is_stopped=True, heartbeat_age_s=1.0))) == [1]


def test_what_other_ranks_did_since_a_long_limit_began_does_not_acquit_them() -> None:
    """A limit of an hour on an epoch expires; the round stands still for ten minutes."""
    ranks = [seen(0, heartbeat_age_s=600.0), seen(1, LOADER, heartbeat_age_s=599.0)]
    found = judged(*ranks, kind=HangKind.SECTION, scope="epoch", limit_s=3600.0, elapsed_s=3600.0)
    assert causes(found) == [1]
    assert found.since_s == 500.0 - 600.0


def test_a_limit_that_is_exceeded_while_all_train_is_that_ranks_own() -> None:
    step: dict[str, Any] = {"step_time_s": 0.1}
    ranks = [seen(rank, ALL_REDUCE, heartbeat_age_s=0.12 * rank, **step) for rank in range(3)]
    found = judged(*ranks, kind=HangKind.TIMER, scope="epoch", limit_s=60.0, elapsed_s=60.1)
    assert causes(found) == [0]


def test_a_rank_that_exceeds_a_limit_alone_and_waits_for_none_is_the_cause() -> None:
    others = [seen(rank, COPY, heartbeat_age_s=None, step=None) for rank in (1, 2)]
    assert causes(judged(seen(0, LOCK), *others, kind=HangKind.TIMER)) == [0]


def test_a_rank_whose_interpreter_does_not_end_is_the_cause_where_its_peers_have_ended() -> None:
    found = judged(seen(0, ""), seen(1, LOCK), expired=(1,), kind=HangKind.EXIT, is_held=False)
    assert causes(found) == [1]


def test_a_rank_that_waits_for_others_while_it_ends_is_not_the_cause() -> None:
    found = judged(seen(0, BARRIER), seen(1, LOADER), expired=(0,), kind=HangKind.EXIT)
    assert causes(found) == [1]


def test_ranks_with_the_same_timer_open_for_as_long_exceed_it_as_well() -> None:
    fields: dict[str, Any] = {
        "heartbeat_age_s": None,
        "step": None,
        "scope": "step",
        "scope_age_s": 29.0,
    }
    found = judged(
        seen(0, LOCK, **fields), seen(1, COPY, **fields), kind=HangKind.TIMER, scope="step"
    )
    assert causes(found) == []


def test_the_one_that_waits_elsewhere_than_most_is_the_cause() -> None:
    assert causes(
        judged(*(seen(rank, BARRIER if rank == 2 else ALL_REDUCE) for rank in range(5)))
    ) == [2]


def test_ranks_that_wait_at_many_places_do_not_tell() -> None:
    """The stages of a pipeline wait in different calls."""
    ranks = [seen(0, BARRIER), *(seen(rank) for rank in range(1, 7)), seen(7, BACKWARD)]
    assert causes(judged(*ranks)) == []
    half = [seen(rank, BARRIER if rank < 2 else ALL_REDUCE) for rank in range(4)]
    assert causes(judged(*half)) == []


def test_the_one_at_an_earlier_step_is_the_cause_if_all_wait_at_one_place() -> None:
    assert causes(judged(*(seen(rank, step=6 if rank == 1 else 7) for rank in range(3)))) == [1]


def test_two_signs_that_are_at_odds_do_not_tell() -> None:
    ranks = [seen(0), seen(1, BARRIER), seen(2, step=6), seen(3), seen(4)]
    found = judged(*ranks)
    assert causes(found) == []
    assert "elsewhere than most are not those at an earlier step" in found.summary


def test_ranks_without_a_stack_are_not_at_one_place() -> None:
    """They do not make the only one that gave a stack the odd one out."""
    found = judged(seen(0, COPY), *(unreached(rank) for rank in (1, 2, 3)))
    assert causes(found) == []


def test_a_rank_that_waits_is_never_named_beside_those_that_do_not() -> None:
    assert causes(judged(seen(0), seen(1, LOADER), seen(2, LOADER))) == [1, 2]


def test_without_any_stack_no_rank_is_named() -> None:
    found = judged(unreached(0), unreached(1))
    assert causes(found) == []
    assert "no rank gave a stack" in found.summary
    assert causes(judged(expired=(0,))) == []


def test_a_rank_of_a_world_of_one_is_the_cause() -> None:
    assert causes(judged(seen(0, ALL_REDUCE))) == [0]
    assert causes(judged(seen(0, ""))) == [0]


def test_the_thread_that_waits_for_ranks_counts_where_the_first_waits_for_it() -> None:
    main = a_stack(("/usr/lib/python3.12/threading.py", 1149, "join"), ("/home/u/t.py", 8, "main"))
    found = judged(seen(0, f"{main}\n{ALL_REDUCE}"), seen(1, f"{main}\n{LOADER}"))
    assert causes(found) == [1]


@pytest.mark.parametrize("line", ["work.wait()", "loss.item()"])
def test_a_call_of_c_that_may_wait_is_innocent_by_the_text_of_its_line(line: str) -> None:
    found = judged(seen(0, COPY, source_line=line), seen(1, LOADER))
    assert causes(found) == [1]


def test_causes_groups_ranks_and_stacks_are_bounded() -> None:
    deep = [("/home/u/very/long/name/of/a/file.py", 1, "f" * 90)] * 300
    ranks = [
        *(seen(rank, a_stack(("/home/u/x.py", rank, "f"), *deep)) for rank in range(40)),
        *(seen(rank) for rank in range(40, 1000, 2)),
    ]
    found = judged(*ranks, expired=tuple(range(40)))
    assert (causes(found), found.causes_count) == (list(range(CAUSES_MAX)), 40)
    assert (len(found.groups), found.groups_count) == (GROUPS_MAX, 41)
    assert "rank 3 on h3" in found.summary
    assert len(found.summary) < 1_000
    assert max(len(group.ranks) for group in found.groups) <= RANKS_CHARACTERS_MAX
    assert max(len(group.stack) for group in found.groups) == STACK_CHARACTERS_MAX
    assert max(len(cause.stacks) for cause in found.causes) == STACK_CHARACTERS_MAX
    assert len(msgspec.json.encode(found)) < 64 * 1024


def test_the_causes_are_counted_in_the_summary() -> None:
    found = judged(*(seen(rank, LOADER if rank < 7 else ALL_REDUCE) for rank in range(9)))
    assert "rank 3 on h3 and 3 more are in __getitem__" in found.summary


def test_the_ranks_of_a_long_list_are_cut() -> None:
    found = judged(*(seen(rank, BARRIER if rank % 2 else ALL_REDUCE) for rank in range(2000)))
    assert {len(group.ranks) for group in found.groups} == {RANKS_CHARACTERS_MAX}


@pytest.mark.slow
def test_what_is_told_of_80_000_ranks_is_small() -> None:
    stacks = {rank: LOADER if rank == 77_777 else ALL_REDUCE for rank in range(80_000)}
    together = SeenRanks()
    for rank, text in stacks.items():
        together.add(seen(rank, text, host=rank // 8, local_rank=rank % 8))
    limits = {rank: a_limit(local_rank=rank % 8) for rank in range(80_000)}
    found = diagnose(3, together, limits, now=500.0)
    assert causes(found) == [77_777]
    assert [group.ranks for group in found.groups] == ["77777", "0-77776,77778-79999"]
    assert len(msgspec.json.encode(found)) < 4_096


def test_a_rank_of_another_role_is_not_blamed_for_what_nothing_is_known_of() -> None:
    """An evaluator, say, that tells no heartbeats and waits for a checkpoint."""
    ranks = [seen(0, ALL_REDUCE), seen(1, ALL_REDUCE), seen(2, LOADER, heartbeat_age_s=None)]
    seat = ranks[2].seat
    other = replace(ranks[2], seat=replace(seat, agent=replace(seat.agent, role="evaluator")))
    assert [cause.worker.rank for cause in judged(*ranks).causes] == [2]
    assert judged(*ranks[:2], other).causes == ()
