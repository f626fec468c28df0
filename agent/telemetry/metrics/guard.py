"""Shell. Who may scrape an agent, and what its connections are encrypted with."""

from __future__ import annotations

import hmac
import socket
import ssl
import threading

import structlog

from drumbeat.access.files import read_private
from drumbeat.access.problem import AccessProblem
from drumbeat.agent.errors import UsageError
from drumbeat.agent.settings.config import AgentConfig

log = structlog.get_logger()

_BEARER = "Bearer "
_HINT = "name a certificate in PEM and its key, without a passphrase"


class Guard:
    """Reads files at each connection, so that they can be replaced. For any thread."""

    def __init__(self, config: AgentConfig) -> None:
        self._certificate, self._key = config.metrics_cert, config.metrics_key
        self._token_file = config.metrics_token_file
        self._complaint = ""
        self._lock = threading.Lock()

    @property
    def scheme(self) -> str:
        """How its address begins."""
        return "http" if self._certificate is None else "https"

    def check(self) -> None:
        """Raise ``UsageError`` if no scrape could be answered."""
        try:
            self._context()
            self._token()
        except AccessProblem as problem:
            raise UsageError(problem.text, problem.hint) from problem

    def wrapped(self, connection: socket.socket) -> socket.socket:
        """Return a connection with TLS, if there is to be any; its handshake comes with use.

        Raises ``OSError``.
        """
        try:
            context = self._context()
        except AccessProblem as problem:
            self._complain(problem)
            raise OSError(problem.text) from problem
        if context is None:
            return connection
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def admits(self, authorization: str) -> bool:
        """Return whether a header ``Authorization`` lets its sender in."""
        try:
            token = self._token()
        except AccessProblem as problem:
            self._complain(problem)
            return False
        given = authorization.removeprefix(_BEARER).strip().encode(errors="replace")
        has_scheme = authorization.startswith(_BEARER)
        return token is None or (has_scheme and hmac.compare_digest(given, token.encode()))

    def _context(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # A passphrase would be asked for at the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except (OSError, ValueError) as error:
            files = f"the --metrics-cert {self._certificate} and --metrics-key {self._key}"
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise AccessProblem(f"{files} cannot be used: {reason}", _HINT) from error
        return context

    def _token(self) -> str | None:
        if self._token_file is None:
            return None
        return read_private(self._token_file, "--metrics-token-file").strip()

    def _complain(self, problem: AccessProblem) -> None:
        """Log what keeps scrapes out, once as long as it is the same."""
        with self._lock:
            is_news, self._complaint = problem.text != self._complaint, problem.text
        if is_news:
            log.warning("scrape refused", reason=problem.text, advice=problem.hint)
