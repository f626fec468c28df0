"""Shell. How messages travel to a coordinator: the interface."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from drumbeat.v1 import failure_pb2, query_pb2, session_pb2

# Answers hold at most one failure report; larger ones are not ours.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Reports = AsyncGenerator[session_pb2.AgentReport, None]
TakeDirective = Callable[[session_pb2.Directive], None]
Failures = AsyncGenerator[session_pb2.ReportFailuresRequest, None]
TakeReceipt = Callable[[session_pb2.ReportFailuresResponse], None]
Logs = AsyncGenerator[session_pb2.ReportLogsRequest, None]
TakeCursors = Callable[[session_pb2.ReportLogsResponse], None]
Replicas = AsyncGenerator[session_pb2.JoinQuorumRequest, None]
TakeQuorum = Callable[[session_pb2.JoinQuorumResponse], None]


class TransportError(Exception):
    """A call ended with an error. ``refusal`` is the name of a ``drumbeat.v1.Refusal`` or empty.

    ``is_final``: the next attempt ends as this one, unless something is changed by hand; ``hint``
    says what. ``leader``: address of the coordinator that is named in place of the one that was
    called. ``is_silent``: nothing was heard from the other side any more. ``exit_code``: that of
    agents of a run that has ended, if the call was refused for that.
    """

    def __init__(
        self,
        reason: str,
        refusal: str = "",
        *,
        hint: str = "",
        is_final: bool = False,
        leader: str = "",
        is_silent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason, self.refusal, self.hint, self.is_final = reason, refusal, hint, is_final
        self.leader, self.is_silent = leader, is_silent
        self.exit_code: int | None = None


class Connection(Protocol):
    """One connection to a coordinator, for the life of one session."""

    async def address(self) -> str:
        """Return this host's address as seen from there. Raises ``TransportError``."""

    async def open(self, requests: Reports, take: TakeDirective) -> None:
        """Call ``AgentService.OpenSession``, and hand each answer to ``take`` until the call ends.

        Closes ``requests``. Raises errors of theirs or of ``take``, and ``TransportError``.
        """

    async def report(self, requests: Failures, take: TakeReceipt) -> None:
        """Do the same with ``AgentService.ReportFailures``."""

    async def report_stacks(self, request: session_pb2.ReportStacksRequest) -> None:
        """Call ``AgentService.ReportStacks``. Raises ``TransportError``."""

    async def report_logs(self, requests: Logs, take: TakeCursors) -> None:
        """Call ``AgentService.ReportLogs`` as ``report`` does, on a connection of its own."""

    async def join_quorum(self, requests: Replicas, take: TakeQuorum) -> None:
        """Call ``AgentService.JoinQuorum`` as ``report`` does."""

    async def verdict(self, request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        """Call ``QueryService.GetReport``. Raises ``TransportError``."""

    def trust(self, authorities: Sequence[str]) -> None:
        """Let the next connection take a coordinator with these authorities for the right one."""

    async def close(self) -> None:
        """End whatever is under way."""


Connect = Callable[[str, int], Connection]
"""Returns a new connection to an address; it is made when first used. The other argument is the
term of a coordinator that was lost, 0 if none was."""
