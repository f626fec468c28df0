"""Shell. ``drumbeat.v1.WorkerService``: what workers tell by calls, checked, to the watchdog.

Imported with the first call only: grpc takes longer to import than many a worker runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from agent.core.inprocess.model import WorkerOrder, WorkerStep
from agent.session.convert_inprocess import greeting, order_message, step_from
from agent.watchdog.core.model import WorkerKey
from agent.watchdog.refusals import (
    InvalidField,
    NotAuthenticated,
    Refusal,
    StreamReplaced,
    TooManyTimers,
    WorkerIsGone,
)
from drumbeat.durations import DURATION_MAX_S
from drumbeat.v1 import worker_pb2, worker_pb2_grpc
from worker_sdk.interpreter.signal_numbers import is_signal

SCOPE_BYTES_MAX = 512
MESSAGE_BYTES_MAX = 80 * 1024
"""A traceback of 64 KiB fits in, with all that goes with it."""
GREETING_TIMEOUT_S = 10.0
CALLS_MAX = 4096 * 4
"""Calls and streams of all workers at once; more are refused with RESOURCE_EXHAUSTED."""

_SCHEME = "bearer "
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
]
_STATUS: dict[type[Refusal], grpc.StatusCode] = {
    NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    WorkerIsGone: grpc.StatusCode.FAILED_PRECONDITION,
    TooManyTimers: grpc.StatusCode.RESOURCE_EXHAUSTED,
    InvalidField: grpc.StatusCode.INVALID_ARGUMENT,
    StreamReplaced: grpc.StatusCode.ABORTED,
}

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class Calls(Protocol):
    """Whom the calls are handed to; each may raise ``Refusal``."""

    def worker_of(self, token: str) -> WorkerKey:
        """Return whose token it is."""
        ...

    async def wait_watched(self, key: WorkerKey) -> None:
        """Return once the worker is known to run."""
        ...

    def acquire(self, key: WorkerKey, scope: str, timeout_s: float, signum: int | None) -> None:
        """Start a timer."""
        ...

    def release(self, key: WorkerKey, scope: str) -> None:
        """Forget a timer."""
        ...

    def heartbeat(self, key: WorkerKey, step: int | None) -> None:
        """Take note of progress."""
        ...

    def sync(self, key: WorkerKey) -> None:
        """Take note of all that the worker's board says."""
        ...

    def step(self, key: WorkerKey, step: WorkerStep) -> None:
        """Take note of how far the worker is in an iteration."""
        ...


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class _Stream:
    """One worker's conversation, read and written by one task.

    ``ended`` gets the refusal that ends it. ``order`` is what the worker has yet to be
    told, once it was greeted; ``woken`` is done when there is something.
    """

    context: Context
    order: WorkerOrder | None = None
    ended: asyncio.Future[None] = field(default_factory=_future)
    woken: asyncio.Future[None] = field(default_factory=_future)
    _reading: asyncio.Future[Any] | None = None

    def end(self, refusal: Refusal) -> None:
        if not self.ended.done():
            self.ended.set_exception(refusal)
            self.ended.exception()  # taken note of, should nobody wait any more

    def tell(self, order: WorkerOrder) -> None:
        self.order = order
        if not self.woken.done():
            self.woken.set_result(None)

    async def next(self, timeout_s: float | None = None) -> worker_pb2.AttachRequest | None:
        """Return the next message, None at the end.

        With a timeout, it is the greeting; without one, orders are written meanwhile.
        Raises the refusal that ends the stream.
        """
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self.context.read())
            awaited = {self._reading, self.ended}
            if timeout_s is None:
                awaited.add(self.woken)
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done():
                self.ended.result()
            if self._reading.done():
                message, self._reading = self._reading.result(), None
                return message if isinstance(message, worker_pb2.AttachRequest) else None
            if timeout_s is not None:
                raise InvalidField(f"greeting: none came within {timeout_s:g} s")
            await self.write_order()

    async def write_order(self) -> None:
        self.woken = _future()
        order, self.order = self.order, None
        if order is not None:
            await self.write(order=order_message(order))

    async def write(self, **answer: Any) -> None:
        await self.context.write(worker_pb2.AttachResponse(**answer))

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """Checks who calls and what is said; everything else is the watchdog's."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._streams: dict[WorkerKey, _Stream] = {}
        self._orders: dict[WorkerKey, WorkerOrder] = {}
        self._steps: dict[WorkerKey, WorkerStep] = {}

    async def AcquireTimer(
        self, request: worker_pb2.AcquireTimerRequest, context: Context
    ) -> worker_pb2.AcquireTimerResponse:
        """Start a timer."""

        def act(key: WorkerKey) -> worker_pb2.AcquireTimerResponse:
            signum = request.signal if request.HasField("signal") else None
            if signum is not None and signum > 0 and not is_signal(signum):
                raise InvalidField(f"signal: {signum} is not a signal of this system")
            if not request.HasField("timeout"):
                raise InvalidField("timeout: is missing")
            self._calls.acquire(key, _scope(request.scope), _timeout_s(request.timeout), signum)
            return worker_pb2.AcquireTimerResponse()

        return await self._answer(context, act)

    async def ReleaseTimer(
        self, request: worker_pb2.ReleaseTimerRequest, context: Context
    ) -> worker_pb2.ReleaseTimerResponse:
        """Forget a timer."""

        def act(key: WorkerKey) -> worker_pb2.ReleaseTimerResponse:
            self._calls.release(key, _scope(request.scope))
            return worker_pb2.ReleaseTimerResponse()

        return await self._answer(context, act)

    async def Heartbeat(
        self, request: worker_pb2.HeartbeatRequest, context: Context
    ) -> worker_pb2.HeartbeatResponse:
        """Take note of progress."""

        def act(key: WorkerKey) -> worker_pb2.HeartbeatResponse:
            step = request.step if request.HasField("step") else None
            if step is not None and step < 0:
                raise InvalidField(f"step: {step} is given, must be 0 or more")
            self._calls.heartbeat(key, step)
            return worker_pb2.HeartbeatResponse()

        return await self._answer(context, act)

    async def Attach(  # type: ignore[override]  # what is written goes by the context
        self, requests: AsyncIterator[worker_pb2.AttachRequest], context: Context
    ) -> None:
        """Hold a worker's conversation until it, or the worker, ends."""
        try:
            key = await self._worker(context)
            stream = _Stream(context)
            if (earlier := self._streams.get(key)) is not None:
                earlier.end(StreamReplaced("a later stream of this worker took its place"))
            self._streams[key] = stream
            try:
                await self._converse(key, stream)
            finally:
                stream.close()
                if self._streams.get(key) is stream:
                    del self._streams[key]
        except Refusal as refusal:
            await _abort(context, refusal)

    def worker_gone(self, key: WorkerKey) -> None:
        """End the conversation with a worker that has ended."""
        self._orders.pop(key, None)
        self._steps.pop(key, None)
        if (stream := self._streams.get(key)) is not None:
            stream.end(WorkerIsGone())

    def order(self, key: WorkerKey, order: WorkerOrder) -> None:
        """Tell a worker what to do, now and on every later stream; the latest order counts."""
        self._orders[key] = order
        if (stream := self._streams.get(key)) is not None:
            stream.tell(order)

    async def _converse(self, key: WorkerKey, stream: _Stream) -> None:
        await self._greet(key, stream)
        if stream.order is None:
            stream.order = self._orders.get(key)
        await stream.write_order()
        synced = 0
        while (request := await stream.next()) is not None:
            match request.WhichOneof("kind"):
                case "sync":
                    self._calls.sync(key)
                    synced = max(synced, request.sync.sequence)
                    await stream.write(synced=worker_pb2.Synced(sequence=synced))
                case "step":
                    step = step_from(request.step, key.local_rank)
                    if step is not None:
                        self._steps[key] = step
                        self._calls.step(key, step)
                case "greeting":
                    raise InvalidField("kind: there was a greeting already")
                case _:
                    pass  # of a later version, which can do without an answer

    async def _greet(self, key: WorkerKey, stream: _Stream) -> None:
        request = await stream.next(timeout_s=GREETING_TIMEOUT_S)
        if request is None or request.WhichOneof("kind") != "greeting":
            raise InvalidField("kind: the first message must be a greeting")
        if request.greeting.pid < 1:
            raise InvalidField(f"greeting.pid: {request.greeting.pid} is given, must be above 0")
        step, order = self._steps.get(key), self._orders.get(key)
        await stream.write(greeted=greeting(step, order))

    async def _answer(self, context: Context, act: Callable[[WorkerKey], T]) -> T:
        try:
            return act(await self._worker(context))
        except Refusal as refusal:
            await _abort(context, refusal)
            raise  # never gets here

    async def _worker(self, context: Context) -> WorkerKey:
        # Pairs in every version; the kind of mapping differs.
        for name, value in context.invocation_metadata() or ():
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
            if name == "authorization" and text[: len(_SCHEME)].lower() == _SCHEME:
                key = self._calls.worker_of(text[len(_SCHEME) :].strip())
                await self._calls.wait_watched(key)
                return key
        raise NotAuthenticated("metadata: there is no `authorization: Bearer <token>`")


async def _abort(context: Context, refusal: Refusal) -> None:
    """Put a refusal into a status: the one place where that happens."""
    await context.abort(_STATUS[type(refusal)], str(refusal))


def _scope(text: str) -> str:
    length = len(text.encode("utf-8", "replace"))
    if not 1 <= length <= SCOPE_BYTES_MAX:
        raise InvalidField(f"scope: has {length} bytes, must have 1 to {SCOPE_BYTES_MAX}")
    return text


def _timeout_s(message: Duration) -> float:
    value = message.seconds + message.nanos / 1e9
    if not (math.isfinite(value) and 0 < value <= DURATION_MAX_S):
        raise InvalidField(f"timeout: {value:g} s is given, must be above 0 and <= a month")
    return value


class WorkerServer:
    """The service at a unix socket. Raises ``OSError`` if it can't be started."""

    def __init__(self, calls: Calls) -> None:
        self._service = WorkerService(calls)
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._service, self._server)

    async def start(self, path: Path) -> None:
        """Listen at ``path``."""
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()

    def worker_gone(self, key: WorkerKey) -> None:
        """End the conversation with a worker that has ended."""
        self._service.worker_gone(key)

    def order(self, key: WorkerKey, order: WorkerOrder) -> None:
        """Tell a worker what to do."""
        self._service.order(key, order)

    async def close(self) -> None:
        """End every call at once."""
        await self._server.stop(None)
