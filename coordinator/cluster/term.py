"""Shell. One term: the time in which a coordinator leads, with all that is served in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.api.control_service import ControlService
from drumbeat.coordinator.api.query_service import Links, QueryService
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.coordinator.shell.transport.interceptor import caller_of
from drumbeat.coordinator.shell.transport.methods import AGENT, CONTROL, QUERY, Context, Services


class Term:
    """A restored driver, and the services that it answers."""

    def __init__(
        self,
        driver: Driver,
        identity: ServerIdentity | None,
        audit: Audit,
        page_links: Links | None = None,
        run_links: Sequence[str] = (),
    ) -> None:
        self.driver, self.number = driver, driver.journal.term
        self.control = ControlService(driver, identity, audit, caller_of)
        self.queries = QueryService(driver, caller_of, page_links, run_links)
        self.queries.audited = audit.recent
        self.services = Services(self._served(), driver.limits)
        self._owner: asyncio.Task[None] | None = None
        if identity is not None and len(identity.keys) > 1:
            driver.announce(identity.keys)

    def run(self, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """Begin to decide; ``on_end`` is called with the task when it ends."""
        self._owner = asyncio.create_task(self.driver.run(), name="driver")
        self._owner.add_done_callback(on_end)

    def stop(self, error: CoordinatorError) -> None:
        """Stop deciding, and end all calls with an error.

        A write that is under way may still become durable; no client gets an answer for it.
        """
        self.driver.stop(error)
        self.services.calls.end(error)
        if self._owner is not None:
            self._owner.cancel()

    async def ended(self) -> None:
        """Wait until the driver has ended and closed its journal."""
        assert self._owner is not None, "it ran"
        self._owner.cancel()
        await asyncio.wait({self._owner})  # ``on_end`` has handled its error

    def _served(self) -> dict[ServiceDescriptor, object]:
        sessions = Sessions(self.driver)

        async def report_stacks(request: Any, context: Context) -> Any:
            return await sessions.report_stacks(request, caller_of(context))

        agents = SimpleNamespace(
            OpenSession=_stream(sessions.open),
            ReportFailures=_stream(sessions.report),
            ReportStacks=report_stacks,
            ReportLogs=_stream(sessions.report_logs),
            JoinQuorum=_stream(sessions.join_quorum),
        )
        return {AGENT: agents, QUERY: self.queries, CONTROL: self.control}


def _stream(hold: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def handle(_: object, context: Context) -> None:
        await hold(_Requests(context), context.write, caller_of(context))

    return handle


class _Requests:
    """The messages of a caller. No generator, because gRPC does not close one that it abandons."""

    def __init__(self, context: Context) -> None:
        self._read = context.read

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        if (message := await self._read()) is grpc.aio.EOF:
            raise StopAsyncIteration
        return message
