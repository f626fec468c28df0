"""Pure. What telemetry is made of: events and metrics, as plain values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

Value = str | int | float | bool | None


class EventSource(StrEnum):
    """Whom an event is about."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. ``timestamp`` is in milliseconds since 1970, UTC.

    It is for reading and plotting: clocks of two hosts differ, and nothing is decided by it.
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the event as one line of ASCII, without a newline."""
        return _line("event", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number with a name. ``timestamp`` as in ``Event``; ``metadata`` says whose it is."""

    name: str
    value: float
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the metric as one line of ASCII, without a newline."""
        return _line("metric", self)


Item = Event | Metric


def _line(kind: str, item: Item) -> str:
    values = {each.name: getattr(item, each.name) for each in fields(item)}
    values["metadata"] = dict(item.metadata)
    return json.dumps({"kind": kind, **values}, separators=(",", ":"))
