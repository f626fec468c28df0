"""Shell. The way to a coordinator over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from agent.ports import address_towards
from agent.transport import MESSAGE_BYTES_MAX, TransportError
from drumbeat.options import parse_host_port
from drumbeat.v1 import (
    failure_pb2,
    failure_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)

REFUSAL_KEY = "drumbeat-reason"

_OPTIONS = [
    # Every session gets a connection of its own: a shared one would make a new
    # session wait for the back-off of the old one's.
    ("grpc.use_local_subchannel_pool", 1),
    # A coordinator that vanished without a word is noticed within 15 s; the
    # workers don't depend on it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
]


class GrpcTransport:
    """Connects to ``host:port``."""

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator

    async def address(self) -> str:
        """Return the address of this host on the way there. Raises ``TransportError``."""
        where = parse_host_port(self._coordinator)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, address_towards, where.host, where.port)
        except OSError as error:
            raise TransportError(f"{where.host}: {error.strerror or error}") from error

    def connect(self) -> GrpcConnection:
        """Return a new connection."""
        return GrpcConnection(self._coordinator)


class GrpcConnection:
    """One channel. Raises ``TransportError`` for every failed call."""

    def __init__(self, coordinator: str) -> None:
        self._channel = grpc.aio.insecure_channel(coordinator, options=_OPTIONS)
        self._sessions = session_pb2_grpc.SessionServiceStub(self._channel)
        self._failures = failure_pb2_grpc.FailureServiceStub(self._channel)
        self._runs = run_pb2_grpc.RunServiceStub(self._channel)

    async def open(
        self, requests: AsyncIterator[session_pb2.OpenRequest]
    ) -> AsyncIterator[session_pb2.OpenResponse]:
        """Call ``SessionService.Open``."""
        try:
            async for response in self._sessions.Open(requests):
                yield response
        except grpc.aio.AioRpcError as error:
            raise _transport_error(error) from error

    async def report(
        self, requests: AsyncIterator[failure_pb2.ReportRequest]
    ) -> AsyncIterator[failure_pb2.ReportResponse]:
        """Call ``FailureService.Report``."""
        try:
            async for response in self._failures.Report(requests):
                yield response
        except grpc.aio.AioRpcError as error:
            raise _transport_error(error) from error

    async def verdict(self, request: run_pb2.GetVerdictRequest) -> session_pb2.Verdict:
        """Call ``RunService.GetVerdict``."""
        try:
            response: run_pb2.GetVerdictResponse = await self._runs.GetVerdict(request)
        except grpc.aio.AioRpcError as error:
            raise _transport_error(error) from error
        return response.verdict

    async def close(self) -> None:
        """Close the channel and every call on it."""
        await self._channel.close()


def _transport_error(error: grpc.aio.AioRpcError) -> TransportError:
    """Put a status into our words: the one place where that happens."""
    # Pairs in every version; older ones have `keys`, too, and are no mapping all the same.
    metadata = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416
    refusal = str(metadata.get(REFUSAL_KEY, "")).removeprefix("REFUSAL_")
    reason = error.details() or error.code().name
    if not refusal:
        reason = f"{error.code().name.lower().replace('_', ' ')}: {reason}"
    return TransportError(reason, refusal)
