"""Shell. HTTP connections: how many there may be, how long each step may take, and TLS."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from itertools import chain
from typing import Any

import structlog
from aiohttp import web

from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import PortInUse
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.binding import bind_error

# Read buffer of each connection, in place of asyncio's 256 KiB, with which a thousand strangers
# took 320 MB.
BUFFER_BYTES = 32 * 1024
sslproto.SSLProtocol.max_size = BUFFER_BYTES


class Handshakes:
    """Keeps the TLS context up to date. ``context`` is the one to listen with."""

    def __init__(self, identity: ServerIdentity) -> None:
        self._identity = identity
        self._shown = identity.configuration()
        self._latest = self.context = _made(self._shown)
        self.context.sni_callback = self._replace

    def _replace(self, handshake: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> int | None:
        """Use the current certificate in a handshake; called for each, also without SNI."""
        try:
            shown = self._identity.configuration()
            if shown is not self._shown:
                self._latest, self._shown = _made(shown), shown
        except Exception:  # noqa: BLE001 - the identity has told what is wrong; the one before holds
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        handshake.context = self._latest
        return None


def _made(shown: Shown) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Python reads keys from files alone; this one is in memory.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(shown.key + b"\n" + shown.chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    if shown.clients is not None:
        context.load_verify_locations(cadata=shown.clients.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed is not looked at again, and the authorities may change.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


log = structlog.get_logger()

BACKLOG = 512
# Pause before accepting again, e.g. when the process has no file descriptor left.
ACCEPT_RETRY_S = 0.5
TLS_SHUTDOWN_S = 1.0
# To read the rest of a request that was answered before all of it arrived.
LINGER_S = 1.0
# aiohttp logs each request that it cannot parse, with a traceback; strangers must not fill the log.
_SILENT = logging.getLogger("drumbeat.http")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


# Headers of every answer; `DATA` are those of answers that are not files.
SECURITY = {
    "Server": "drumbeat",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DATA = {**SECURITY, "Cache-Control": "no-store"}


class Connection(web.RequestHandler):
    """One connection. It is closed when its next step takes too long."""

    caller: str | None = None
    """The caller of its latest request; `None` until one is known."""

    def __init__(self, listener: Listener, manager: web.Server, limits: Limits) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # None is allowed
            logger=_SILENT,
            keepalive_timeout=limits.http_request_timeout_s,
            max_line_size=limits.http_line_bytes_max,
            max_field_size=limits.http_line_bytes_max,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._listener, self._limits = listener, limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self.expect(self._limits.http_request_timeout_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self.expect(None)
        super().connection_lost(exc)
        self._listener.left(self)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived. Some input makes earlier releases of aiohttp raise."""
        try:
            super().data_received(data)
        except ValueError:
            self.abort()

    def expect(self, within_s: float | None) -> None:
        """Close the connection after that time, unless this is called again by then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if within_s is not None and self.transport is not None:
            self._timer = asyncio.get_running_loop().call_later(within_s, self.abort)

    def abort(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what is not an HTTP request, or exceeds a limit."""
        response = web.json_response(_NO_REQUEST, status=status, headers=DATA)
        response.force_close()
        return response


_NO_REQUEST = {"error": {"reason": "this is no request that can be read", "hint": ""}}


def connection_of(request: web.BaseRequest) -> Connection:
    """Return the connection on which a request came."""
    connection = request.protocol
    assert isinstance(connection, Connection), "one of ours"
    return connection


class RateLimit:
    """Admits ``per_s`` a second, after a burst of ``at_once``."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._interval_s, self._burst_s = 1.0 / per_s, at_once / per_s
        self._due = float("-inf")

    def take(self, *, now: float) -> float:
        """Take the next turn; return in how many seconds it comes."""
        # Of the taken turns, not of instants: what is left of those depends on how large they are.
        taken_s = max(0.0, self._due - now) + self._interval_s
        self._due = now + taken_s
        return max(0.0, taken_s - self._burst_s)

    def give_back(self) -> None:
        """Give back a turn whose request is gone."""
        self._due -= self._interval_s


class Listener:
    """Listens on the port and accepts connections. At the limit a new one closes an old one.

    It stands in for aiohttp's sites, which limit neither handshakes nor connections (ADR 37).
    """

    def __init__(self, config: CoordinatorConfig, app: web.Application) -> None:
        self._config, self._limits = config, config.limits
        self._runner = web.AppRunner(app, handler_cancellation=True)
        self._socket: socket.socket | None = None
        # Accepted connections, oldest first; during the TLS handshake there is only a task.
        self._open: dict[Connection | asyncio.Task[None], None] = {}
        self._accepting: asyncio.Task[None] | None = None

    def bind(self) -> int:
        """Bind the port and return it. Raises ``PortInUse``."""
        host, port = self._config.host, self._config.http_port
        assert port is not None, "a page is wanted"
        try:
            addresses = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, *_, address = addresses[0]
            both = host == "::" and socket.has_dualstack_ipv6()
            self._socket = socket.create_server(
                address[:2] if family == socket.AF_INET else address,
                family=family,
                backlog=BACKLOG,
                dualstack_ipv6=both,
            )
        except OSError as error:
            raise _bind_error(host, port, error) from error
        self._socket.setblocking(False)
        return int(self._socket.getsockname()[1])

    def start(self, context: ssl.SSLContext | None) -> None:
        """Accept connections, with TLS if there is a context."""
        self._accepting = asyncio.create_task(self._accept(context), name="http")

    async def stop(self, within_s: float) -> None:
        """Accept no more, and close the open connections once they have their answers."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
        if self._socket is not None:
            self._socket.close()
        if (server := self._runner.server) is not None:
            server.pre_shutdown()
            await server.shutdown(within_s)
        for connection in list(self._open):
            _end(connection)
        await self._runner.cleanup()

    def left(self, connection: Connection) -> None:
        """Note that a connection is closed."""
        self._open.pop(connection, None)

    async def _accept(self, context: ssl.SSLContext | None) -> None:
        assert self._socket is not None, "it has a port"
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        pace = RateLimit(self._limits.http_handshakes_per_s, self._limits.http_at_once_max)
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError:  # no file descriptors, or the client is gone
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if not self._has_room():
                accepted.close()
                continue
            if context is not None and (delay_s := pace.take(now=loop.time())):
                await asyncio.sleep(delay_s)
            task = loop.create_task(self._begin(accepted, context), name="http connection")
            self._open[task] = None
            task.add_done_callback(self._begun)

    def _has_room(self) -> bool:
        if len(self._open) < self._limits.http_connections_max:
            return True
        callers = Counter(map(_caller, self._open))
        most = self._limits.http_connections_per_caller_max
        ends = (connection for connection in self._open if callers[_caller(connection)] > most)
        strangers = (connection for connection in self._open if _caller(connection) is None)
        oldest = next(chain(strangers, ends), None)
        if oldest is not None:
            del self._open[oldest]
            _end(oldest)
        return oldest is not None

    async def _begin(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        assert self._runner.server is not None, "it was started"
        connection = Connection(self, self._runner.server, self._limits)
        more: dict[str, Any] = {}
        if context is not None:
            within_s = self._limits.http_request_timeout_s
            more = {"ssl_handshake_timeout": within_s, "ssl_shutdown_timeout": TLS_SHUTDOWN_S}
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=context, **more)
        except OSError:  # also of TLS: the client does not trust this certificate, say
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        if connection.transport is not None:
            self._open[connection] = None

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("connection broken", exc_info=error)


def _caller(connection: Connection | asyncio.Task[None]) -> str | None:
    return connection.caller if isinstance(connection, Connection) else None


def _end(connection: Connection | asyncio.Task[None]) -> None:
    connection.abort() if isinstance(connection, Connection) else connection.cancel()


def _bind_error(host: str, port: int, error: OSError) -> PortInUse:
    plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
    refusal = bind_error(host, port, error if isinstance(error, socket.gaierror) else plain)
    refusal.hint = refusal.hint.replace("--port", "--http-port")
    return refusal
