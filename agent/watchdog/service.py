"""Shell. ``drumbeat.worker.v1.WorkerService``: checks calls of workers, hands them on.

Imported with the first call only: gRPC takes longer to import than many a worker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from drumbeat.agent.core.model import WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.watchdog.worker_messages import greeting, order_message, step_from
from drumbeat.text.durations import DURATION_MAX_S
from drumbeat.text.violation import InvalidField
from drumbeat.wire.mapping import seconds_of
from drumbeat.worker.v1 import worker_pb2, worker_pb2_grpc
from worker_sdk.interpreter.signal_numbers import ALLOWED, is_signal

SCOPE_BYTES_MAX = 512
GREETING_TIMEOUT_S = 10.0
CALLS_MAX = 4096 * 4  # and streams, of all workers; more are refused with RESOURCE_EXHAUSTED
_OPTIONS = [
    # A traceback of 64 KiB fits in, with all that goes with it.
    ("grpc.max_receive_message_length", 80 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
]

Context = grpc.aio.ServicerContext[Any, Any]


class Calls(Protocol):
    """Takes what workers tell; each may raise ``Refusal``."""

    async def authenticate(self, token: str) -> msg.WorkerKey:
        """Return whose token it is, once that worker is known to run."""

    def submit(self, call: msg.TimerCall | msg.ReadBoard | WorkerStep) -> None:
        """Take a call in."""


class _Stream:
    """One worker's stream, read and written by one task; ``news`` has it look at what is new.

    ``order`` is to be sent to the worker, ``refusal`` ends the stream.
    """

    def __init__(self, context: Context) -> None:
        self.order: WorkerOrder | None = None
        self.refusal: msg.Refusal | None = None
        self.news = asyncio.Event()
        self._context = context
        self.reading: asyncio.Future[Any] | None = None

    async def next(self, *, is_greeted: bool = True) -> worker_pb2.AttachRequest | None:
        """Return the next message, None at the end; raises the refusal.

        Once the worker is greeted, orders are written meanwhile.
        """
        if self.reading is None:
            self.reading = asyncio.ensure_future(self._context.read())
            self.reading.add_done_callback(lambda _: self.news.set())
        while True:
            self.news.clear()
            if self.refusal is not None:
                raise self.refusal
            if is_greeted and self.order is not None:
                order, self.order = self.order, None
                await self.write(order=order_message(order))
            elif self.reading.done():
                message, self.reading = self.reading.result(), None
                return message if isinstance(message, worker_pb2.AttachRequest) else None
            else:
                await self.news.wait()

    async def write(self, **answer: Any) -> None:
        await self._context.write(worker_pb2.AttachResponse(**answer))


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """The service at a unix socket of its own; what it hears goes to ``calls``."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._streams: dict[msg.WorkerKey, _Stream] = {}
        self._orders: dict[msg.WorkerKey, WorkerOrder] = {}
        self._steps: dict[msg.WorkerKey, WorkerStep] = {}
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)

    async def start(self, path: Path) -> None:
        """Listen at ``path``. Raises ``OSError``."""
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await asyncio.to_thread(path.chmod, 0o600)  # whatever the umask
        await self._server.start()

    async def close(self) -> None:
        """End every call at once."""
        await self._server.stop(None)

    def worker_gone(self, key: msg.WorkerKey) -> None:
        """End the stream of a worker that has ended."""
        self._orders.pop(key, None)
        self._steps.pop(key, None)
        self._end(key, msg.WorkerIsGone())

    def order(self, order: WorkerOrder) -> None:
        """Tell a worker what to do, now and on every later stream; the latest order counts."""
        self._orders[order.worker] = order
        if (stream := self._streams.get(order.worker)) is not None:
            stream.order = order
            stream.news.set()

    async def AcquireTimer(
        self, request: worker_pb2.AcquireTimerRequest, context: Context
    ) -> worker_pb2.AcquireTimerResponse:
        """Start a timer."""
        async with self._caller(context) as key:
            signum = request.signal if request.HasField("signal") else None
            if signum is not None and signum > 0 and not is_signal(signum):
                raise InvalidField("signal", signum, f"{ALLOWED}, or at most 0 to only report")
            timeout_s = seconds_of(request.timeout) if request.HasField("timeout") else None
            if timeout_s is None or not 0 < timeout_s <= DURATION_MAX_S:
                raise InvalidField("timeout", timeout_s, "above 0 s and at most a month")
            acquired = msg.TimerAcquired(
                worker=key, scope=_scope(request.scope), timeout_s=timeout_s, signal=signum
            )
            self._calls.submit(acquired)
        return worker_pb2.AcquireTimerResponse()

    async def ReleaseTimer(
        self, request: worker_pb2.ReleaseTimerRequest, context: Context
    ) -> worker_pb2.ReleaseTimerResponse:
        """Forget a timer."""
        async with self._caller(context) as key:
            self._calls.submit(msg.TimerReleased(worker=key, scope=_scope(request.scope)))
        return worker_pb2.ReleaseTimerResponse()

    async def Heartbeat(
        self, request: worker_pb2.HeartbeatRequest, context: Context
    ) -> worker_pb2.HeartbeatResponse:
        """Take note of progress."""
        async with self._caller(context) as key:
            step = request.step if request.HasField("step") else None
            if step is not None and step < 0:
                raise InvalidField("step", step, "0 or more")
            self._calls.submit(msg.HeartbeatReceived(worker=key, step=step))
        return worker_pb2.HeartbeatResponse()

    async def Attach(  # type: ignore[override]  # what is written goes by the context
        self, requests: AsyncIterator[worker_pb2.AttachRequest], context: Context
    ) -> None:
        """Hold a worker's stream until it, or the worker, ends."""
        async with self._caller(context) as key:
            self._end(key, msg.Refusal("ABORTED", "a later stream of this worker took its place"))
            stream = self._streams[key] = _Stream(context)
            try:
                await self._greet(key, stream)
                await self._converse(key, stream)
            finally:
                if stream.reading is not None:
                    stream.reading.cancel()
                if self._streams.get(key) is stream:
                    del self._streams[key]

    def _end(self, key: msg.WorkerKey, refusal: msg.Refusal) -> None:
        if (stream := self._streams.get(key)) is not None:
            stream.refusal = refusal
            stream.news.set()

    async def _greet(self, key: msg.WorkerKey, stream: _Stream) -> None:
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                request = await stream.next(is_greeted=False)
        except TimeoutError as error:
            within = f"a message within {GREETING_TIMEOUT_S:g} s"
            raise InvalidField("greeting", None, within) from error
        kind = None if request is None else request.WhichOneof("kind")
        if request is None or kind != "greeting":
            raise InvalidField("kind", kind, "a greeting as the first message")
        if request.greeting.pid < 1:
            raise InvalidField("greeting.pid", request.greeting.pid, "above 0")
        await stream.write(greeted=greeting(self._steps.get(key), self._orders.get(key)))
        stream.order = self._orders.get(key)

    async def _converse(self, key: msg.WorkerKey, stream: _Stream) -> None:
        synced = 0
        while (request := await stream.next()) is not None:
            match request.WhichOneof("kind"):
                case "sync":
                    self._calls.submit(msg.ReadBoard(worker=key))
                    synced = max(synced, request.sync.sequence)
                    await stream.write(synced=worker_pb2.Synced(sequence=synced))
                case "step":
                    if (step := step_from(request.step, key)) is not None:
                        self._steps[key] = step
                        self._calls.submit(step)
                case "greeting":
                    raise InvalidField("kind", "greeting", "one greeting")
                case _:
                    pass  # of a later version, which can do without an answer

    @asynccontextmanager
    async def _caller(self, context: Context) -> AsyncIterator[msg.WorkerKey]:
        """Find out who calls, and put a refusal into a status: the one place for both."""
        try:
            # Pairs in every version; the kind of mapping differs.
            for name, value in context.invocation_metadata() or ():
                text = value if isinstance(value, str) else value.decode("utf-8", "replace")
                scheme, _, token = text.partition(" ")
                if name == "authorization" and scheme.lower() == "bearer":
                    yield await self._calls.authenticate(token.strip())
                    return
            why = "metadata: there is no `authorization: Bearer <token>`"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        except InvalidField as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        except msg.Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.status], str(refusal))


def _scope(text: str) -> str:
    length = len(text.encode("utf-8", "replace"))
    if not 1 <= length <= SCOPE_BYTES_MAX:
        raise InvalidField("scope", length, f"1 to {SCOPE_BYTES_MAX} bytes")
    return text
