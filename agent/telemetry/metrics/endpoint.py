"""Shell. Where an agent's metrics are scraped: needs prometheus_client, of the extra ``metrics``.

Threads of its own take connections and answer. The agent's loop is asked for its state at most
every ``FRESH_S``, however many clients scrape and however slow they are. Why the server of
prometheus_client is not used: ADR 50.
"""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog

from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry.metrics.collected import Host, LookNow, Metrics
from drumbeat.agent.telemetry.metrics.guard import Guard
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.command.metrics import OPENMETRICS, TEXT, is_openmetrics
from drumbeat.text.addresses import HostPort

log = structlog.get_logger()

# One more ends the oldest: a scrape is over at once, so that who holds many keeps none away.
CONNECTIONS_MAX = 8
BACKLOG = 128
REQUEST_TIMEOUT_S = 5.0  # for each read and write of a connection
ACCEPT_RETRY_S = 1.0  # where the process has no descriptor left
CLOSE_S = 1.0
GZIP_LEVEL = 5
COMPRESSED_FROM_BYTES = 1_000


class Endpoint:
    """Serves ``/metrics`` at ``--metrics-port`` until it is closed; a port in use is logged."""

    def __init__(self, config: AgentConfig, look: LookNow, gpus: Sequence[Gpu]) -> None:
        assert config.metrics_port is not None, "it is asked for"
        self._address = config.metrics_port
        self.metrics = Metrics(look, Host(gpus))
        self._guard = Guard(config)
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket | None:
        """Take the port, or say why that can't be: training does not depend on it."""
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            reason = f"--metrics-port {self._address}: {getattr(error, 'strerror', '') or error}"
            log.warning("no metrics served", message=f"no metrics served: {reason}", reason=reason)
            return None
        where = f"{self._guard.scheme}://{HostPort(host, listening.getsockname()[1])}/metrics"
        log.info("metrics served", message=f"metrics are at {where}")
        return listening

    def close(self) -> None:
        """Let go of the port and of all connections."""
        with self._lock:
            self._closed.set()
            if self._socket is not None:
                _end(self._socket)  # wakes who waits in ``accept``
        self._thread.join(CLOSE_S)
        with self._lock:
            left = dict(self._open)
        for connection, thread in left.items():
            _end(connection)
            thread.join(CLOSE_S)

    def _run(self) -> None:
        if (listening := self._listen()) is None:
            return
        with listening:
            with self._lock:
                self._socket = listening
            while not self._closed.is_set():
                self._accept(listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except OSError:
            self._closed.wait(ACCEPT_RETRY_S)
            return
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(accepted)
            connection = self._guard.wrapped(accepted)
            stack.pop_all()
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        """Answer on a connection, in a thread of its own."""
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="metrics-scrape", daemon=True
        )
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _end(oldest)
            self._open[connection] = thread
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                _Scrape(connection, self.metrics, self._guard)
        except OSError:
            pass  # the client is gone, or too slow
        finally:
            with self._lock:
                self._open.pop(connection, None)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        # Not that of TLS, which belongs to the thread that answers.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Scrape(BaseHTTPRequestHandler):
    """Answers one request; each has a connection of its own."""

    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "drumbeat", ""

    def __init__(self, connection: socket.socket, metrics: Metrics, guard: Guard) -> None:
        self._metrics, self._guard = metrics, guard
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with the metrics, or that they are elsewhere."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="metrics are at /metrics")
            return
        if not self._guard.admits(self.headers.get("Authorization", "")):
            self.send_error(HTTPStatus.UNAUTHORIZED, explain="it takes a bearer token")
            return
        is_open = is_openmetrics(self.headers.get("Accept", ""))
        try:
            body = self._metrics.text(is_open=is_open).encode()
        except (TimeoutError, RuntimeError):  # it is busy, or its loop has ended
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain="the agent does not answer")
            return
        is_packed = "gzip" in self.headers.get("Accept-Encoding", "")
        if is_packed := is_packed and len(body) >= COMPRESSED_FROM_BYTES:
            body = gzip.compress(body, GZIP_LEVEL)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", OPENMETRICS if is_open else TEXT)
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - its name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Say nothing: a scrape is no news."""
