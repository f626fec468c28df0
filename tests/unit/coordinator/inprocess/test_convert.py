"""What an agent says of restarts in process is checked; what it is told is written whole."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from drumbeat.coordinator.core.inprocess.rank_rules import FILL_GAPS, SHIFT_RANKS
from drumbeat.coordinator.core.inprocess.records import InprocessReport, InprocessSpec
from drumbeat.coordinator.core.inprocess.roster import FAULT_CHARACTERS_MAX
from drumbeat.coordinator.core.model import FailureReport, Verdict, VerdictCause
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.wire.failure import failure_reported, verdict_message
from drumbeat.coordinator.wire.inprocess import (
    GROUP_BYTES_MAX,
    GROUP_CHARACTERS_MAX,
    ID_MAX,
    RULES_MAX,
    report_of,
)
from drumbeat.inprocess import (
    InprocessStep,
    Interruption,
    InterruptionKind,
)
from drumbeat.model import DURATION_MAX_S
from drumbeat.v1 import common_pb2, failure_pb2, inprocess_pb2, session_pb2
from drumbeat.wire.mapping import refuse
from drumbeat.worker.v1 import iteration_pb2
from tests.support.inprocess.rules import active_divisor, active_max, group_sizes

EXCEPTION = iteration_pb2.INTERRUPTION_KIND_EXCEPTION
KILLED = iteration_pb2.INTERRUPTION_KIND_TERMINATED
RULES = [
    iteration_pb2.RankRule(fill=iteration_pb2.FillGaps()),
    iteration_pb2.RankRule(groups=iteration_pb2.GroupSizes(allowed=bytes([0b0001_0000, 1, 0]))),
    iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks()),
    iteration_pb2.RankRule(active_max=6),
    iteration_pb2.RankRule(active_divisor=2),
]


def a_spec(**fields: Any) -> iteration_pb2.InprocessSpec:
    given: dict[str, Any] = {
        "rules": RULES,
        "world_size_min": 4,
        "active_world_size_min": 3,
        "iterations_max": 9,
        "last_call_wait": Duration(nanos=500_000_000),
        "barrier_timeout": Duration(seconds=60),
        "completion_timeout": Duration(seconds=70),
        "needs_first_agent": True,
    }
    return iteration_pb2.InprocessSpec(**(given | fields))


def a_beat(**fields: Any) -> session_pb2.Beat:
    given: dict[str, Any] = {"iteration": 1, "step": inprocess_pb2.INPROCESS_STEP_ENTERED}
    return session_pb2.Beat(inprocess=inprocess_pb2.InprocessReport(**(given | fields)))


def fault(local_rank: int = 0, **fields: Any) -> iteration_pb2.Interruption:
    return iteration_pb2.Interruption(**({"local_rank": local_rank, "kind": EXCEPTION} | fields))


def test_a_report_is_read_as_it_was_written() -> None:
    beat = a_beat(
        iteration=ID_MAX,
        terminated=[fault(1, kind=KILLED, message="gone")],
        interruptions=[fault(2, message="x" * 1000), fault(0)],
        spec=a_spec(),
        groups=["a", "", "b"],
    )
    assert report_of(beat, 3) == InprocessReport(
        iteration=ID_MAX,
        step=InprocessStep.ENTERED,
        terminated=(Interruption(local_rank=1, kind=InterruptionKind.TERMINATED, message="gone"),),
        interruptions=(
            Interruption(
                local_rank=2,
                kind=InterruptionKind.EXCEPTION,
                message="x" * FAULT_CHARACTERS_MAX,
            ),
            Interruption(local_rank=0, kind=InterruptionKind.EXCEPTION),
        ),
        spec=InprocessSpec(
            rules=(FILL_GAPS, group_sizes([4, 8]), SHIFT_RANKS, active_max(6), active_divisor(2)),
            world_size_min=4,
            active_world_size_min=3,
            iterations_max=9,
            last_call_wait_s=0.5,
            barrier_timeout_s=60.0,
            completion_timeout_s=70.0,
            needs_first_agent=True,
        ),
        groups=("a", "", "b"),
    )


def test_every_step_and_kind_of_the_protocol_is_known() -> None:
    for name, number in inprocess_pb2.InprocessStep.items():
        if number:
            report = report_of(a_beat(step=number), 1)
            assert report is not None
            assert f"INPROCESS_STEP_{report.step}" == name
    for name, kind in iteration_pb2.InterruptionKind.items():
        if kind:
            report = report_of(a_beat(interruptions=[fault(kind=kind)]), 1)
            assert report is not None
            assert f"INTERRUPTION_KIND_{report.interruptions[0].kind}" == name


def test_a_beat_without_a_report_says_nothing() -> None:
    assert report_of(session_pb2.Beat(), 4) is None


@pytest.mark.parametrize("fields", [{"step": 0}, {"step": 99}, {"iteration": ID_MAX + 1}])
def test_a_report_that_says_nothing_known_is_left_out(fields: dict[str, Any]) -> None:
    assert report_of(a_beat(**fields), 2) is None


def test_what_cannot_be_is_left_out_of_a_report() -> None:
    read = report_of(
        a_beat(
            terminated=[fault(2), fault(0), fault(1, kind=99), fault(0, kind=99)],
            interruptions=[fault(0, kind=0)],
            groups=["", "x" * (GROUP_CHARACTERS_MAX + 1), "more"],
            ahead=[1, 7, 1],
        ),
        2,
    )
    assert read is not None
    assert [(each.local_rank, each.kind) for each in read.terminated] == [
        (0, InterruptionKind.EXCEPTION),
        (1, InterruptionKind.TERMINATED),
    ]
    assert [each.kind for each in read.interruptions] == [InterruptionKind.TERMINATED]
    assert read.groups == ("", "x" * GROUP_CHARACTERS_MAX)
    assert read.ahead == (1,)


def test_what_cannot_be_is_left_out_of_a_spec() -> None:
    rule = iteration_pb2.RankRule
    allowed = b"\1" * (GROUP_BYTES_MAX + 1)
    spec = a_spec(
        rules=[
            rule(),
            rule(active_max=0),
            rule(active_divisor=0),
            rule(groups=iteration_pb2.GroupSizes(allowed=allowed)),
            *(RULES * RULES_MAX),
        ],
        barrier_timeout=Duration(),
        completion_timeout=Duration(seconds=-1),
        last_call_wait=Duration(seconds=2**40),
        iterations_max=ID_MAX + 1,
    )
    read = report_of(a_beat(spec=spec), 1)
    assert read is not None
    assert read.spec is not None
    assert len(read.spec.rules) == RULES_MAX - 3
    assert read.spec.rules[0].allowed == allowed[:-1]
    assert read.spec.barrier_timeout_s == InprocessSpec().barrier_timeout_s
    assert read.spec.completion_timeout_s == InprocessSpec().completion_timeout_s
    assert read.spec.last_call_wait_s == DURATION_MAX_S
    assert read.spec.iterations_max == ID_MAX


def test_nobody_needs_to_wait_for_interruptions_of_others() -> None:
    report = report_of(a_beat(spec=a_spec(last_call_wait=Duration())), 1)
    assert report is not None
    assert report.spec is not None
    assert report.spec.last_call_wait_s == 0.0


def a_record(**fields: Any) -> session_pb2.ReportFailuresRequest:
    fence = common_pb2.Fence(run_id="r", round_id=0, incarnation="a1")
    return session_pb2.ReportFailuresRequest(
        record=failure_pb2.FailureRecord(fence=fence, sequence=1, host="a", **fields)
    )


def read(message: session_pb2.ReportFailuresRequest) -> Any:
    return failure_reported(message, Limits(failure_message_bytes_max=100), refuse).record


def test_a_record_keeps_what_it_did_to_which_iteration_both_ways() -> None:
    record = read(a_record(interruption=EXCEPTION, iteration=5))
    assert (record.interruption, record.iteration) == (InterruptionKind.EXCEPTION, 5)
    report = FailureReport(root_causes=(record,), victims=(), victims_count=0, world_size=1)
    verdict = Verdict(
        cause=VerdictCause.WORKER_FAILED, reason="", restart_count=0, round_id=0, report=report
    )
    (written,) = verdict_message(verdict).report.root_causes
    assert (written.interruption, written.iteration) == (EXCEPTION, 5)
    bare = read(a_record(iteration=5))
    assert (bare.interruption, bare.iteration) == (None, 0)


def test_a_record_of_an_unknown_kind_is_of_a_worker_that_ended() -> None:
    assert read(a_record(interruption=99, iteration=5)).interruption is InterruptionKind.TERMINATED
    late = read(a_record(interruption=EXCEPTION, iteration=ID_MAX + 1))
    assert (late.interruption, late.iteration) == (None, 0)
