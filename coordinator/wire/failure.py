"""Shell. Failure records and verdicts, and how far workers are, as messages."""

from __future__ import annotations

from functools import cache
from itertools import chain

from drumbeat.coordinator.core import model
from drumbeat.coordinator.core.events import FailureReported
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit, Observation
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.steps.worker_progress import (
    SCOPE_BYTES_MAX,
    Standing,
    WorkerProgress,
)
from drumbeat.coordinator.wire.inprocess import interruption_of
from drumbeat.model import HangKind
from drumbeat.restart_rules import RULES_MAX
from drumbeat.text.format import one_line
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import (
    Check,
    MessageMapping,
    OnProblem,
    between,
    cut,
    cut_bytes,
    duration,
    seconds_of,
    text,
)
from drumbeat.wire.messages import HANG_GROUP

NAME_CHARACTERS_MAX = 256
LIMIT_BYTES_MAX = 512  # of the name of the timer or section that ran out
OUTPUT_FILES_MAX, PATH_CHARACTERS_MAX = 2, 1024
UPTIME_MAX_S = 100 * 366 * 86_400.0  # no agent lives for a century
EXPIRED_MAX = 256  # of one beat
EXPIRED_PER_WORKER_MAX = 4
# Every agent gets an `Exit` in the same moment, so it is small.
EXIT_BYTES_MAX = 16 * 1024
# An `Exit` holds the name of a host, and numbers, beside it.
_VERDICT_BYTES_MAX = EXIT_BYTES_MAX - 2 * 1024
_REASON_CHARACTERS_MAX = 1_000
# Characters of each text of the first cause, and rows of each list, until it fits.
_STEPS = ((4_000, 16), (2_500, 16), (1_500, 16), (800, 8), (300, 4), (0, 1), (0, 0))
# Texts of other causes and of victims are shorter by this.
_MINOR = 8


def shown(least: int) -> Check:
    """Return a check for what has a place in one line, for users to read: of a host, say."""
    check = text(least, NAME_CHARACTERS_MAX)
    return lambda path, value: one_line(check(path, value), NAME_CHARACTERS_MAX)


def _line(_path: str, value: str) -> str:
    return one_line(value, NAME_CHARACTERS_MAX)


def _path(value: str) -> str:
    return one_line(value, PATH_CHARACTERS_MAX)


NAME = text(1, NAME_CHARACTERS_MAX)

PROGRESS = MessageMapping(
    WorkerProgress,
    failure_pb2.WorkerProgress,
    checks={"scope": cut_bytes(SCOPE_BYTES_MAX)},
    # For the core alone.
    given=(
        "steps_timed",
        "steps_s",
        "is_busy_time",
        "steps_total",
        "loss",
        "saved_step",
        "saved_age_s",
    ),
)
OBSERVATION = MessageMapping(
    Observation, session_pb2.Observation, checks={"section": cut_bytes(SCOPE_BYTES_MAX)}
)
_LIMIT = MessageMapping(
    LearnedLimit, session_pb2.LearnedLimit, given=("settled_s", "longest_s", "samples")
)
_RANKS = MessageMapping(model.WorkerRanks, failure_pb2.WorkerRanks, checks={"role": _line})
_STANDING = MessageMapping(Standing, failure_pb2.RankProgress, parts={"progress": PROGRESS})

_EXPIRED = MessageMapping(
    model.ExpiredLimit,
    session_pb2.ExpiredLimit,
    parts={"kind": HangKind},
    checks={"scope": cut_bytes(LIMIT_BYTES_MAX), "number": between(1, 2**63)},
)
_REPORT = MessageMapping(
    model.FailureReport,
    failure_pb2.FailureReport,
    given=("root_causes", "victims", "standings", "standings_count", "hang"),
)
_VERDICT = MessageMapping(
    model.Verdict, failure_pb2.Verdict, parts={"cause": model.VerdictCause}, given=("report",)
)

_HUNG = MessageMapping(
    model.HungRank,
    failure_pb2.HungRank,
    parts={"progress": PROGRESS},
    given=("worker", "incarnation"),
)
_DIAGNOSIS = MessageMapping(
    model.HangDiagnosis,
    failure_pb2.HangDiagnosis,
    parts={"groups": HANG_GROUP},
    given=("limit", "at_s", "since_s", "is_held", "causes"),
)


@cache
def _records(text_characters_max: int = 2**31) -> MessageMapping[model.FailureRecord]:
    """Return how records are read whose texts are cut to this."""
    long = cut(text_characters_max)
    hang = MessageMapping(
        model.Hang,
        failure_pb2.Hang,
        parts={"kind": HangKind, "progress": PROGRESS},
        checks={"scope": cut_bytes(LIMIT_BYTES_MAX), "stacks": long, "evidence": long},
    )
    return MessageMapping(
        model.FailureRecord,
        failure_pb2.FailureRecord,
        parts={"worker": _RANKS, "hang": hang},
        checks={
            "sequence": between(1, 2**63),
            "host": shown(1),
            "name": shown(0),
            "signal_name": _line,
            "matched_rules": lambda _, numbers: tuple(numbers[:RULES_MAX]),
            "output_files": lambda _, paths: tuple(map(_path, paths[:OUTPUT_FILES_MAX])),
            **dict.fromkeys(("message", "traceback", "stderr_tail", "explanation"), long),
        },
        given=["incarnation", "round_id", "happened_at", "size_bytes", "interruption", "iteration"],
    )


def failure_reported(
    message: session_pb2.ReportFailuresRequest,
    limits: Limits,
    on_problem: OnProblem,
) -> FailureReported:
    """Read one failure record; an over-long one is refused. Raises ``InvalidField``."""
    record, fence, most = message.record, message.record.fence, limits.failure_record_bytes_max
    if record.ByteSize() > most:
        raise InvalidRequest("record", f"{record.ByteSize()} bytes", f"{most} bytes")
    characters_max = limits.failure_message_bytes_max
    return FailureReported(
        run_id=fence.run_id,
        uptime_s=read_uptime_s(message),
        record=read_record(record, fence, "record", characters_max, on_problem),
    )


def read_record(
    record: failure_pb2.FailureRecord,
    fence: common_pb2.Fence,
    path: str,
    text_characters_max: int,
    on_problem: OnProblem,
) -> model.FailureRecord:
    """Read a record of the agent and round of a fence; texts are cut. Raises ``InvalidField``."""
    if not fence.HasField("round_id"):
        raise InvalidRequest(f"{path}.fence.round_id", None, "the round the worker was in")
    interruption, iteration = interruption_of(record)
    return _records(text_characters_max).read(
        record,
        path,
        on_problem,
        incarnation=NAME(f"{path}.fence.incarnation", fence.incarnation),
        round_id=fence.round_id,
        happened_at=0.0,
        size_bytes=record.ByteSize(),
        interruption=interruption,
        iteration=iteration,
    )


def read_uptime_s(
    message: session_pb2.AgentReport | session_pb2.ReportFailuresRequest,
) -> float | None:
    """Read how long an agent had been running; ``None`` if it does not say or it can't be."""
    uptime_s = seconds_of(message.uptime) if message.HasField("uptime") else -1.0
    return uptime_s if 0 <= uptime_s <= UPTIME_MAX_S else None


def limits_message(limits: tuple[LearnedLimit, ...]) -> session_pb2.LearnedLimits:
    """Write learned limits."""
    return session_pb2.LearnedLimits(limits=map(_LIMIT.write, limits))


def record_message(record: model.FailureRecord) -> failure_pb2.FailureRecord:
    """Write a failure record."""
    kind = record.interruption
    message: failure_pb2.FailureRecord = _records().write(
        record,
        interruption=None if kind is None else f"INTERRUPTION_KIND_{kind}",
        iteration=record.iteration,
    )
    message.fence.round_id, message.fence.incarnation = record.round_id, record.incarnation
    return message


def verdict_message(verdict: model.Verdict) -> failure_pb2.Verdict:
    """Write a verdict, whole."""
    report, written = verdict.report, None
    if report is not None:
        written = _REPORT.write(
            report,
            root_causes=map(record_message, report.root_causes),
            victims=map(record_message, report.victims),
            progress=map(_STANDING.write, report.standings),
            progress_count=report.standings_count,
            hang=None if report.hang is None else hang_message(report.hang),
        )
    message: failure_pb2.Verdict = _VERDICT.write(
        verdict, is_success=verdict.is_success, report=written
    )
    return message


def expired_limits(
    message: session_pb2.Beat, size: int, on_problem: OnProblem
) -> tuple[model.ExpiredLimit, ...]:
    """Read which limits the workers of a host with so many exceed."""
    most = min(EXPIRED_MAX, size * EXPIRED_PER_WORKER_MAX)
    limits = _EXPIRED.read_all(message.expired[:most], "beat.expired", on_problem)
    return tuple(limit for limit in limits if limit.local_rank < size)


def hang_message(
    hang: model.HangDiagnosis, *, now: float | None = None
) -> failure_pb2.HangDiagnosis:
    """Write why a round hangs, with the age of ``now`` if that is given."""
    limit = hang.limit
    message: failure_pb2.HangDiagnosis = _DIAGNOSIS.write(
        hang,
        kind=f"HANG_KIND_{limit.kind}",
        scope=limit.scope,
        limit=duration(limit.limit_s),
        age=None if now is None else duration(max(0.0, now - hang.since_s)),
        is_ending=hang.is_held,
        causes=(
            _HUNG.write(cause, rank=cause.worker.rank, local_rank=cause.worker.local_rank)
            for cause in hang.causes
        ),
    )
    return message


def exit_message(wanted: model.Exit) -> session_pb2.Exit:
    """Write the end of a run for one agent, with as much of the verdict as there is room for.

    Texts are cut first: of what a worker wrote the end tells most, of other texts the
    beginning. Then rows are left out.
    """
    whole = verdict = verdict_message(wanted.verdict)
    for characters, rows in _STEPS:
        if verdict.ByteSize() <= _VERDICT_BYTES_MAX:
            break
        verdict = _cut_verdict(whole, characters, rows)
    if verdict.ByteSize() > _VERDICT_BYTES_MAX:
        del verdict.report.root_causes[:]  # names alone are too long: of no real host or role
    return session_pb2.Exit(
        verdict=verdict,
        is_report_cut=verdict is not whole,
        shows_report=wanted.shows_report,
        shown_on=wanted.shown_on,
        generation=wanted.generation,
    )


def _cut_verdict(whole: failure_pb2.Verdict, characters: int, rows: int) -> failure_pb2.Verdict:
    verdict = failure_pb2.Verdict()
    verdict.CopyFrom(whole)
    verdict.reason = _head(verdict.reason, _REASON_CHARACTERS_MAX)
    report = verdict.report
    del report.victims[rows:], report.progress[rows:], report.earlier[:]
    del report.hang.causes[:], report.hang.groups[rows:]  # the causes are in the records, too
    for group in report.hang.groups:
        group.stack = _head(group.stack, characters // _MINOR)
    for index, record in enumerate(chain(report.root_causes, report.victims)):
        most = characters if index == 0 else characters // _MINOR
        record.message = _head(record.message, most)
        record.explanation = _head(record.explanation, most)
        record.traceback = _tail(record.traceback, most)
        record.stderr_tail = _tail(record.stderr_tail, most)
        if most < PATH_CHARACTERS_MAX:
            del record.output_files[:]  # half a path leads nowhere
        if record.HasField("hang"):
            record.hang.stacks = _head(record.hang.stacks, most)
            record.hang.evidence = _head(record.hang.evidence, most)
    return verdict


def _head(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def _tail(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"…{text[len(text) - characters :]}"
