"""Shell. A connection to one member of etcd, and the calls on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from drumbeat.access.files import read_private, read_public
from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.coordinator.journal.etcd.messages import changed, rpc
from drumbeat.coordinator.journal.etcd.model import Changed
from drumbeat.coordinator.journal.etcd.statuses import OUTAGE_HINT, Failure, Meaning, failure
from drumbeat.text.addresses import HostPort

# To connect, with TLS, and to hear whether the member belongs to a majority.
CONNECT_TIMEOUT_S = 1.0
# A password costs etcd a tenth of a second of a processor, by design of bcrypt.
AUTHENTICATE_TIMEOUT_S = 3.0
# How long calls on a connection that is left may take.
GRACE_S = 6.0
_OPTIONS = (
    # Calls notice a member that vanished; these options are for streams without calls.
    ("grpc.keepalive_time_ms", 6_000),  # etcd ends connections that ask every 5 s or more often
    ("grpc.keepalive_timeout_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    # All of a journal fits into memory, so a page does, too; etcd limits what is sent.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a new link is a new connection
    # A member that starts without a majority accepts connections and says nothing on them. gRPC
    # keeps those of closed channels for so long, 20 s by default.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


_GIVEN_UP = Failure(Meaning.OUTAGE, "the connection was given up", OUTAGE_HINT)


class EtcdError(Exception):
    """A call failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class EtcdConnection:
    """One connection. Calls raise ``EtcdError``; so does a watch, once the link is broken off."""

    def __init__(self, address: EtcdAddress, endpoint: HostPort) -> None:
        self.endpoint = endpoint
        self.is_broken = False
        self._address = address
        self._channel = _channel(address, endpoint)
        self.kv, self.lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._watch = rpc.WatchStub(self._channel)
        self._token: tuple[tuple[str, str], ...] = ()
        self._streams: set[Any] = set()

    async def open(self) -> None:
        """Connect, and check that the member has a leader."""
        request, ask = rpc.StatusRequest(), rpc.MaintenanceStub(self._channel).Status
        if self._address.user:
            await self._authenticate()
        status = await self.call(ask, request, CONNECT_TIMEOUT_S)
        if not status.leader:
            problem = "the members of etcd that it reaches are no majority"
            raise EtcdError(Failure(Meaning.OUTAGE, problem, OUTAGE_HINT))

    async def call(self, method: Any, request: Any, timeout_s: float) -> Any:
        """Call a method of ``kv`` or ``lease``, once more with another token if that is over."""
        for is_last in (False, True):
            try:
                with _failures():
                    return await method(request, timeout=timeout_s, metadata=self._token)
            except EtcdError as failed:
                if is_last or failed.failure.meaning is not Meaning.TOKEN_OVER or not self._token:
                    raise
            await self._authenticate()
        raise AssertionError("the second one returns or raises")

    async def keep_alive(self, request: Any, timeout_s: float) -> float:
        """Keep a lease: a stream of one request."""
        with _failures():
            call = self.lease.LeaseKeepAlive(timeout=timeout_s, metadata=self._token)
            try:
                await call.write(request)
                answer = await call.read()
            finally:
                call.cancel()
        if answer is grpc.aio.EOF:
            raise EtcdError(Failure(Meaning.OUTAGE, "it ended the call", OUTAGE_HINT))
        return float(answer.TTL)

    async def watch(self, key: str, end: str, after: int) -> AsyncGenerator[Changed, None]:
        """Yield changes, until the link is broken off or the member loses its leader."""
        create = rpc.WatchCreateRequest(
            key=key.encode(), range_end=end.encode(), start_revision=after + 1
        )
        with _failures():
            call = self._watch.Watch(metadata=(*self._token, ("hasleader", "true")))
        self._streams.add(call)
        try:
            await call.write(rpc.WatchRequest(create_request=create))
            while (answer := await call.read()) is not grpc.aio.EOF and not answer.canceled:
                if answer.events:
                    yield changed(answer.header.revision, answer.events)
            why = "it ended the watch"
            if answer is not grpc.aio.EOF:
                why = "changes were compacted" if answer.compact_revision else answer.cancel_reason
            raise EtcdError(Failure(Meaning.OUTAGE, why, OUTAGE_HINT))
        except grpc.aio.AioRpcError as error:
            raise EtcdError(failure(error.code().name, error.details() or "")) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.is_broken or (task is not None and task.cancelling()):
                raise
            raise EtcdError(_GIVEN_UP) from None
        finally:
            self._streams.discard(call)
            call.cancel()

    def break_off(self) -> None:
        """End all watches; other calls may end by themselves."""
        self.is_broken = True
        for call in self._streams:
            call.cancel()

    async def close(self, grace_s: float | None = None) -> None:
        """Close the connection once its calls have ended, or the time is over."""
        self.break_off()
        await self._channel.close(grace_s)

    async def _authenticate(self) -> None:
        """Get a token for the user. The file is read each time, as its password may change."""
        password = read_private(self._address.password_file, "password of etcd").strip("\r\n")
        request = rpc.AuthenticateRequest(name=self._address.user, password=password)
        with _failures():
            ask = rpc.AuthStub(self._channel).Authenticate
            answer = await ask(request, timeout=AUTHENTICATE_TIMEOUT_S)
        self._token = (("token", answer.token),)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn gRPC's errors into ``EtcdError``."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise EtcdError(failure(error.code().name, error.details() or "")) from error
    except grpc.aio.UsageError as error:  # the channel was closed meanwhile
        raise EtcdError(_GIVEN_UP) from error


def _channel(address: EtcdAddress, endpoint: HostPort) -> grpc.aio.Channel:
    if not address.ca_file:
        return grpc.aio.insecure_channel(str(endpoint), options=_OPTIONS)
    ca = read_public(address.ca_file, "authorities of etcd").encode()
    key = cert = None
    if address.cert_file:
        cert = read_public(address.cert_file, "certificate for etcd").encode()
        key = read_private(address.key_file, "key for etcd", bytes_max=len(ca) + 65536).encode()
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    return grpc.aio.secure_channel(str(endpoint), credentials, options=_OPTIONS)
