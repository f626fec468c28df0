"""Shell. The way to a coordinator over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from drumbeat.access.client import Credentials, Metadata
from drumbeat.agent.session import transport
from drumbeat.agent.session.access import Access
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.workers.ports import address_towards
from drumbeat.command.leader_search import is_silence, plain_details
from drumbeat.tasks import is_asked_to_end, until_one_ends
from drumbeat.text.addresses import parse_host_port
from drumbeat.text.durations import format_duration
from drumbeat.v1 import (
    common_pb2,
    failure_pb2,
    query_pb2,
    query_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from drumbeat.wire.mapping import ERROR_KEY, LOST_TERM_KEY, clock_difference_s

log = structlog.get_logger()

CLOCK_OFF_S = 10.0  # beyond which certificates and the times in logs mislead
Q = TypeVar("Q")
R = TypeVar("R")

_OPTIONS = [
    # Every session gets a connection of its own: a shared one would make a new
    # session wait for the back-off of the old one's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", transport.MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    # Half of what a heartbeat costs both sides went into probing for bandwidth.
    ("grpc.http2.bdp_probe", 0),
]
_OF_ONE = [
    # A coordinator that vanished without a word is noticed within 15 s; the
    # workers don't depend on it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without it newer releases wait a minute for the answer, whatever stands above.
    ("grpc.http2.ping_timeout_ms", 5_000),
]
_OF_SEVERAL = [
    # Within 4 s, for by then another one leads.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.min_reconnect_backoff_ms", 4_000),  # to connect, in spite of its name
]


class GrpcConnection:
    """One channel, past a proxy of the environment unless ``is_proxied``; `open` makes it."""

    def __init__(
        self, access: Access, address: str, lost_term: int, *, is_proxied: bool = False
    ) -> None:
        self._access, self._address, self._lost_term = access, address, lost_term
        pace = _OF_SEVERAL if access.has_others else _OF_ONE
        self._options = [*_OPTIONS, *pace, ("grpc.enable_http_proxy", int(is_proxied))]
        self._channel: grpc.aio.Channel | None = None
        self._stub: session_pb2_grpc.AgentServiceAsyncStub  # within a session
        self._metadata: Metadata = ()

    async def address(self) -> str:
        """Return the address of this host on the way there. Raises ``TransportError``."""
        where = parse_host_port(self._address)
        try:
            return await asyncio.to_thread(address_towards, where.host, where.port)
        except OSError as error:
            raise TransportError(f"{where.host}: {error.strerror or error}") from error

    async def open(self, requests: transport.Reports, take: transport.TakeDirective) -> None:
        """Call ``AgentService.OpenSession``, with files of tokens and certificates as they are."""
        used = await self._access.credentials(self._address)
        self._metadata = used.metadata
        channel = self._channel = self._channel_of(used)
        lost = ((LOST_TERM_KEY, str(self._lost_term)),) if self._lost_term else ()
        self._stub = session_pb2_grpc.AgentServiceStub(channel)
        call, began = self._stub.OpenSession(metadata=(*self._metadata, *lost)), time.time()

        def greet(metadata: grpc.aio.Metadata) -> None:
            if self._access.checks_clock and self._address not in self._access.known:
                _compare_clocks(metadata, self._address, began)
            self._access.known.add(self._address)

        try:
            await converse(call, requests, take, greet)
        except TransportError as error:
            raise await self._access.examine(error, self._address, used) from error

    async def report(self, requests: transport.Failures, take: transport.TakeReceipt) -> None:
        """Call ``AgentService.ReportFailures``."""
        await converse(self._stub.ReportFailures(metadata=self._metadata), requests, take)

    async def report_stacks(self, request: session_pb2.ReportStacksRequest) -> None:
        """Call ``AgentService.ReportStacks``."""
        await _answered(self._stub.ReportStacks(request, metadata=self._metadata))

    async def report_logs(self, requests: transport.Logs, take: transport.TakeCursors) -> None:
        """Call ``AgentService.ReportLogs`` on a connection of its own."""
        used = await self._access.credentials(self._address)
        async with self._channel_of(used) as channel:
            call = session_pb2_grpc.AgentServiceStub(channel).ReportLogs(metadata=used.metadata)
            await converse(call, requests, take)

    async def join_quorum(self, requests: transport.Replicas, take: transport.TakeQuorum) -> None:
        """Call ``AgentService.JoinQuorum``."""
        await converse(self._stub.JoinQuorum(metadata=self._metadata), requests, take)

    async def verdict(self, request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        """Call ``QueryService.GetReport``."""
        assert self._channel is not None, "within a session"
        stub = query_pb2_grpc.QueryServiceStub(self._channel)
        return (await _answered(stub.GetReport(request, metadata=self._metadata))).verdict

    def trust(self, authorities: Sequence[str]) -> None:
        """Have the connections after this one trust these, too."""
        self._access.trust(authorities)

    async def close(self) -> None:
        """Close the channel and every call on it."""
        if self._channel is not None:
            await self._channel.close()

    def _channel_of(self, used: Credentials) -> grpc.aio.Channel:
        options, where = [*self._options, *used.options], self._address
        if (secret := used.channel) is None:
            return grpc.aio.insecure_channel(where, options=options)
        return grpc.aio.secure_channel(where, secret, options=options)


async def _answered(call: Awaitable[R]) -> R:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _transport_error(error) from error


async def converse(
    call: grpc.aio.StreamStreamCall[Q, R],
    requests: AsyncGenerator[Q, None],
    take: Callable[[R], None],
    greet: Callable[[grpc.aio.Metadata], None] = lambda _: None,
) -> None:
    """Hold a call until it ends or either side breaks.

    ``greet`` gets the initial metadata, once the other side has answered.
    gRPC would take an error of the requests for the wish to cancel, so it does not write them.
    """
    try:
        await until_one_ends(_read(call, take, greet), _write(call, requests))
    finally:
        call.cancel()


async def _read(
    call: grpc.aio.StreamStreamCall[Q, R],
    take: Callable[[R], None],
    greet: Callable[[grpc.aio.Metadata], None],
) -> None:
    is_greeted = False
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            if not is_greeted:
                greet(await call.initial_metadata())  # at once: it came before the answer
                is_greeted = True
            take(cast("R", response))
    except grpc.aio.AioRpcError as error:
        raise _transport_error(error) from error
    except DecodeError as error:
        raise TransportError(f"an answer that cannot be read: {error}") from error
    except asyncio.CancelledError as error:
        # gRPC raises it as well when the call was cancelled, on whichever side.
        if is_asked_to_end():
            raise
        raise TransportError("the call was cancelled") from error


async def _write(call: grpc.aio.StreamStreamCall[Q, R], requests: AsyncGenerator[Q, None]) -> None:
    """Write all there is to say, then wait: how the call ends is for its reader to tell."""
    async with aclosing(requests):
        try:
            async for request in requests:
                await call.write(request)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it has ended
        except asyncio.CancelledError:
            if is_asked_to_end():
                raise
    await asyncio.get_running_loop().create_future()


def _compare_clocks(metadata: grpc.aio.Metadata, coordinator: str, began: float) -> None:
    """Warn of a clock that is far off; that alone keeps no host out of a round."""
    told = dict(tuple(metadata))  # as pairs: its `keys` are no keys before gRPC 1.80
    if (off_s := clock_difference_s(told, began, time.time())) > CLOCK_OFF_S:
        log.warning(
            "the clocks of this host and of the coordinator differ",
            coordinator=coordinator,
            reason=f"by {format_duration(off_s)}: synchronise both, e.g. with chrony",
        )


def _transport_error(error: grpc.aio.AioRpcError) -> TransportError:
    """Put a status into our words: the one place where that happens."""
    detail, status = common_pb2.ErrorDetail(), error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            detail.ParseFromString(value)
    details, refusal = error.details() or status, ""
    reason = plain_details(details)
    is_silent = is_silence(reason)
    if detail.refusal and detail.refusal in common_pb2.Refusal.values():  # else of a later version
        refusal = common_pb2.Refusal.Name(detail.refusal).removeprefix("REFUSAL_")
    if not refusal and reason == details:
        reason = f"{status.lower().replace('_', ' ')}: {reason}"
    problem = TransportError(reason, refusal, leader=detail.leader, is_silent=is_silent)
    if detail.HasField("exit_code"):
        problem.exit_code = detail.exit_code
    return problem
