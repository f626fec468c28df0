"""Shell. A run's failure in words: the root cause first, then the victims."""

from __future__ import annotations

from collections.abc import Iterator

from agent.session.convert_inprocess import kind_from
from agent.workers.failures.stragglers import who_was_where
from drumbeat.format import count, printable
from drumbeat.v1 import failure_pb2, session_pb2

WIDTH = 72


def render_report(verdict: session_pb2.Verdict, name: str, *, more: str = "") -> str:
    """Return the readable report of a failed run; ``name`` says what ran.

    What workers said is in it with their control characters written out. ``more`` says
    where the rest is, if this is not all of it.
    """
    lines = ["=" * WIDTH, f"{name} FAILED", verdict.reason]
    if verdict.HasField("report"):
        lines += _sections(verdict.report)
    if more:
        lines += ["-" * WIDTH, more]
    lines.append("=" * WIDTH)
    return printable("\n".join(lines))


def _sections(report: failure_pb2.FailureReport) -> Iterator[str]:
    causes = report.root_causes
    if report.earlier:
        yield "before that:"
        for reason in report.earlier:
            yield f"  {reason}"
    if not causes and not report.victims_count and not report.standings:
        return  # it did not end because of a worker
    yield "-" * WIDTH
    if not causes:
        yield "Root cause: unknown, no record of it arrived"
    elif len(causes) == 1:
        yield "Root cause:"
    else:
        yield f"Root cause: one of {len(causes)}, too close in time to be told apart:"
    for record in causes:
        yield from _cause(record)
    if report.victims_count:
        yield "-" * WIDTH
        size = count(report.world_size, "worker")
        yield f"Victims: {report.victims_count} of {size}, ended because of it"
        for record in report.victims:
            yield f"  {_victim(record)}"
        if (rest := report.victims_count - _workers_named(report)) > 0:
            who = count(rest, "other" if report.victims else "worker")
            yield f"  {who} stopped by their agents"
    if report.standings:
        yield "-" * WIDTH
        yield from who_was_where(report)


def _workers_named(report: failure_pb2.FailureReport) -> int:
    """Return how many workers the victims are, each of which may be there twice or be a cause."""
    causes = {_worker(record) for record in report.root_causes}
    return len({_worker(record) for record in report.victims} - causes)


def _worker(record: failure_pb2.FailureRecord) -> tuple[str, int, int]:
    return record.fence.incarnation, record.worker.group_rank, record.worker.local_rank


def _cause(record: failure_pb2.FailureRecord) -> Iterator[str]:
    worker = record.worker
    name = f" (agent {record.name})" if record.name not in ("", record.host) else ""
    yield f"  host      : {record.host}{name}"
    yield (
        f"  rank      : {worker.rank} (local rank {worker.local_rank}, "
        f"group rank {worker.group_rank}, role {worker.role})"
    )
    pid = f" (pid {record.pid})" if record.pid else ""
    kind = kind_from(record.interruption)
    if kind is not None:
        yield f"  iteration : {record.iteration}, interrupted by {kind.words}"
    if kind is not None and kind.is_survived:
        yield f"  process   : lived on{pid}"
    else:
        yield f"  ended by  : {_ending(record)}{pid}"
    if record.explanation:
        yield f"  likely why: {_indented(record.explanation, 14).lstrip()}"
    if record.message:
        yield f"  message   : {_indented(record.message, 14).lstrip()}"
    if record.HasField("hang"):
        yield from _hang(record.hang)
    if record.traceback:
        yield "  traceback :"
        yield _indented(record.traceback.rstrip(), 4)
    if record.stderr_tail:
        yield "  last lines of stderr:"
        yield _indented(record.stderr_tail.rstrip(), 4)


def _hang(hang: failure_pb2.Hang) -> Iterator[str]:
    if hang.evidence:
        yield f"  seen      : {_indented(hang.evidence, 14).lstrip()}"
    if hang.stacks:
        yield "  stacks    :"
        yield _indented(hang.stacks.rstrip(), 4)


def _victim(record: failure_pb2.FailureRecord) -> str:
    why = ", stopped by its agent" if record.is_stopped_by_agent else ""
    message = f": {record.message.splitlines()[0]}" if record.message.strip() else ""
    who = f"rank {record.worker.rank} on {record.name or record.host}"
    return f"{who}, {_ending(record)}{why}{message}"


def _ending(record: failure_pb2.FailureRecord) -> str:
    kind = kind_from(record.interruption)
    if kind is not None and kind.is_survived:
        return f"interrupted iteration {record.iteration}"
    return record.signal_name or f"exit code {record.exit_code}"


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())
