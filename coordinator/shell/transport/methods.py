"""Shell. The methods of the coordinator's services, each served by the term of the moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import isasyncgenfunction
from itertools import islice
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from drumbeat.coordinator.errors import CoordinatorError, InvalidRequest, LimitReached
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import control_pb2, query_pb2, session_pb2

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]

AGENT, QUERY, CONTROL = (
    file.DESCRIPTOR.services_by_name[f"{name}Service"]
    for name, file in (("Agent", session_pb2), ("Query", query_pb2), ("Control", control_pb2))
)
SERVICES = tuple(service.full_name for service in (AGENT, QUERY, CONTROL))


class Calls:
    """Calls that are under way, which can be ended together."""

    def __init__(self) -> None:
        # Oldest first, with why one is being ended if it is.
        self._tasks: dict[asyncio.Task[Any], CoordinatorError | None] = {}
        self.error: CoordinatorError | None = None  # for those that come once all were ended

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count the call of this task among them. Raises the error that ends it."""
        task = asyncio.current_task()
        assert task is not None, "a call has one"
        if self.error is not None:
            raise self.error.with_traceback(None)  # else it grows with each call
        self._tasks[task] = None
        try:
            yield
        except asyncio.CancelledError:
            if (why := self._tasks[task]) is None:
                raise
            task.uncancel()
            raise why.with_traceback(None) from None
        finally:
            del self._tasks[task]

    def end(self, error: CoordinatorError) -> None:
        """End all of them, and those that come."""
        self.error = error
        self.end_oldest(error, len(self._tasks))

    def end_oldest(self, error: CoordinatorError, most: int = 1) -> None:
        """End so many of those that are not being ended."""
        under_way = (task for task, why in self._tasks.items() if why is None)
        for task in list(islice(under_way, most)):
            self._tasks[task] = error
            task.cancel()

    async def ended(self) -> None:
        """Wait until all of them have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Services:
    """Methods of services that are served for a time, of each service by an object."""

    def __init__(self, served: Mapping[ServiceDescriptor, object], limits: Limits) -> None:
        self.calls = Calls()
        self._behaviours = {
            f"/{service.full_name}/{method.name}": _behaviour(
                getattr(owner, method.name), limits, is_stream=method.client_streaming
            )
            for service, owner in served.items()
            for method in service.methods
            if hasattr(owner, method.name)
        }

    def __contains__(self, method: str) -> bool:
        return method in self._behaviours

    async def serve(self, method: str, request: Any, context: Context) -> Any:
        """Serve a call. Raises ``CoordinatorError``."""
        with self.calls.held():
            return await self._behaviours[method](request, context)


# Finds what serves a call of a method, which may have to wait. Raises ``CoordinatorError``.
Find = Callable[[str, Context], Awaitable[Services]]


def add_methods(server: Any, find: Find) -> None:
    """Have a server take the calls of all our services, and look for what serves each."""
    for service in (AGENT, QUERY, CONTROL):
        handlers = {method.name: _handler(service, method, find) for method in service.methods}
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))  # both, as generated code does it
        server.add_registered_method_handlers(service.full_name, handlers)


def _handler(
    service: ServiceDescriptor, method: MethodDescriptor, find: Find
) -> grpc.RpcMethodHandler[Any, Any]:
    name = f"/{service.full_name}/{method.name}"

    async def serve(request: Any, context: Context) -> Any:
        return await (await find(name, context)).serve(name, request, context)

    return grpc.stream_stream_rpc_method_handler(
        serve,
        GetMessageClass(method.input_type).FromString,
        GetMessageClass(method.output_type).SerializeToString,
    )


def behaviour_of(handler: Any, limits: Limits) -> Behaviour:
    """Return what is told of a call before its message is there, and reads that itself.

    gRPC would wait for it for ever, uncounted.
    """
    of_one = handler.unary_unary or handler.unary_stream
    of_stream = handler.stream_stream or handler.stream_unary
    return _behaviour(of_one or of_stream, limits, is_stream=of_one is None)


def _behaviour(behaviour: Any, limits: Limits, *, is_stream: bool) -> Behaviour:
    if not is_stream:
        return _reading(behaviour, limits)
    return _writing(behaviour) if isasyncgenfunction(behaviour) else behaviour


def _reading(behaviour: Any, limits: Limits) -> Behaviour:
    """Return a behaviour that reads the one message of its caller, and writes the answers."""
    answer: Any = _writing(behaviour) if isasyncgenfunction(behaviour) else behaviour
    within_s = limits.hello_timeout_s

    async def call(_: Any, context: Context) -> None:
        request: Any = grpc.aio.EOF
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                request = await context.read()
        if request is grpc.aio.EOF:
            raise InvalidRequest("message", "nothing", f"one within {within_s:g} s")
        answering = _Answering(context, limits.send_timeout_s)
        if (response := await answer(request, answering)) is not None:
            await answering.write(response)

    return call


def _writing(behaviour: Any) -> Behaviour:
    async def call(request: Any, context: Context) -> None:
        async for response in behaviour(request, context):
            await context.write(response)

    return call


class _Answering:
    """The context of a call that is answered: each message has a time to be taken."""

    def __init__(self, context: Context, within_s: float) -> None:
        self._context, self._within_s = context, within_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """Send a message. Raises ``LimitReached``."""
        try:
            async with asyncio.timeout(self._within_s):
                await self._context.write(message)
        except TimeoutError:
            raise LimitReached("send_timeout_s", math.ceil(self._within_s)) from None
