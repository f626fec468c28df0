"""Shell. How messages travel to a coordinator: the interface, and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from drumbeat.v1 import failure_pb2, run_pb2, session_pb2

# Answers hold at most one failure report; larger ones are not ours.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024


class TransportError(Exception):
    """A call ended with an error. ``refusal`` is the name of a ``drumbeat.v1.Refusal`` or empty."""

    def __init__(self, reason: str, refusal: str = "") -> None:
        super().__init__(reason, refusal)
        self.reason = reason
        self.refusal = refusal

    def __str__(self) -> str:
        return self.reason


class Connection(Protocol):
    """One connection to a coordinator, for the life of one session."""

    def open(
        self, requests: AsyncIterator[session_pb2.OpenRequest]
    ) -> AsyncIterator[session_pb2.OpenResponse]:
        """Call ``SessionService.Open``. Raises ``TransportError``."""
        ...

    def report(
        self, requests: AsyncIterator[failure_pb2.ReportRequest]
    ) -> AsyncIterator[failure_pb2.ReportResponse]:
        """Call ``FailureService.Report``. Raises ``TransportError``."""
        ...

    async def verdict(self, request: run_pb2.GetVerdictRequest) -> session_pb2.Verdict:
        """Call ``RunService.GetVerdict``. Raises ``TransportError``."""
        ...

    async def close(self) -> None:
        """End whatever is under way."""
        ...


class Transport(Protocol):
    """A way to a coordinator."""

    async def address(self) -> str:
        """Return this host's address as seen from there. Raises ``TransportError``."""
        ...

    def connect(self) -> Connection:
        """Return a new connection; it is made when first used."""
        ...
