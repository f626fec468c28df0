"""Shell. An agent and its coordinator in one process, without a server or a port between them.

The only module that imports both.

Messages are the same as over gRPC, handed over in memory. Nothing is journaled:
the coordinator can't outlive the agent it decides for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from drumbeat.agent.runtime.driver import drive
from drumbeat.agent.session import transport
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.v1 import failure_pb2, query_pb2, session_pb2

Q = TypeVar("Q")
R = TypeVar("R")


def run(config: AgentConfig) -> int:
    """Run a standalone agent; return the exit code. Raises ``AgentError``."""
    return asyncio.run(_run(config))


async def _run(config: AgentConfig) -> int:
    coordinator = Driver(Registry(Policy()), Journal(), Limits(), is_embedded=True)
    owner = asyncio.create_task(coordinator.run(), name="coordinator")
    connection = EmbeddedConnection(coordinator)
    agent = asyncio.create_task(drive(config, lambda *_: connection), name="agent")
    try:
        await asyncio.wait({owner, agent}, return_when=asyncio.FIRST_COMPLETED)
        if not agent.done():
            owner.result()  # raises: the coordinator only ends before the agent if it is broken
        return await agent
    finally:
        for task in (agent, owner):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class EmbeddedConnection:
    """Calls the coordinator's sessions directly. One serves all sessions of its agent."""

    def __init__(self, coordinator: Driver) -> None:
        self._coordinator, self._sessions = coordinator, Sessions(coordinator)

    async def address(self) -> str:
        """Return the loopback address: all workers are here."""
        return "127.0.0.1"

    async def open(self, requests: transport.Reports, take: transport.TakeDirective) -> None:
        await _converse(self._sessions.open, requests, take)

    async def report(self, requests: transport.Failures, take: transport.TakeReceipt) -> None:
        await _converse(self._sessions.report, requests, take)

    async def report_stacks(self, request: session_pb2.ReportStacksRequest) -> None:
        await self._sessions.report_stacks(request)

    async def report_logs(self, requests: transport.Logs, take: transport.TakeCursors) -> None:
        await _converse(self._sessions.report_logs, requests, take)

    async def join_quorum(self, requests: transport.Replicas, take: transport.TakeQuorum) -> None:
        await _converse(self._sessions.join_quorum, requests, take)

    async def verdict(self, request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        # Loaded here: asked for only of a failure whose report did not fit into the agent's end.
        from drumbeat.coordinator.api.query_service import QueryService  # noqa: PLC0415

        try:
            return (await QueryService(self._coordinator).GetReport(request)).verdict
        except CoordinatorError as error:
            raise TransportError(str(error), error.refusal) from error

    def trust(self, authorities: Sequence[str]) -> None:
        """Do nothing: there is no other process to be trusted."""

    async def close(self) -> None:
        """Do nothing: a call ends with the task that makes it."""


async def _converse(
    call: Callable[[AsyncIterator[Q], Callable[[R], Awaitable[None]]], Awaitable[None]],
    requests: AsyncGenerator[Q, None],
    take: Callable[[R], None],
) -> None:
    async def send(response: R) -> None:
        take(response)

    try:
        async with aclosing(requests):
            await call(requests, send)
    except CoordinatorError as error:
        raise TransportError(str(error), error.refusal) from error
