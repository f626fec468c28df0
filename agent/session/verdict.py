"""Shell. Reads the coordinator's verdict as a failure report; fetches one that was cut."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from drumbeat.agent.failures.report import FailedWorker, FailureReport, HangDiagnosis, Position
from drumbeat.agent.session.convert import kind_from
from drumbeat.agent.session.transport import TransportError
from drumbeat.v1 import failure_pb2, query_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping
from drumbeat.wire.messages import HANG_GROUP

log = structlog.get_logger()

# The workers are stopped by then, and what is known already is shown in any case.
FETCH_TIMEOUT_S = 5.0

ReportCall = Callable[[query_pb2.GetReportRequest], Awaitable[failure_pb2.Verdict]]

_HANG = MessageMapping(HangDiagnosis, failure_pb2.HangDiagnosis, parts={"groups": HANG_GROUP})
_OF_RECORD = (
    "host", "pid", "exit_code", "message", "traceback", "stderr_tail", "explanation",
    "is_stopped_by_agent", "iteration",
)  # fmt: skip
_OF_WORKER = ("rank", "local_rank", "group_rank", "role")


def read_report(message: session_pb2.Exit) -> FailureReport:
    """Return the report of a failed run."""
    report, more = message.verdict.report, ""
    if is_to_be_completed(message):
        more = "Cut: the coordinator did not answer when it was asked for the rest."
    elif message.is_report_cut:
        more = f"Cut: the whole report is on the console of the agent on {message.shown_on}."
    return FailureReport(
        reason=message.verdict.reason,
        earlier=tuple(report.earlier),
        root_causes=tuple(map(_worker, report.root_causes)),
        victims=tuple(map(_worker, report.victims)),
        victims_count=report.victims_count,
        world_size=report.world_size,
        positions=tuple(map(_position, report.progress)),
        positions_count=report.progress_count,
        more=more,
        goodput=message.verdict.goodput,
        hang=_HANG.read(report.hang) if report.HasField("hang") else None,
    )


def is_to_be_completed(message: session_pb2.Exit) -> bool:
    """Return whether this agent shall ask for the rest of the report, and show it."""
    return message.is_report_cut and message.shows_report


async def complete(message: session_pb2.Exit, ask: ReportCall, *, run_id: str, key: bytes) -> None:
    """Put the whole report in, if it can be had; ``ask`` calls ``QueryService.GetReport``.

    ``key`` proves which agent asks.
    """
    request = query_pb2.GetReportRequest(
        run_id=run_id, generation=message.generation, incarnation_key=key
    )
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            verdict = await ask(request)
    except (TransportError, TimeoutError) as error:
        reason = str(error) or f"no answer within {FETCH_TIMEOUT_S:g} s"
        log.warning("failure report not fetched", reason=reason)
        return
    message.verdict.CopyFrom(verdict)
    message.is_report_cut = False


def _worker(record: failure_pb2.FailureRecord) -> FailedWorker:
    return FailedWorker(
        agent=record.name,
        incarnation=record.fence.incarnation,
        interruption=kind_from(record.interruption),
        evidence=record.hang.evidence,
        output_files=tuple(record.output_files),
        stacks=record.hang.stacks,
        **{name: getattr(record, name) for name in _OF_RECORD},
        **{name: getattr(record.worker, name) for name in _OF_WORKER},
    )


def _position(standing: failure_pb2.RankProgress) -> Position:
    progress = standing.progress
    has_age = progress.HasField("heartbeat_age")
    return Position(
        rank=standing.rank,
        host=standing.host,
        step=progress.step if progress.HasField("step") else -1,
        scope=progress.scope,
        scope_age_s=progress.scope_age.ToNanoseconds() / 1e9,
        heartbeat_age_s=progress.heartbeat_age.ToNanoseconds() / 1e9 if has_age else None,
    )
