"""Shell. Failure records, reports and verdicts, and how far workers are, as messages."""

from __future__ import annotations

from coordinator.core.events import FailureReported
from coordinator.core.model import (
    FailureRecord,
    FailureReport,
    Hang,
    HangKind,
    Verdict,
    VerdictCause,
    WorkerRanks,
)
from coordinator.core.progress.adaptive_timeouts import LearnedLimit, Observation
from coordinator.core.progress.worker_progress import SCOPE_BYTES_MAX, Standing, WorkerProgress
from coordinator.errors import InvalidRequest
from coordinator.wire.inprocess import interruption_of
from drumbeat.inprocess import InterruptionKind
from drumbeat.mapping import (
    MessageMapping,
    OnProblem,
    between,
    cut,
    cut_bytes,
    seconds_of,
    text,
)
from drumbeat.v1 import failure_pb2, session_pb2

NAME_CHARACTERS_MAX = 256
SCOPE_CHARACTERS_MAX = 512
"""Of the name of the timer or section that ran out."""
# No agent lives for a century.
UPTIME_MAX_S = 100 * 366 * 86_400.0
# Numbers that every JSON reader keeps exact; no run has so many rounds or iterations.
ID_MAX = 2**53

NAME = text(1, NAME_CHARACTERS_MAX)

PROGRESS = MessageMapping(
    WorkerProgress, failure_pb2.WorkerProgress, checks={"scope": cut_bytes(SCOPE_BYTES_MAX)}
)
OBSERVATION = MessageMapping(
    Observation, session_pb2.Observation, checks={"section": cut_bytes(SCOPE_BYTES_MAX)}
)
LIMIT = MessageMapping(
    LearnedLimit, session_pb2.LearnedLimit, given=("settled_s", "longest_s", "samples")
)
_RANKS = MessageMapping(
    WorkerRanks, failure_pb2.WorkerRanks, checks={"role": cut(NAME_CHARACTERS_MAX)}
)
_STANDING = MessageMapping(Standing, failure_pb2.RankProgress, parts={"progress": PROGRESS})


def _records(text_characters_max: int) -> MessageMapping[FailureRecord]:
    """Return how records are read whose texts are cut to this."""
    long = cut(text_characters_max)
    hang = MessageMapping(
        Hang,
        failure_pb2.Hang,
        parts={"kind": HangKind, "progress": PROGRESS},
        checks={"scope": cut(SCOPE_CHARACTERS_MAX), "stacks": long, "evidence": long},
    )
    return MessageMapping(
        FailureRecord,
        failure_pb2.FailureRecord,
        parts={"worker": _RANKS, "hang": hang, "interruption": InterruptionKind},
        checks={
            "sequence": between(1, 2**63),
            "host": NAME,
            "name": text(0, NAME_CHARACTERS_MAX),
            "signal_name": cut(NAME_CHARACTERS_MAX),
            **dict.fromkeys(("message", "traceback", "stderr_tail", "explanation"), long),
        },
        given=("incarnation", "round_id", "happened_at", "size_bytes"),
    )


_UNCUT = _records(2**31)
_mappings: dict[int, MessageMapping[FailureRecord]] = {}
_REPORT = MessageMapping(
    FailureReport,
    failure_pb2.FailureReport,
    given=("root_causes", "victims", "standings", "standings_count"),
)


# From the network.


def read_record(
    record: failure_pb2.FailureRecord,
    *,
    incarnation: str,
    round_id: int | None,
    text_characters_max: int,
    on_problem: OnProblem,
    path: str = "record",
) -> FailureRecord:
    """Read a record of this agent and round; texts are cut. Raises ``InvalidField``."""
    if round_id is None:
        raise InvalidRequest(f"{path}.fence.round_id", None, "the round the worker was in")
    interruption, iteration = interruption_of(record)
    mapping = _mappings.get(text_characters_max)
    if mapping is None:
        mapping = _mappings[text_characters_max] = _records(text_characters_max)
    return mapping.read(
        record,
        path,
        on_problem,
        incarnation=incarnation,
        round_id=round_id,
        happened_at=0.0,
        size_bytes=record.ByteSize(),
        interruption=interruption,
        iteration=iteration,
    )


def failure_reported(
    message: session_pb2.ReportFailuresRequest,
    *,
    request_id: int,
    record_bytes_max: int,
    text_characters_max: int,
    on_problem: OnProblem,
) -> FailureReported:
    """Read one failure record; an over-long one is refused. Raises ``InvalidField``."""
    record, fence = message.record, message.record.fence
    if record.ByteSize() > record_bytes_max:
        raise InvalidRequest("record", f"{record.ByteSize()} bytes", f"{record_bytes_max} bytes")
    return FailureReported(
        run_id=fence.run_id,
        request_id=request_id,
        uptime_s=read_uptime_s(message),
        record=read_record(
            record,
            incarnation=NAME("record.fence.incarnation", fence.incarnation),
            round_id=fence.round_id if fence.HasField("round_id") else None,
            text_characters_max=text_characters_max,
            on_problem=on_problem,
        ),
    )


def read_uptime_s(
    message: session_pb2.AgentReport | session_pb2.ReportFailuresRequest,
) -> float | None:
    """Read how long an agent had been running; ``None`` if it does not say or it can't be."""
    uptime_s = seconds_of(message.uptime) if message.HasField("uptime") else -1.0
    return uptime_s if 0 <= uptime_s <= UPTIME_MAX_S else None


# To the network.


def record_message(record: FailureRecord) -> failure_pb2.FailureRecord:
    """Write a failure record."""
    message: failure_pb2.FailureRecord = _UNCUT.write(record)
    message.fence.round_id, message.fence.incarnation = record.round_id, record.incarnation
    return message


def verdict_message(verdict: Verdict) -> failure_pb2.Verdict:
    """Write a verdict, whole."""
    return failure_pb2.Verdict(
        is_success=verdict.is_success,
        cause=cause_value(verdict.cause),
        reason=verdict.reason,
        restart_count=verdict.restart_count,
        round_id=verdict.round_id,
        report=_report(verdict.report) if verdict.report else None,
    )


def cause_value(cause: VerdictCause) -> failure_pb2.VerdictCause.ValueType:
    """Write why a run ended."""
    return failure_pb2.VerdictCause.Value(f"VERDICT_CAUSE_{cause}")


def _report(report: FailureReport) -> failure_pb2.FailureReport:
    return failure_pb2.FailureReport(
        root_causes=map(record_message, report.root_causes),
        victims=map(record_message, report.victims),
        victims_count=report.victims_count,
        world_size=report.world_size,
        progress=map(_STANDING.write, report.standings),
        progress_count=report.standings_count,
        earlier=report.earlier,
    )


def limits_message(limits: tuple[LearnedLimit, ...]) -> session_pb2.LearnedLimits:
    """Write learned limits."""
    return session_pb2.LearnedLimits(limits=map(LIMIT.write, limits))
