"""Values that both sides know, as messages and back."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core.notice import Notice
from drumbeat.agent.session.session import NOTICE
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.model import (
    Assignment,
    CollectiveCall,
    GroupCalls,
    HangGroup,
    HostMemory,
    NoticeKind,
    NoticeReport,
    Pace,
    PreflightFinding,
    Standby,
    Stop,
    WorkerMemory,
)
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import inprocess_pb2, session_pb2
from drumbeat.wire import messages
from drumbeat.wire.mapping import MessageMapping, duration, enum_table

BEGIN = IterationBegin(
    seats=(
        InprocessSeat(local_rank=1, rank=4, active_rank=0, role_rank=1, role_world_size=2),
        InprocessSeat(local_rank=2, rank=5),
    ),
    world_size=8,
    active_world_size=1,
    master_addr="a",
    master_port=70,
    has_store=True,
)
DIRECTED = InprocessDirective(round_id=3, iteration=9, kind=BEGIN, terminated=(1, 4))
# With a value in every field, so that none is left out unseen.
WHOLE: list[tuple[MessageMapping[Any], Any]] = [
    (messages.PACE, Pace(heartbeat_interval_s=1.5, reconnect_delay_max_s=2.0, lease_s=3.0)),
    (
        messages.NOTICE_REPORT,
        NoticeReport(
            notice_id=1,
            chosen=2,
            asked=3,
            is_missed=True,
            is_saved=True,
            step_time_s=0.5,
            proposed=4,
            is_ready=True,
        ),
    ),
    (
        messages.MEMORY,
        HostMemory(
            workers=(WorkerMemory(local_rank=1, resident_bytes=2, growth_bytes=3),),
            used_bytes=4,
            limit_bytes=5,
            is_cgroup=True,
        ),
    ),
    (
        messages.HANG_GROUP,
        HangGroup(
            count=1,
            ranks="0",
            place="p",
            activity="a",
            stack="s",
            is_cause=True,
            collective="all_reduce #1",
        ),
    ),
    (
        messages.GROUP_CALLS,
        GroupCalls(
            name="1",
            ranks="0-6:2",
            label="mesh_dp",
            calls=(
                CollectiveCall(
                    sequence=2, op="send", tensors="float32 [5]", is_done=True, age_s=1.5, peer=3
                ),
            ),
        ),
    ),
    (
        messages.DESIRED["standby"],
        Standby(reason="r", agents_present=1, agents_wanted=2, time_left_s=2.5),
    ),
    (
        messages.DESIRED["run"],
        Assignment(
            round_id=1,
            restart_count=2,
            group_rank=3,
            group_world_size=4,
            rank_first=5,
            world_size=6,
            role_rank_first=7,
            role_world_size=8,
            master_addr="m",
            master_port=9,
            reason="r",
            restarts_used=10,
            restarts_max=11,
            has_store=True,
            is_preflight=True,
        ),
    ),
    (messages.PREFLIGHT, PreflightFinding(ranks=(1, 2), reason="r")),
    (messages.DESIRED["stop"], Stop(reason="r")),
    (messages.DIRECTIVE, DIRECTED),
    (messages.DIRECTIVE, replace(DIRECTED, kind=IterationInterrupt(reason="r"))),
    (messages.DIRECTIVE, replace(DIRECTED, kind=IterationComplete())),
]


@pytest.mark.parametrize(("table", "value"), WHOLE, ids=lambda part: type(part).__name__)
def test_a_value_is_written_whole_and_read_as_it_was(
    table: MessageMapping[Any], value: Any
) -> None:
    message = table.write(value)
    assert table.read(type(message).FromString(message.SerializeToString())) == value
    fields = message.DESCRIPTOR.fields
    known = {field.name for field, _ in message.ListFields()}
    missing = [field.name for field in fields if not field.containing_oneof or field.has_presence]
    in_kinds = {field.name for field in fields if field.containing_oneof and field.message_type}
    assert set(missing) - known - in_kinds == set()


def test_a_worker_without_a_rank_stands_by() -> None:
    seats = messages.DIRECTIVE.write(DIRECTED).begin.seats
    assert [(seat.local_rank, seat.HasField("active_rank")) for seat in seats] == [
        (1, True),
        (2, False),
    ]


def test_a_kind_of_directive_of_a_later_version_is_refused() -> None:
    with pytest.raises(InvalidField, match="kind: 'unknown' is given, allowed is begin interrupt"):
        messages.DIRECTIVE.read(inprocess_pb2.InprocessDirective(round_id=3))


def test_the_member_other_stands_for_what_a_later_version_says() -> None:
    numbers = enum_table(session_pb2.NoticeKind.DESCRIPTOR, NoticeKind)
    assert numbers[session_pb2.NOTICE_KIND_UNSPECIFIED] is NoticeKind.OTHER
    assert numbers[session_pb2.NOTICE_KIND_DRAIN] is NoticeKind.DRAIN


def test_a_notice_of_a_kind_of_a_later_version_is_still_a_notice() -> None:
    message = session_pb2.Notice(notice_id=1, kind=99, reason="r", time_left=duration(2.0))  # type: ignore[arg-type]
    assert NOTICE.read(message) == Notice(
        notice_id=1, kind=NoticeKind.OTHER, reason="r", time_left_s=2.0
    )
