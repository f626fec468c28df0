"""A collector of OpenTelemetry that keeps what it is told, and bad ones."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.waiting import MS

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
DEADLINE_S = 10_000 * MS


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it came."""

    span: trace_pb2.Span
    resource: Mapping[str, Any]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What it says of itself."""
        return values(self.span.attributes)

    @property
    def took_s(self) -> float:
        """How long it took."""
        return (self.span.end_time_unix_nano - self.span.start_time_unix_nano) / 1e9

    @property
    def error(self) -> str:
        """Its status, if that is an error."""
        status = self.span.status
        return status.message if status.code == trace_pb2.Status.STATUS_CODE_ERROR else ""


class Collector:
    """Takes spans at ``endpoint``. ``answer`` is called for each request, and may be replaced."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[ReceivedSpan] = []
        self.metadata: list[dict[str, Any]] = []
        self.answer: Callable[[grpc.ServicerContext], bytes] = lambda _context: b""
        self._news = threading.Condition()
        self._pool = ThreadPoolExecutor(4)
        handler = grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "Export": grpc.unary_unary_rpc_method_handler(
                    self._export,
                    request_deserializer=service_pb2.ExportTraceServiceRequest.FromString,
                )
            },
        )
        self._server = grpc.server(self._pool, handlers=[handler])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        """Be gone."""
        self._server.stop(0).wait()
        self._pool.shutdown()

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of this name, in the order in which they began."""
        with self._news:
            found = [each for each in self.spans if each.span.name == name]
        return sorted(found, key=lambda each: each.span.start_time_unix_nano)

    def wait_for(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """Return the spans of this name once there are so many."""
        with self._news:
            is_there = self._news.wait_for(lambda: len(self.named(name)) >= count, DEADLINE_S)
        assert is_there, f"{count} of {name}; there are {[each.span.name for each in self.spans]}"
        return self.named(name)

    def _export(
        self, request: service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> bytes:
        answer = self.answer(context)
        with self._news:
            self.metadata.append(dict(context.invocation_metadata()))
            self.spans += [
                ReceivedSpan(span, values(resource.resource.attributes))
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
            self._news.notify_all()
        return answer


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Let a collector take spans while the context is open."""
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.close()


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a mapping."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
