"""Pure. Failures of workers as events of spans, bounded and without tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf

from drumbeat.access.redaction import without_tokens
from drumbeat.coordinator.core.failures.root_cause import CAUSES_SHOWN_MAX, root_causes
from drumbeat.coordinator.core.model import FailureRecord
from drumbeat.coordinator.observe.tracing.model import Attributes, Moment
from drumbeat.text.durations import nanoseconds

MESSAGE_CHARACTERS_MAX = 1_024
STACKTRACE_CHARACTERS_MAX = 8_192  # its end, where the exception is

_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,127}):", re.ASCII)


def failures_of(records: Iterable[FailureRecord], round_id: int) -> tuple[Moment, ...]:
    """Return the root causes of a round's end, as far as their records are there.

    Of failures in iterations those of the latest one: it went on after all others.
    """
    of_round = [record for record in records if record.round_id == round_id]
    latest = max(map(_iteration, of_round), default=inf)
    causes = root_causes((record for record in of_round if _iteration(record) == latest), round_id)
    return moments_of(causes)


def moments_of(causes: Iterable[FailureRecord]) -> tuple[Moment, ...]:
    """Return root causes as events."""
    return tuple(_moment(record) for record in list(causes)[:CAUSES_SHOWN_MAX])


def bounded(text: str, most: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Return a text as it may leave: no longer than this, and without tokens."""
    shown = without_tokens(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _moment(record: FailureRecord) -> Moment:
    attributes: Attributes = {
        "exception.type": _kind(record),
        "exception.message": bounded(record.message.strip()),
        "drumbeat.worker.rank": record.worker.rank,
        "drumbeat.agent.name": record.agent,
        "host.name": record.host,
        "process.pid": record.pid,
        "process.exit.code": record.exit_code,
    }
    if record.traceback:
        end = without_tokens(record.traceback)[-STACKTRACE_CHARACTERS_MAX:]
        attributes["exception.stacktrace"] = end
    if record.hang is not None and record.hang.scope:
        attributes["drumbeat.hang.scope"] = bounded(record.hang.scope)
    return Moment(name="exception", at=nanoseconds(record.happened_at), attributes=attributes)


def _kind(record: FailureRecord) -> str:
    """Return the class of an exception, or else how the worker ended."""
    if record.hang is not None:
        return f"Hang.{record.hang.kind}"
    if exception := _EXCEPTION.match(record.message.strip()):
        return exception[1]
    return record.signal_name or f"exit code {record.exit_code}"


def _iteration(record: FailureRecord) -> float:
    return inf if record.interruption is None else record.iteration
