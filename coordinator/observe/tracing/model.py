"""Pure. Spans of traces. Instants are nanoseconds of the coordinator's clock."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from drumbeat.coordinator.core.run.state import RunState

Value = str | int | float | bool
Attributes = dict[str, Value]

_TRACE_BYTES, _SPAN_BYTES = 16, 8  # as OpenTelemetry has them


class Place(Struct, frozen=True):
    """Which span of which trace; the same whenever and by whichever coordinator it is told."""

    trace_id: int
    span_id: int

    @staticmethod
    def of(state: RunState, trace: str, number: int = 0) -> Place:
        """Return the root of a run's trace of this kind and number.

        Runs of one id on coordinators without a common journal began at other instants.
        """
        key = f"{state.key}\n{state.observed.ledger.began}\n{trace}\n{number}"
        digest = blake2b(key.encode(), digest_size=_TRACE_BYTES + _SPAN_BYTES).digest()
        return Place(_number(digest[:_TRACE_BYTES]), _number(digest[_TRACE_BYTES:]))

    def child(self, name: str, number: int = 0) -> Place:
        """Return a span below this one."""
        key = f"{self.trace_id:x}\n{self.span_id:x}\n{name}\n{number}"
        digest = blake2b(key.encode(), digest_size=_SPAN_BYTES).digest()
        return Place(self.trace_id, _number(digest))


class Link(Struct, frozen=True):
    """Another span that this one has to do with."""

    place: Place
    relation: str


class Moment(Struct, frozen=True, kw_only=True):
    """Something that happened within a span, or before it."""

    name: str
    at: int
    attributes: Attributes


class Span(Struct, frozen=True, kw_only=True):
    """A time that is over. ``error`` says why it was in vain; empty: it was not."""

    place: Place
    parent: Place | None = None
    name: str
    start: int
    end: int
    attributes: Attributes
    error: str = ""
    moments: tuple[Moment, ...] = ()
    links: tuple[Link, ...] = ()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest) or 1  # 0 is no id
