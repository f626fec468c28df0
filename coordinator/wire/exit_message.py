"""Shell. A verdict within the bounds of an ``Exit``, whatever failed and however many.

Every agent gets it in the same moment, so it is small. Texts are cut first: of what
a worker wrote the end tells most, of other texts the beginning. Then rows are left out.
"""

from __future__ import annotations

from coordinator.core.model import Exit
from drumbeat.v1 import failure_pb2, session_pb2

EXIT_BYTES_MAX = 16 * 1024
# What else an `Exit` holds: the name of a host, and numbers.
_REST_BYTES_MAX = 2 * 1024
_VERDICT_BYTES_MAX = EXIT_BYTES_MAX - _REST_BYTES_MAX
_REASON_CHARACTERS_MAX = 1_000

# Characters of each text of the first cause, and rows of each list, until it fits.
_STEPS = ((4_000, 16), (2_500, 16), (1_500, 16), (800, 8), (300, 4), (0, 1), (0, 0))
# Texts of other causes and of victims are shorter by this.
_MINOR = 8


def exit_message(wanted: Exit, whole: failure_pb2.Verdict) -> session_pb2.Exit:
    """Write the end of a run for one agent; ``whole`` is its verdict as a message."""
    verdict = fitted(whole)
    return session_pb2.Exit(
        verdict=verdict,
        is_report_cut=verdict is not whole,
        shows_report=wanted.shows_report,
        shown_on=wanted.shown_on,
        generation=wanted.generation,
    )


def fitted(verdict: failure_pb2.Verdict) -> failure_pb2.Verdict:
    """Return the verdict itself if it is small enough, else one that is."""
    if verdict.ByteSize() <= _VERDICT_BYTES_MAX:
        return verdict
    for characters, rows in _STEPS:
        cut = _cut(verdict, characters, rows)
        if cut.ByteSize() <= _VERDICT_BYTES_MAX:
            return cut
    del cut.report.root_causes[:]  # names alone are too long: they are of no real host or role
    return cut


def _cut(verdict: failure_pb2.Verdict, characters: int, rows: int) -> failure_pb2.Verdict:
    report = verdict.report
    causes = [
        _cut_record(record, characters if index == 0 else characters // _MINOR)
        for index, record in enumerate(report.root_causes)
    ]
    return failure_pb2.Verdict(
        is_success=verdict.is_success,
        cause=verdict.cause,
        reason=_head(verdict.reason, _REASON_CHARACTERS_MAX),
        restart_count=verdict.restart_count,
        round_id=verdict.round_id if verdict.HasField("round_id") else None,
        report=failure_pb2.FailureReport(
            root_causes=causes,
            victims=[_cut_record(record, characters // _MINOR) for record in report.victims[:rows]],
            victims_count=report.victims_count,
            world_size=report.world_size,
            progress=report.progress[:rows],
            progress_count=report.progress_count,
        ),
    )


def _cut_record(record: failure_pb2.FailureRecord, characters: int) -> failure_pb2.FailureRecord:
    cut = failure_pb2.FailureRecord()
    cut.CopyFrom(record)
    cut.message = _head(cut.message, characters)
    cut.explanation = _head(cut.explanation, characters)
    cut.traceback = _tail(cut.traceback, characters)
    cut.stderr_tail = _tail(cut.stderr_tail, characters)
    if cut.HasField("hang"):
        cut.hang.stacks = _head(cut.hang.stacks, characters)
        cut.hang.evidence = _head(cut.hang.evidence, characters)
    return cut


def _head(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def _tail(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"…{text[len(text) - characters :]}"
