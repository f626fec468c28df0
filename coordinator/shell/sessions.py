"""Shell. Sessions and failure streams as streams of messages, over gRPC or in one process."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import FailureRecord
from drumbeat.coordinator.core.registry.jobs import job_of
from drumbeat.coordinator.core.run.records import CallKind
from drumbeat.coordinator.core.tokens.caller import TRUSTED, Caller
from drumbeat.coordinator.errors import (
    CoordinatorError,
    Deposed,
    InvalidRequest,
    LimitReached,
    Unauthenticated,
)
from drumbeat.coordinator.shell.driver import Driver, Outbox
from drumbeat.coordinator.shell.garbage import GARBAGE
from drumbeat.coordinator.wire import session as wire
from drumbeat.coordinator.wire.failure import failure_reported
from drumbeat.coordinator.wire.stacks import read_found
from drumbeat.tasks import until_one_ends
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import session_pb2
from drumbeat.wire.mapping import OnProblem

log = structlog.get_logger()

# Failure records of one stream that may wait for the journal at once.
RECORDS_IN_FLIGHT_MAX = 64
# Fields of one stream that may be reported as not understood.
FIELDS_REPORTED_MAX = 32

ADVICE = "of etcd restore it with --bump-revision, see docs/high-availability.md"

M = TypeVar("M")
_Pending = asyncio.Queue[tuple[FailureRecord, asyncio.Future[int | None]]]


class Sessions:
    """Serves agents. One object for all of them; a session is one call of ``open``."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._has_told = False
        self._workers: Counter[str] = Counter()  # that count against a limit, by caller

    async def open(
        self,
        requests: AsyncIterator[session_pb2.AgentReport],
        send: Callable[[session_pb2.Directive], Awaitable[None]],
        caller: Caller = TRUSTED,
    ) -> None:
        """Hold one session until either side ends it. Raises ``CoordinatorError``."""
        opened, term = await self._hello(requests, caller), self._driver.journal.term

        async def write(outbox: Outbox, run_id: str) -> None:
            while True:
                effect = await outbox.next()
                await send(wire.directive_message(effect, run_id=run_id, term=term))
                GARBAGE.note_message()

        with self._counted(caller, opened.agent.local_world_size):
            outbox, opened = self._driver.open(opened), opened.without_beat()
            writing = write(outbox, opened.run_id)
            try:
                await until_one_ends(self._read(requests, opened), writing, outbox.failed())
            finally:
                self._driver.close(opened, caller=caller.name)

    async def report(
        self,
        requests: AsyncIterator[session_pb2.ReportFailuresRequest],
        send: Callable[[session_pb2.ReportFailuresResponse], Awaitable[None]],
        caller: Caller = TRUSTED,
    ) -> None:
        """Journal failure records and acknowledge them in order. Raises ``CoordinatorError``."""
        pending: _Pending = asyncio.Queue(RECORDS_IN_FLIGHT_MAX)
        reading = self._read_records(requests, pending, caller)
        await until_one_ends(_acknowledge(pending, send), reading)

    async def report_stacks(
        self, request: session_pb2.ReportStacksRequest, caller: Caller = TRUSTED
    ) -> session_pb2.ReportStacksResponse:
        """Hand an agent's answer to whom it is for. Raises ``CoordinatorError``."""
        run_id = wire.run_id_of("fence.run_id", request.fence.run_id)
        incarnation = request.fence.incarnation
        self._check(caller, run_id, incarnation, request.incarnation_key)
        workers = read_found(request)
        is_taken = self._driver.stacks.take(run_id, incarnation, request.request_id, workers)
        return session_pb2.ReportStacksResponse(is_taken=is_taken)

    async def report_logs(
        self,
        requests: AsyncIterator[session_pb2.ReportLogsRequest],
        send: Callable[[session_pb2.ReportLogsResponse], Awaitable[None]],
        caller: Caller = TRUSTED,
    ) -> None:
        """Hand the output of an agent's workers to who reads it. Raises ``CoordinatorError``."""
        first = await self._first(requests, "message", "one")
        run_id = wire.run_id_of("fence.run_id", first.fence.run_id)
        incarnation = first.fence.incarnation
        self._check(caller, run_id, incarnation, first.incarnation_key)
        reader = self._driver.logs.find(run_id, first.request_id)
        if reader is not None:
            try:
                await reader.bring(incarnation, requests, send)
            except DecodeError as error:
                raise _undecodable(error) from None

    async def join_quorum(
        self,
        requests: AsyncIterator[session_pb2.JoinQuorumRequest],
        send: Callable[[session_pb2.JoinQuorumResponse], Awaitable[None]],
        caller: Caller = TRUSTED,
    ) -> None:
        """Have the replica of an agent take part in quorums. Raises ``CoordinatorError``."""
        first = await self._first(requests, "message", "one")
        run_id = wire.run_id_of("fence.run_id", first.fence.run_id)
        self._check(caller, run_id, first.fence.incarnation, first.incarnation_key)
        try:
            await self._driver.quorums.hold(first, requests, send)
        except DecodeError as error:
            raise _undecodable(error) from None

    async def _first(self, requests: AsyncIterator[M], field: str, what: str) -> M:
        """Return the first message of a stream. Raises ``InvalidRequest``."""
        timeout = self._driver.limits.hello_timeout_s
        try:
            async with asyncio.timeout(timeout):
                return await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise InvalidRequest(field, "nothing", f"{what} within {timeout:g} s") from None
        except DecodeError as error:
            raise _undecodable(error) from None

    @contextmanager
    def _counted(self, caller: Caller, size: int) -> Iterator[None]:
        """Count the workers of a session in the context. Raises ``LimitReached``."""
        limits = self._driver.limits
        extra = max(0, size - limits.workers_free_per_session)
        if extra and self._workers[caller.name] + extra > limits.workers_per_caller_max:
            raise LimitReached("workers_per_caller_max", limits.workers_per_caller_max)
        self._workers[caller.name] += extra
        try:
            yield
        finally:
            self._workers[caller.name] -= extra
            if not self._workers[caller.name]:
                del self._workers[caller.name]

    async def _hello(
        self, requests: AsyncIterator[session_pb2.AgentReport], caller: Caller
    ) -> SessionOpened:
        message = await self._first(requests, "hello", "a hello")
        noted = _note_once(message.hello.run.run_id, message.hello.host)
        opened = wire.session_opened(message, session_id=secrets.token_hex(16), on_problem=noted)
        incarnation = opened.agent.incarnation
        key, group = message.hello.incarnation_key, opened.spec.replica_group
        self._check(caller, opened.run_id, incarnation, key, "" if group is None else group.job)
        if message.hello.term > self._driver.journal.term:
            self._tell_later_term(message.hello.term)
            raise Deposed(message.hello.term)
        opened = replace(opened, caller=caller.name)
        if gpus := opened.devices:
            text = f"{opened.run_id}: {opened.agent.name} has {gpus}"
            log.debug("GPUs of an agent", message=text, gpus=gpus, **{"run.id": opened.run_id})
        return opened

    def _tell_later_term(self, term: int) -> None:
        """Say once that agents know a later term than this one."""
        if not self._has_told:
            self._has_told = True
            ours = self._driver.journal.term
            what = f"agents know term {term}, and this coordinator has term {ours}"
            why = "another one leads by now, or an older copy of the journal was restored"
            log.warning("agents refuse this coordinator", message=what, reason=why, advice=ADVICE)

    async def _read(
        self, requests: AsyncIterator[session_pb2.AgentReport], opened: SessionOpened
    ) -> None:
        """Submit what the agent says, up to its end; what can't be read is passed over."""
        noted = _note_once(opened.run_id, opened.agent.name)
        while True:
            try:
                message = await anext(requests)
            except StopAsyncIteration:
                return
            except DecodeError as error:
                noted(_undecodable(error))
                continue
            event = wire.session_event(message, opened, noted)
            del message  # it may be as large as 1 MiB, and the next one may take long
            if event is not None:
                self._driver.submit(event)
            del event
            GARBAGE.note_message()

    async def _read_records(
        self,
        requests: AsyncIterator[session_pb2.ReportFailuresRequest],
        pending: _Pending,
        caller: Caller,
    ) -> None:
        """Submit records in order, up to the first that can't be; then wait for their answers.

        One accepted behind that would make it look like one that was counted before.
        """
        noted = _note_once("failure records", "an agent")
        error: CoordinatorError | None = None
        incarnations: set[str] = set()
        try:
            async for message in requests:
                event = failure_reported(message, self._driver.limits, noted)
                incarnation, key = event.record.incarnation, message.incarnation_key
                self._check(caller, event.run_id, incarnation, key)
                event = replace(event, is_first=incarnation not in incarnations)
                incarnations.add(incarnation)
                await pending.put((event.record, await self._driver.submit_failure(event)))
        except CoordinatorError as refused:
            error = refused
        except InvalidField as problem:
            error = wire.refusal_of(problem)
        except DecodeError as problem:
            error = _undecodable(problem)
        await pending.join()
        if error is not None:
            raise error

    def _check(
        self, caller: Caller, run_id: str, incarnation: str, key: bytes, job: str = ""
    ) -> None:
        """Raise ``Forbidden`` or ``Unauthenticated`` unless a caller may speak for an agent.

        ``job`` is that of the run that the agent would begin.
        """
        state = self._driver.journal.runs.find(run_id)
        is_new = state is None or (bool(job) and state.verdict is not None)
        try:
            caller.check_run(run_id, job if is_new else job_of(state))
            caller.check_incarnation(incarnation, key)
            is_member = state is not None and incarnation in state.members
            if caller.is_expired and not is_member:
                raise Unauthenticated(f"its token {caller.name} has expired")
        except CoordinatorError as error:
            self._driver.note(run_id, CallKind.ACCESS_REFUSED, caller.name, str(error))
            raise


async def _acknowledge(
    pending: _Pending, send: Callable[[session_pb2.ReportFailuresResponse], Awaitable[None]]
) -> None:
    """Answer records in order."""
    while True:
        record, answer = await pending.get()
        response = session_pb2.ReportFailuresResponse(
            incarnation=record.incarnation, sequence=record.sequence, kept=bool(await answer)
        )
        await send(response)
        pending.task_done()


def _undecodable(error: DecodeError) -> InvalidRequest:
    return InvalidRequest("message", str(error), "a message of drumbeat.v1")


def _note_once(run_id: str, agent: str) -> OnProblem:
    """Return what logs that a field was passed over, once for each field."""
    noted: set[str] = set()

    def note(problem: InvalidField) -> None:
        field = re.sub(r"\[\d+\]", "", problem.field)
        if field not in noted and len(noted) < FIELDS_REPORTED_MAX:
            noted.add(field)
            text = f"{run_id}: passed over what {agent} says: {problem}"
            log.warning("field not understood", message=text, field=field, **{"run.id": run_id})

    return note
