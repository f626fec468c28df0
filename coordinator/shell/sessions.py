"""Shell. Sessions and failure streams as streams of messages, whatever carries them.

The gRPC services and the embedded coordinator both use these; errors leave as
``CoordinatorError`` and are put into words of the transport elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from google.protobuf.message import DecodeError, Message

from coordinator.config import Limits
from coordinator.core import effects as fx
from coordinator.core.events import LimitsReset, SessionOpened
from coordinator.core.model import FailureRecord
from coordinator.core.run.state import RunState
from coordinator.errors import CoordinatorError, InvalidRequest, UnknownRun
from coordinator.shell.driver import Driver
from coordinator.shell.outbox import Outbox
from coordinator.wire import (
    inprocess as convert_inprocess,
)
from coordinator.wire import (
    progress as convert_progress,
)
from coordinator.wire import (
    session as convert,
)
from coordinator.wire.run_status import run_page, summary_message
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import failure_pb2, run_pb2, session_pb2

log = structlog.get_logger()

# Failure records of one stream that may wait for the journal at once.
RECORDS_IN_FLIGHT_MAX = 64


_Asked = tuple[FailureRecord, asyncio.Future[int | None]]


class Sessions:
    """Serves agents. One object for all of them; a session is one call of ``open``."""

    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver = driver
        self._limits = limits
        self._request_ids = itertools.count(1)

    async def open(
        self,
        requests: AsyncIterator[session_pb2.OpenRequest],
        send: Callable[[session_pb2.OpenResponse], Awaitable[None]],
    ) -> None:
        """Hold one session until either side ends it. Raises ``CoordinatorError``."""
        opened = await self._hello(requests)
        outbox = self._driver.open(opened)
        try:
            await until_one_ends(self._read(requests, opened), _write(outbox, send), outbox.ended())
        finally:
            self._driver.close(opened)

    async def report(
        self,
        requests: AsyncIterator[failure_pb2.ReportRequest],
        send: Callable[[failure_pb2.ReportResponse], Awaitable[None]],
    ) -> None:
        """Journal failure records and acknowledge them in order. Raises ``CoordinatorError``."""
        pending: asyncio.Queue[_Asked | CoordinatorError | None]
        pending = asyncio.Queue(RECORDS_IN_FLIGHT_MAX)
        await until_one_ends(
            _acknowledge(pending, send),
            self._read_records(requests, pending),
        )

    def get_run(self, request: run_pb2.GetRunRequest) -> run_pb2.GetRunResponse:
        """Return one run, or a page of its agents. Raises ``UnknownRun``."""
        state = self._journaled(request)
        run = self._driver.registry.runs.get(state.key)
        return run_page(request, state, run, now=self._driver.now())

    def get_verdict(self, request: run_pb2.GetVerdictRequest) -> run_pb2.GetVerdictResponse:
        """Return how a run ended. Raises ``UnknownRun``."""
        verdict = self._journaled(request).verdict
        if verdict is None:
            raise UnknownRun(request.run_id, "that has ended")
        return run_pb2.GetVerdictResponse(verdict=convert.verdict_message(verdict))

    async def reset_limits(
        self, request: run_pb2.ResetLimitsRequest
    ) -> run_pb2.ResetLimitsResponse:
        """Forget the learned limits of a run, once that is journaled. Raises ``UnknownRun``."""
        reset = LimitsReset(run_id=request.run_id, request_id=next(self._request_ids))
        forgotten = await self._driver.ask(reset)
        if forgotten is None:
            raise UnknownRun(request.run_id)
        return run_pb2.ResetLimitsResponse(forgotten=forgotten)

    def list_runs(self) -> run_pb2.ListRunsResponse:
        """Return all runs, oldest first."""
        now, states = self._driver.now(), self._driver.journaled.states.values()
        return run_pb2.ListRunsResponse(runs=[summary_message(state, now=now) for state in states])

    def _journaled(self, request: run_pb2.GetRunRequest | run_pb2.GetVerdictRequest) -> RunState:
        state = self._driver.journaled.find(request.run_id, request.generation)
        if state is None:
            which = f"of generation {request.generation}" if request.generation else ""
            raise UnknownRun(request.run_id, which)
        return state

    async def _hello(self, requests: AsyncIterator[session_pb2.OpenRequest]) -> SessionOpened:
        timeout = self._limits.hello_timeout_s
        try:
            async with asyncio.timeout(timeout):
                message = await anext(requests)
        except TimeoutError:
            raise InvalidRequest("hello", "nothing", f"a hello within {timeout:g} s") from None
        except StopAsyncIteration:
            raise InvalidRequest("hello", "nothing", "a hello as the first message") from None
        except DecodeError as error:
            raise _undecodable(session_pb2.OpenRequest, error) from None
        opened = convert.session_opened(message, session_id=uuid.uuid4().hex)
        if gpus := convert.gpu_summary(message):
            # For people only: the core decides nothing by it, and nobody needs it tomorrow.
            text = f"{opened.run_id}: {opened.agent.name} has {gpus}"
            log.debug("GPUs of an agent", message=text, gpus=gpus, **{"run.id": opened.run_id})
        return opened

    async def _read(
        self, requests: AsyncIterator[session_pb2.OpenRequest], opened: SessionOpened
    ) -> None:
        """Submit what the agent says, up to its end."""
        try:
            async for message in requests:
                self._driver.submit(convert.session_event(message, opened))
        except DecodeError as error:
            raise _undecodable(session_pb2.OpenRequest, error) from None

    async def _read_records(
        self,
        requests: AsyncIterator[failure_pb2.ReportRequest],
        pending: asyncio.Queue[_Asked | CoordinatorError | None],
    ) -> None:
        """Submit records in order, up to the first that can't be; then wait for their answers.

        One accepted behind that would make it look like one that was counted before.
        """
        end: CoordinatorError | None = None
        try:
            async for message in requests:
                event = convert.failure_reported(
                    message,
                    request_id=next(self._request_ids),
                    record_bytes_max=self._limits.failure_record_bytes_max,
                    text_characters_max=self._limits.failure_message_bytes_max,
                )
                await pending.put((event.record, await self._driver.submit_failure(event)))
        except CoordinatorError as error:
            end = error
        except DecodeError as error:
            end = _undecodable(failure_pb2.ReportRequest, error)
        await pending.put(end)
        await asyncio.get_running_loop().create_future()


async def _acknowledge(
    pending: asyncio.Queue[_Asked | CoordinatorError | None],
    send: Callable[[failure_pb2.ReportResponse], Awaitable[None]],
) -> None:
    """Answer records in order, up to the end; raise it if it is an error."""
    while (item := await pending.get()) is not None:
        if isinstance(item, CoordinatorError):
            raise item
        record, answer = item
        is_kept = bool(await answer)
        await send(
            failure_pb2.ReportResponse(
                incarnation=record.incarnation, sequence=record.sequence, kept=is_kept
            )
        )


async def _write(
    outbox: Outbox, send: Callable[[session_pb2.OpenResponse], Awaitable[None]]
) -> None:
    while True:
        await send(response_message(await outbox.next()))


def _undecodable(kind: type[Message], error: DecodeError) -> InvalidRequest:
    return InvalidRequest("message", str(error), f"a {kind.DESCRIPTOR.full_name}")


def response_message(effect: fx.Push) -> session_pb2.OpenResponse:
    """Return what an agent is sent."""
    match effect:
        case fx.Welcome(session_id=session_id, pace=pace):
            welcome = session_pb2.Welcome(session_id=session_id, pace=convert.pace_message(pace))
            return session_pb2.OpenResponse(welcome=welcome)
        case fx.SetPace(pace=pace):
            return session_pb2.OpenResponse(pace=convert.pace_message(pace))
        case fx.TellLimits(limits=limits):
            return session_pb2.OpenResponse(limits=convert_progress.limits_message(limits))
        case fx.Direct(desired=desired):
            return session_pb2.OpenResponse(desired=convert.desired_message(desired))
        case fx.Instruct(directive=directive):
            message = convert_inprocess.directive_message(directive)
            return session_pb2.OpenResponse(inprocess=message)
