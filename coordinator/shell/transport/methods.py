"""Shell. The methods of the coordinator's services, each served by the term of the moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import isasyncgenfunction
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from drumbeat.coordinator.errors import CoordinatorError, InvalidRequest, LimitReached
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import (
    control_pb2,
    control_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)

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
        self._tasks = set[asyncio.Task[Any]]()
        self._error: CoordinatorError | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count the call of this task among them. Raises what ``end`` is told."""
        task = asyncio.current_task()
        assert task is not None, "a call has one"
        if self._error is not None:
            raise self._error
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._error is None:
                raise
            task.uncancel()
            raise self._error from None
        finally:
            self._tasks.discard(task)

    def end(self, error: CoordinatorError) -> None:
        """End all of them, and those that come."""
        self._error = error
        for task in self._tasks:
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
                getattr(each, method.name), limits, is_stream=method.client_streaming
            )
            for service, each in served.items()
            for method in service.methods
            if hasattr(each, method.name)
        }

    def __contains__(self, method: str) -> bool:
        return method in self._behaviours

    async def serve(self, method: str, request: Any, context: Context) -> Any:
        """Serve a call. Raises ``CoordinatorError``."""
        with self.calls.held():
            return await self._behaviours[method](request, context)


# Finds what serves a call of a method, which may have to wait. Raises ``CoordinatorError``.
Find = Callable[[str, Context], Awaitable[Services]]


def add_methods(server: grpc.aio.Server, find: Find) -> None:
    """Have a server take the calls of all our services, and look for what serves each."""
    unserved: tuple[Any, ...] = (
        session_pb2_grpc.AgentServiceServicer,
        query_pb2_grpc.QueryServiceServicer,
        control_pb2_grpc.ControlServiceServicer,
    )
    stand_in: Any = _StandIn(server, find)
    agents, queries, controls = (each() for each in unserved)
    session_pb2_grpc.add_AgentServiceServicer_to_server(agents, stand_in)
    query_pb2_grpc.add_QueryServiceServicer_to_server(queries, stand_in)
    control_pb2_grpc.add_ControlServiceServicer_to_server(controls, stand_in)


class _StandIn:
    """What generated code takes for a server: adds the same methods to it, served as found."""

    def __init__(self, server: grpc.aio.Server, find: Find) -> None:
        self._server, self._find = server, find

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Do nothing: all methods come by their names, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service."""
        found = {name: self._found(f"/{service}/{name}", each) for name, each in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, found)
        self._server.add_generic_rpc_handlers((generic,))  # both, as generated code does it
        self._server.add_registered_method_handlers(service, found)

    def _found(self, method: str, handler: Any) -> Any:
        async def serve(request: Any, context: Context) -> Any:
            return await (await self._find(method, context)).serve(method, request, context)

        codecs = (handler.request_deserializer, handler.response_serializer)
        return grpc.stream_stream_rpc_method_handler(serve, *codecs)


def behaviour_of(handler: Any, limits: Limits) -> Behaviour:
    """Return what is told of a call before its message is there, and reads that itself.

    gRPC would wait for it for ever, uncounted.
    """
    of_one, of_stream = (
        handler.unary_unary or handler.unary_stream,
        handler.stream_stream or handler.stream_unary,
    )
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
