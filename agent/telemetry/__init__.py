"""Pure. Structured events and metrics of an agent, and who takes them: ``docs/telemetry.md``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Protocol

__all__ = ["Event", "EventHandler", "EventSource", "Metric"]

Value = str | int | float | bool | None


class EventSource(StrEnum):
    """Whom an event is about."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class _Line:
    __slots__ = ()

    def to_json(self) -> str:
        """Return the item as one line of ASCII, without a newline."""
        values = {value.name: getattr(self, value.name) for value in fields(self)}  # type: ignore[arg-type]
        kind = type(self).__name__.lower()
        return json.dumps({"kind": kind, **values}, separators=(",", ":"), default=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(_Line):
    """Something that happened. ``timestamp`` is in milliseconds since 1970, UTC.

    It is for reading and plotting: clocks of two hosts differ, and nothing is decided by it.
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(_Line):
    """A number with a name. ``timestamp`` as in ``Event``; ``metadata`` says whose it is."""

    name: str
    value: float
    timestamp: int = 0
    metadata: Mapping[str, Value] = field(default_factory=dict)


Item = Event | Metric


class EventHandler(Protocol):
    """Takes events and metrics. Called by one thread of its own, one call at a time.

    It may block and it may raise: training goes on, and what it missed is counted.
    """

    def handle(self, event: Event) -> None:
        """Take an event."""

    def put(self, metric: Metric) -> None:
        """Take a metric."""

    def close(self) -> None:
        """Pass on what is held back, and let go. The last call."""
