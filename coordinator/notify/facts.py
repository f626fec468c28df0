"""Pure. Which journaled decisions on a run become messages, and what these say.

Everything is read from the run's durable state and the decision, and only the leader that took the
decision sees it as news. So no fact is told twice, whichever coordinator leads afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from urllib.parse import quote

from msgspec import Struct

from drumbeat.access.redactor import without_named_values
from drumbeat.coordinator.core.failures import root_cause
from drumbeat.coordinator.core.inprocess import records as inprocess
from drumbeat.coordinator.core.model import FailureRecord, HangDiagnosis, VerdictCause
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.tracing.failures import bounded
from drumbeat.text.format import count, one_line, printable

# Share of the restart budget that is told of when it is reached.
BUDGET_PERCENT = 80
CAUSES_CHARACTERS_MAX = 2_000


class Level(StrEnum):
    """How services show a message. The values are those of apprise."""

    INFO = "info"
    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"


class Message(Struct, frozen=True, kw_only=True):
    """One notification. ``fact`` is a fixed phrase, by which messages are counted."""

    fact: str
    level: Level
    title: str
    body: str


def message(fact: str, level: Level, subject: str, lines: Iterable[str]) -> Message:
    """Return a message without control characters, and without values that are named as secrets.

    It goes to services of others.
    """
    body = without_named_values(printable("\n".join(lines)))
    title = one_line(f"{subject}: {fact}")
    return Message(fact=fact, level=level, title=title, body=body)


def messages_of(state: RunState, record: rec.Record, page: str = "") -> Iterator[Message]:
    """Yield what a record is news of; ``state`` is that of the run before it.

    ``page`` is the address of the page, empty if none is served.
    """
    for fact, level, reason, causes in _news(state, record):
        is_charged = isinstance(record, rec.RoundEnded) and record.is_charged
        used = state.restarts_used + is_charged
        restarts = f"Restarts: {used} of {state.spec.restarts_max} used"
        if state.spec.launcher:
            restarts = f"Restarts are counted by {state.spec.launcher}"
        if state.iterations_restarted:
            restarts += f"; {count(state.iterations_restarted, 'restart')} in process"
        why = bounded("\n".join(causes), CAUSES_CHARACTERS_MAX)
        link = f"Page: {page}runs/{quote(state.run_id, safe='')}" if page else ""
        lines = filter(None, (f"Reason: {bounded(reason)}", why, restarts, link))
        yield message(fact, level, f"run {state.run_id}", lines)


_News = tuple[str, Level, str, Iterable[str]]


def _news(state: RunState, record: rec.Record) -> Iterator[_News]:
    """Yield fact, level, reason and the lines about its cause."""
    hang = state.current_hang
    match record:
        case rec.HangJudged() if hang is None:
            yield "hangs", Level.WARNING, record.hang.summary, _of_hang(record.hang)
        case rec.HangOver() | rec.RoundEnded() if hang is not None:
            yield "the hang is over", Level.INFO, record.reason, ()
        case inprocess.IterationBegan() | inprocess.IterationInterrupted() if hang is not None:
            yield "the hang is over", Level.INFO, inprocess.decision_of(record)[1], ()
    if isinstance(record, rec.RoundEnded) and record.is_charged:
        limit = BUDGET_PERCENT * state.spec.restarts_max / 100
        if state.restarts_peak < limit <= state.restarts_used + 1:
            fact, causes = "restart budget almost used", _of_round(state)
            yield fact, Level.WARNING, record.reason, causes
    elif isinstance(record, rec.HostNoted) and record.kind is rec.HostEvent.EXCLUDED:
        yield "host excluded", Level.WARNING, record.reason, ()
    elif isinstance(record, rec.RunEnded):
        yield _end(record)


def _end(record: rec.RunEnded) -> _News:
    verdict = record.verdict
    if verdict.is_success:
        return "succeeded", Level.SUCCESS, verdict.reason, ()
    if verdict.cause is VerdictCause.STOPPED:
        return "stopped", Level.INFO, verdict.reason, ()
    causes = verdict.report.root_causes if verdict.report else ()
    return "failed", Level.FAILURE, verdict.reason, _failure_lines(causes)


def _of_hang(hang: HangDiagnosis) -> Iterator[str]:
    for cause in hang.causes[: root_cause.CAUSES_SHOWN_MAX]:
        yield f"Root cause: {cause}, {bounded(cause.place)}"
    if not hang.causes:
        yield "Root cause: the stacks do not tell which rank the others wait for"
    yield "Its workers are being killed" if hang.is_held else "Nothing is killed for it"


def _of_round(state: RunState) -> Iterator[str]:
    assert state.round is not None, "one has ended"
    records = root_cause.unhealed(state.failures, state.iterations)
    return _failure_lines(root_cause.root_causes(records, state.round.round_id, state.hang))


def _failure_lines(causes: Sequence[FailureRecord]) -> Iterator[str]:
    """Say who failed, what it said last and what is likely behind it, as `coordinator why` does."""
    if not causes:
        yield "Root cause: no worker reported a failure"
    for cause in causes[: root_cause.CAUSES_SHOWN_MAX]:
        yield f"Root cause: {bounded(root_cause.describe([cause]))}"
        said = cause.message.strip() or cause.stderr_tail.strip()
        if said and said.splitlines()[-1] not in root_cause.describe([cause]):
            yield f"It said: {bounded(said.splitlines()[-1])}"
        if cause.explanation:
            yield f"Likely why: {bounded(cause.explanation)}"
