"""Shell. Spans on their way to a collector, by OpenTelemetry's SDK. Nothing waits for them.

Loaded only when traces are asked for: it needs the extra ``otel``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import structlog

from drumbeat import VERSION
from drumbeat.access.redaction import without_tokens
from drumbeat.coordinator.errors import MissingExtra, TracesUnusable
from drumbeat.coordinator.observe.tracing.spans import spans_of
from drumbeat.text.durations import nanoseconds
from drumbeat.text.format import count

_PACKAGE = "opentelemetry-exporter-otlp-proto-grpc"  # brings all others

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanContext,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
except ImportError as error:
    raise MissingExtra("--otlp-endpoint", _PACKAGE, "otel") from error

if TYPE_CHECKING:
    from drumbeat.coordinator.core.run.records import Record
    from drumbeat.coordinator.core.run.state import RunState
    from drumbeat.coordinator.observe.tracing.model import Place, Span

log = structlog.get_logger()

# Spans that wait for a collector, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise; those of more are
# dropped and counted. A restart has a handful.
WAITING_MAX = 2_048
# The end of the process waits so long for spans that are still to be sent.
CLOSE_WITHIN_S = 2.0
_REASON_CHARACTERS_MAX = 500
# The time of day is set right, or the coordinator's clock jumps as another one leads.
_DEVIATION_NS = 5_000_000
# The SDK's, and that of gRPC's clients for answers that are none.
_LOGGERS = ("opentelemetry", "grpc._common")


class _Ids(IdGenerator):
    """Gives the next span the ids that it has."""

    place: Place

    def generate_trace_id(self) -> int:
        return self.place.trace_id

    def generate_span_id(self) -> int:
        return self.place.span_id


class _Reasons(logging.Handler):
    """Takes what the SDK logs, to be said in our own log; keeps the latest."""

    latest = ""
    has_error = False

    def emit(self, record: logging.LogRecord) -> None:
        self.latest = without_tokens(record.getMessage())[:_REASON_CHARACTERS_MAX]
        self.has_error |= record.levelno >= logging.ERROR


class _Counting(SpanExporter):
    """Counts what becomes of spans, and says when they are lost. Called by the SDK's thread."""

    def __init__(self, exporter: SpanExporter, reasons: _Reasons) -> None:
        self.settled = self.lost = 0
        self._exporter, self._reasons = exporter, reasons
        self._failed_since: float | None = None
        self._lost_before = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - what the SDK's exporter did not expect
            result = SpanExportResult.FAILURE
            self._reasons.latest = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]
        is_lost = result is not SpanExportResult.SUCCESS
        self.lost += len(spans) if is_lost else 0
        self.settled += len(spans)
        now = time.monotonic()
        if is_lost and self._failed_since is None:
            self._failed_since, self._lost_before = now, self.lost - len(spans)
            log.warning("traces do not reach their collector", reason=self._reasons.latest)
        elif not is_lost and self._failed_since is not None:
            since_s, self._failed_since = round(now - self._failed_since, 1), None
            lost = self.lost - self._lost_before
            what = "traces reach their collector again"
            text = f"{what} after {since_s:g} s; {count(lost, 'span')} lost"
            log.warning(what, message=text, after_s=since_s, spans_lost=lost)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Tracing:
    """Tells a collector of what is journaled. One event loop uses it."""

    def __init__(self, endpoint: str) -> None:
        """Begin, to wherever this leads. Raises ``TracesUnusable``."""
        self._is_closed = False
        self._handed = self._refused = 0
        self._offset = 0  # of the time of day to the coordinator's clock
        self._ids, self._reasons = _Ids(), _Reasons()
        self._loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in self._loggers:
            logger.addHandler(self._reasons)
        try:
            waiting = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "")
            self._waiting_max = int(waiting) if waiting else WAITING_MAX
            self._exporter = _Counting(OTLPSpanExporter(endpoint), self._reasons)
            self._provider = TracerProvider(
                resource=_resource(), id_generator=self._ids, shutdown_on_exit=False
            )
            self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._waiting_max)
        except Exception as error:  # of kinds of the SDK's own, too
            raise TracesUnusable(error) from error
        if self._reasons.has_error:  # what it can't read it would go on without
            raise TracesUnusable(self._reasons.latest)
        if self._reasons.latest:
            log.warning("unsupported OTLP setting", reason=self._reasons.latest)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("drumbeat", VERSION)

    @property
    def dropped(self) -> int:
        """How many spans no collector has, for lack of room or because none took them."""
        return self._refused + self._exporter.lost

    def observer(self, clock: Callable[[], float]) -> Callable[[RunState, Record], None]:
        """Return what is to be called with each record as it is durable, and its run before it.

        ``clock`` is that of the coordinator. What is returned never raises and never blocks.
        """

        def observe(state: RunState, record: Record) -> None:
            try:
                if spans := spans_of(state, record):
                    self._place_in_time(clock())
                    for span in spans:
                        self._tell(span)
            except Exception:  # no decision depends on what is told of it
                log.exception("a span could not be told", **{"run.id": state.run_id})

        return observe

    async def close(self) -> None:
        """Send what waits, for a short while, and end."""
        if self._is_closed:
            return
        self._is_closed = True
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(ended.set)

        thread = Thread(target=shut_down, name="traces", daemon=True)
        thread.start()
        for _ in range(2):
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await ended.wait()
                    break
            self._exporter.shutdown()  # breaks off a call that is under way
        for logger in self._loggers:
            logger.removeHandler(self._reasons)
        waiting = self._handed - self._exporter.settled
        if dropped := self.dropped + waiting:
            what, why = f"{count(dropped, 'span')} lost", self._reasons.latest
            text = f"{what}: {why}" if why else f"{what}: the collector took too long"
            log.warning("spans were lost", message=text, spans_lost=dropped, reason=why)

    def _place_in_time(self, now: float) -> None:
        """Find the time of day, unless it went on as before: spans of one trace fit each other."""
        offset = time.time_ns() - nanoseconds(now)
        if abs(offset - self._offset) > _DEVIATION_NS:
            self._offset = offset

    def _tell(self, span: Span) -> None:
        """Hand a span on, or drop it if too many wait."""
        if self._is_closed or not self._is_sampled(span):
            return
        if self._handed - self._exporter.settled >= self._waiting_max:
            self._refused += 1
            return
        self._ids.place, offset = span.place, self._offset
        parent = Context()
        if span.parent is not None:
            parent = set_span_in_context(NonRecordingSpan(_context(span.parent)), parent)
        exported = self._tracer.start_span(
            span.name,
            context=parent,
            attributes=span.attributes,
            links=[Link(_context(to.place), {"drumbeat.link": to.relation}) for to in span.links],
            start_time=span.start + offset,
        )
        if not exported.is_recording():
            return  # OTEL_SDK_DISABLED
        self._handed += 1
        for moment in span.moments:
            exported.add_event(moment.name, moment.attributes, moment.at + offset)
        if span.error:
            exported.set_status(Status(StatusCode.ERROR, span.error))
        exported.end(span.end + offset)

    def _is_sampled(self, span: Span) -> bool:
        """Ask for the whole trace: the SDK would ask for its root alone, which comes last."""
        result = self._provider.sampler.should_sample(None, span.place.trace_id, span.name)
        return bool(result.decision.is_sampled())  # type: ignore[no-untyped-call]


def _context(place: Place) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(place.trace_id, place.span_id, is_remote=False, trace_flags=sampled)


def _resource() -> Resource:
    """Return who tells; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    ours: dict[str, str | int] = {
        "service.name": "drumbeat-coordinator",
        "service.version": VERSION,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": os.uname().nodename,
        "process.pid": os.getpid(),
    }
    return Resource.create({**ours}).merge(OTELResourceDetector().detect())
