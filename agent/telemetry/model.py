"""Pure. What telemetry is made of: events and metrics, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = str | int | float | bool | None


class EventSource(StrEnum):
    """Whom an event is about."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. ``timestamp`` is in milliseconds since 1970, UTC.

    It is for people and for plots: clocks of two hosts differ, and nothing is decided by it.
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the event as one line of ASCII, without a newline."""
        return _line(
            kind="event",
            name=self.name,
            source=str(self.source),
            timestamp=self.timestamp,
            metadata=dict(self.metadata),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number with a name. ``timestamp`` as in ``Event``; ``metadata`` says whose it is."""

    name: str
    value: float
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the metric as one line of ASCII, without a newline."""
        return _line(
            kind="metric",
            name=self.name,
            value=self.value,
            timestamp=self.timestamp,
            metadata=dict(self.metadata),
        )


Item = Event | Metric


def _line(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))
