"""Shell. Sessions and failure streams as streams of messages, whatever carries them.

The gRPC services and the embedded coordinator both use these; errors leave as
``CoordinatorError`` and are put into words of the transport elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator

import structlog

from coordinator import convert
from coordinator.config import Limits
from coordinator.driver import Driver
from coordinator.errors import CoordinatorError, InvalidRequest, UnknownRun
from coordinator.events import SessionClosed, SessionOpened
from coordinator.model import Desired, Pace
from coordinator.outbox import Outbox
from coordinator.view import run_message, summary_message
from drumbeat.v1 import failure_pb2, run_pb2, session_pb2

log = structlog.get_logger()

# Failure records of one stream that may wait for the journal at once.
RECORDS_IN_FLIGHT_MAX = 64


class Sessions:
    """Serves agents. One object for all of them; a session is one call of ``open``."""

    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver = driver
        self._limits = limits
        self._request_ids = itertools.count(1)

    async def open(
        self, requests: AsyncIterator[session_pb2.OpenRequest]
    ) -> AsyncIterator[session_pb2.OpenResponse]:
        """Hold one session until either side ends it. Raises ``CoordinatorError``."""
        opened = await self._hello(requests)
        outbox = self._driver.open_outbox(opened.session_id)
        reader = asyncio.create_task(self._read(requests, opened, outbox))
        try:
            self._driver.submit(opened)
            async for item in outbox.items():
                yield _response(item)
        finally:
            reader.cancel()
            self._driver.close_outbox(opened.session_id)
            self._driver.submit_always(
                SessionClosed(
                    run_id=opened.run_id,
                    session_id=opened.session_id,
                    incarnation=opened.agent.incarnation,
                )
            )

    async def report(
        self, requests: AsyncIterator[failure_pb2.ReportRequest]
    ) -> AsyncIterator[failure_pb2.ReportResponse]:
        """Journal failure records and acknowledge them in order. Raises ``CoordinatorError``."""
        pending: asyncio.Queue[asyncio.Future[failure_pb2.ReportResponse] | None]
        pending = asyncio.Queue(RECORDS_IN_FLIGHT_MAX)
        reader = asyncio.create_task(self._read_records(requests, pending))
        try:
            while (answer := await pending.get()) is not None:
                yield await answer
            await reader
        finally:
            reader.cancel()

    def get_run(self, request: run_pb2.GetRunRequest) -> run_pb2.GetRunResponse:
        """Return one run. Raises ``UnknownRun``."""
        run = self._driver.registry.runs.get(request.run_id)
        if run is None:
            raise UnknownRun(request.run_id)
        return run_pb2.GetRunResponse(run=run_message(run, now=self._driver.now()))

    def list_runs(self) -> run_pb2.ListRunsResponse:
        """Return all runs, oldest first."""
        runs = self._driver.registry.runs.values()
        return run_pb2.ListRunsResponse(runs=[summary_message(run) for run in runs])

    async def _hello(self, requests: AsyncIterator[session_pb2.OpenRequest]) -> SessionOpened:
        timeout = self._limits.hello_timeout_s
        try:
            async with asyncio.timeout(timeout):
                message = await anext(requests)
        except TimeoutError:
            raise InvalidRequest("hello", "nothing", f"a hello within {timeout:g} s") from None
        except StopAsyncIteration:
            raise InvalidRequest("hello", "nothing", "a hello as the first message") from None
        opened = convert.session_opened(message, session_id=uuid.uuid4().hex)
        if gpus := convert.gpu_summary(message):
            # For people only: the core decides nothing by it, and nobody needs it tomorrow.
            log.info(
                "GPUs of an agent", host=opened.agent.host, gpus=gpus, **{"run.id": opened.run_id}
            )
        return opened

    async def _read(
        self,
        requests: AsyncIterator[session_pb2.OpenRequest],
        opened: SessionOpened,
        outbox: Outbox,
    ) -> None:
        """Submit what the agent says; an error of its, or its end, ends the session."""
        try:
            async for message in requests:
                self._driver.submit(convert.session_event(message, opened))
        except CoordinatorError as error:
            outbox.fail(error)
        else:
            outbox.close()

    async def _read_records(
        self,
        requests: AsyncIterator[failure_pb2.ReportRequest],
        pending: asyncio.Queue[asyncio.Future[failure_pb2.ReportResponse] | None],
    ) -> None:
        async for message in requests:
            await pending.put(asyncio.ensure_future(self._accept(message)))
        await pending.put(None)

    async def _accept(self, message: failure_pb2.ReportRequest) -> failure_pb2.ReportResponse:
        """Hand one record to the core and wait until it is journaled."""
        event = convert.failure_reported(
            message,
            request_id=next(self._request_ids),
            record_bytes_max=self._limits.failure_record_bytes_max,
            text_characters_max=self._limits.failure_message_bytes_max,
        )
        answer = self._driver.expect_answer(event.request_id)
        try:
            self._driver.submit(event)
            is_kept = await answer
        finally:
            self._driver.drop_answer(event.request_id)
        return failure_pb2.ReportResponse(
            incarnation=event.record.incarnation, sequence=event.record.sequence, kept=is_kept
        )


def _response(item: Pace | Desired | tuple[str, Pace]) -> session_pb2.OpenResponse:
    match item:
        case Pace():
            return session_pb2.OpenResponse(pace=convert.pace_message(item))
        case Desired():
            return session_pb2.OpenResponse(desired=convert.desired_message(item))
        case (session_id, pace):
            welcome = session_pb2.Welcome(session_id=session_id, pace=convert.pace_message(pace))
            return session_pb2.OpenResponse(welcome=welcome)
