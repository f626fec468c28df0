"""What torch's flight recorder tells, as torch 2.13 writes it for gloo and for NCCL."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.agent.watchdog.flight_recorder import (
    CALLS_MAX,
    GROUPS_MAX,
    Progress,
    parse_calls,
    parse_progress,
)
from drumbeat.model import CollectiveCall, GroupCalls

NOW_NS = 1_795_469_010_521_217_106
DEFAULT = ("0", "default_pg", "0-1")


def entry(record: int, sequence: int, **fields: Any) -> dict[str, Any]:
    """Return a call as torch 2.13 records it on gloo."""
    return {
        "record_id": record,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "input_dtypes": ["Float"],
        "input_sizes": [[7, 3]],
        "output_dtypes": ["Float"],
        "output_sizes": [[7, 3]],
        "state": "scheduled",
        "retired": True,
        "thread_id": "139872182340480",
        "time_created_ns": NOW_NS - 1_000_000_000 * (100 - record),
        "timeout_ms": 1_800_000,
    } | fields


def answer(*entries: dict[str, Any], groups: tuple[Any, ...] = (DEFAULT,)) -> bytes:
    return json.dumps(
        {"groups": groups, "recorded": {"entries": entries, "version": "2.10"}}
    ).encode()


def test_a_rank_waits_in_its_latest_call() -> None:
    told = answer(entry(1, 1), entry(2, 2, retired=False))
    assert parse_calls(told, now_ns=NOW_NS) == (
        GroupCalls(
            name="0",
            ranks="0-1",
            label="default_pg",
            calls=(
                CollectiveCall(
                    sequence=1, op="all_reduce", tensors="float32 [7, 3]", is_done=True, age_s=99.0
                ),
                CollectiveCall(sequence=2, op="all_reduce", tensors="float32 [7, 3]", age_s=98.0),
            ),
        ),
    )


def test_nccl_says_by_the_state_that_a_call_is_done() -> None:
    nccl = {"profiling_name": "nccl:all_gather", "retired": False}
    told = answer(entry(1, 1, state="completed", **nccl), entry(2, 2, state="started", **nccl))
    (group,) = parse_calls(told, now_ns=NOW_NS) or ()
    assert [(call.op, call.is_done) for call in group.calls] == [
        ("all_gather", True),
        ("all_gather", False),
    ]


@pytest.mark.parametrize(
    ("name", "op", "peer"), [("nccl:send 0->1", "send", 6), ("nccl:recv 1<-0", "recv", 4)]
)
def test_the_peer_of_a_point_to_point_operation_is_a_rank_of_the_world(
    name: str, op: str, peer: int
) -> None:
    call = entry(1, 0, is_p2p=True, p2p_seq_id=5, profiling_name=name)
    (group,) = parse_calls(answer(call, groups=(("0", "", "4-6:2"),)), now_ns=NOW_NS) or ()
    assert [(each.sequence, each.op, each.peer) for each in group.calls] == [(5, op, peer)]


def test_the_oldest_call_that_waits_is_kept() -> None:
    later = [entry(i, i) for i in range(2, 50)]
    told = answer(entry(1, 1, retired=False), *later)
    (group,) = parse_calls(told, now_ns=NOW_NS) or ()
    assert len(group.calls) == CALLS_MAX
    assert (group.calls[0].sequence, group.calls[0].is_done) == (1, False)
    assert group.calls[-1].sequence == 49


def test_groups_that_wait_come_first_and_not_too_many() -> None:
    groups = tuple((str(i), "", "0-1") for i in range(GROUPS_MAX + 5))
    waits = entry(9, 3, retired=False, process_group=[str(GROUPS_MAX + 4), "undefined"])
    found = parse_calls(answer(waits, groups=groups), now_ns=NOW_NS) or ()
    assert len(found) == GROUPS_MAX
    assert found[0].name == str(GROUPS_MAX + 4)


def test_a_huge_range_of_ranks_costs_nothing() -> None:
    call = entry(1, 0, is_p2p=True, p2p_seq_id=1, profiling_name="nccl:send 0->1")
    told = answer(call, groups=(("0", "", "0-999999999999,0-999999999999"),))
    (group,) = parse_calls(told, now_ns=NOW_NS) or ()
    assert group.calls[0].peer in (None, 1)


@given(st.binary(max_size=200))
def test_what_cannot_be_read_is_no_answer(data: bytes) -> None:
    assert parse_calls(data, now_ns=NOW_NS) is None
    progress = parse_progress(data)
    assert progress is None or isinstance(progress, Progress)


@pytest.mark.parametrize("wrong", [b"", b"{}", b"[]", b'{"groups": 5}', b"\xff\xfe", b"null"])
def test_other_answers_are_none(wrong: bytes) -> None:
    assert parse_calls(wrong, now_ns=NOW_NS) is None
    assert parse_progress(wrong) is None


def test_progress_is_equal_until_a_group_moves() -> None:
    def answer(made: int, done: int) -> bytes:
        status = {"last_enqueued_collective": str(made), "last_completed_collective": str(done)}
        return json.dumps({"pg_status": {"0": status}, "version": "2.10"}).encode()

    before = parse_progress(answer(8, 7))
    assert before is not None
    assert before.is_waiting
    assert parse_progress(answer(8, 7)) == before
    after = parse_progress(answer(8, 8))
    assert after != before
    assert after is not None
    assert not after.is_waiting
