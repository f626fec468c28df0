"""Shell. ``drumbeat.v1.WorkerService``: what workers tell by calls, checked, to the watchdog.

Imported with the first call only: grpc takes longer to import than many a worker runs.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from agent.config import DURATION_MAX_S
from agent.watchdog.model import WorkerKey
from agent.watchdog.refusals import (
    InvalidField,
    NotAuthenticated,
    Refusal,
    StreamReplaced,
    TooManyTimers,
    WorkerIsGone,
)
from drumbeat.v1 import worker_pb2, worker_pb2_grpc

SCOPE_BYTES_MAX = 512
MESSAGE_BYTES_MAX = 64 * 1024
GREETING_TIMEOUT_S = 10.0

_SCHEME = "bearer "
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())
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


@dataclass(eq=False, slots=True)
class _Stream:
    """One worker's conversation. ``ended`` gets the refusal that ends it."""

    context: Context
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self, refusal: Refusal) -> None:
        if not self.ended.done():
            self.ended.set_exception(refusal)
            self.ended.exception()  # taken note of, should nobody wait any more


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """Checks who calls and what is said; everything else is the watchdog's."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._streams: dict[WorkerKey, _Stream] = {}

    async def AcquireTimer(
        self, request: worker_pb2.AcquireTimerRequest, context: Context
    ) -> worker_pb2.AcquireTimerResponse:
        """Start a timer."""

        def act(key: WorkerKey) -> worker_pb2.AcquireTimerResponse:
            signum = request.signal if request.HasField("signal") else None
            if signum is not None and signum > 0 and signum not in _SIGNALS:
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
            key = self._worker(context)
            stream = _Stream(context)
            if (earlier := self._streams.get(key)) is not None:
                earlier.end(StreamReplaced("a later stream of this worker took its place"))
            self._streams[key] = stream
            try:
                await self._converse(key, stream)
            finally:
                if self._streams.get(key) is stream:
                    del self._streams[key]
        except Refusal as refusal:
            await _abort(context, refusal)

    def worker_gone(self, key: WorkerKey) -> None:
        """End the conversation with a worker that has ended."""
        if (stream := self._streams.get(key)) is not None:
            stream.end(WorkerIsGone())

    async def _converse(self, key: WorkerKey, stream: _Stream) -> None:
        request = await _next(stream, timeout_s=GREETING_TIMEOUT_S)
        if request is None:
            return
        if request.WhichOneof("kind") != "greeting":
            raise InvalidField("kind: the first message must be a greeting")
        if request.greeting.pid < 1:
            raise InvalidField(f"greeting.pid: {request.greeting.pid} is given, must be above 0")
        await stream.context.write(worker_pb2.AttachResponse(greeted=worker_pb2.Greeted()))
        synced = 0
        while (request := await _next(stream)) is not None:
            match request.WhichOneof("kind"):
                case "sync":
                    self._calls.sync(key)
                    synced = max(synced, request.sync.sequence)
                    answer = worker_pb2.Synced(sequence=synced)
                    await stream.context.write(worker_pb2.AttachResponse(synced=answer))
                case "greeting":
                    raise InvalidField("kind: there was a greeting already")
                case _:
                    pass  # of a later version, which can do without an answer

    async def _answer(self, context: Context, act: Callable[[WorkerKey], T]) -> T:
        try:
            return act(self._worker(context))
        except Refusal as refusal:
            await _abort(context, refusal)
            raise  # never gets here

    def _worker(self, context: Context) -> WorkerKey:
        # Pairs in every version; the kind of mapping differs.
        for name, value in context.invocation_metadata() or ():
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
            if name == "authorization" and text[: len(_SCHEME)].lower() == _SCHEME:
                return self._calls.worker_of(text[len(_SCHEME) :].strip())
        raise NotAuthenticated("metadata: there is no `authorization: Bearer <token>`")


async def _next(stream: _Stream, timeout_s: float | None = None) -> worker_pb2.AttachRequest | None:
    """Return the next message, None at the end. Raises the refusal that ends the stream."""
    reading = asyncio.ensure_future(stream.context.read())
    try:
        await asyncio.wait(
            {reading, stream.ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if stream.ended.done():
            stream.ended.result()
        if not reading.done():
            raise InvalidField(f"greeting: none came within {timeout_s:g} s")
        message = reading.result()
        return message if isinstance(message, worker_pb2.AttachRequest) else None
    finally:
        reading.cancel()


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
        self._server = grpc.aio.server(options=_OPTIONS)
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

    async def close(self) -> None:
        """End every call at once."""
        await self._server.stop(None)
