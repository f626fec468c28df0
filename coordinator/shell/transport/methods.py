"""Shell. The methods of the coordinator's services, each served by the term of the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, Protocol

import grpc

from coordinator.errors import CoordinatorError, InvalidRequest

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]
# Generated code, with what it is to add: it takes a server, or here what stands for one.
Add = Callable[[Any], None]


class Services:
    """What is served in one term, and the calls of it that are under way."""

    def __init__(self, added: Iterable[Add], within_s: float) -> None:
        handlers = _handlers(added)
        self._behaviours = {name: behaviour_of(each, within_s) for name, each in handlers.items()}
        self._calls = set[asyncio.Task[Any]]()
        self._error: CoordinatorError | None = None

    async def serve(self, method: str, request: Any, context: Context) -> Any:
        """Serve a call. Raises what ``end`` was told, also in the midst of it."""
        task = asyncio.current_task()
        assert task is not None, "a call has one"
        if self._error is not None:
            raise self._error
        self._calls.add(task)
        try:
            return await self._behaviours[method](request, context)
        except asyncio.CancelledError:
            if self._error is None:
                raise
            task.uncancel()
            raise self._error from None
        finally:
            self._calls.discard(task)

    def end(self, error: CoordinatorError) -> None:
        """End all calls, and those that come."""
        self._error = error
        for task in self._calls:
            task.cancel()


class Find(Protocol):
    """Finds what serves a call, which may have to wait. Raises ``CoordinatorError``."""

    async def __call__(self, method: str, context: Context) -> Services:
        """Do so."""
        ...


def add_methods(server: grpc.aio.Server, added: Iterable[Add], find: Find) -> None:
    """Have a server take the calls of services, and look for what serves each as it comes."""
    services: dict[str, dict[str, Any]] = {}
    for name, handler in _handlers(added).items():
        service, _, method = name[1:].rpartition("/")
        codecs = (handler.request_deserializer, handler.response_serializer)
        found = grpc.stream_stream_rpc_method_handler(partial(_serve, find, name), *codecs)
        services.setdefault(service, {})[method] = found
    for service, methods in services.items():  # both, as generated code does it
        generic = grpc.method_handlers_generic_handler(service, methods)
        server.add_generic_rpc_handlers((generic,))
        server.add_registered_method_handlers(service, methods)


async def _serve(find: Find, method: str, request: Any, context: Context) -> Any:
    return await (await find(method, context)).serve(method, request, context)


class _Registry:
    """Takes the place of a server for generated code."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Do nothing: all methods are registered by their names, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Take the methods of a service in."""
        self.handlers |= {f"/{service}/{name}": each for name, each in handlers.items()}


def _handlers(added: Iterable[Add]) -> dict[str, Any]:
    registry = _Registry()
    for add in added:
        add(registry)
    return registry.handlers


def behaviour_of(handler: Any, within_s: float) -> Behaviour:
    """Return what is told of a call before its message is there, and reads that itself.

    gRPC would wait for it for ever, uncounted.
    """
    behaviour: Behaviour | None = handler.stream_stream or handler.stream_unary
    if behaviour is None:
        return _reading(handler.unary_unary or handler.unary_stream, within_s)
    return _writing(behaviour) if isasyncgenfunction(behaviour) else behaviour


def _reading(behaviour: Any, within_s: float) -> Behaviour:
    """Return a behaviour that reads the one message of its caller, and writes the answers."""
    answer = _writing(behaviour) if isasyncgenfunction(behaviour) else behaviour

    async def call(_: Any, context: Context) -> None:
        request: Any = grpc.aio.EOF
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                request = await context.read()
        if request is grpc.aio.EOF:
            raise InvalidRequest("message", "nothing", f"one within {within_s:g} s")
        if (response := await answer(request, context)) is not None:
            await context.write(response)

    return call


def _writing(behaviour: Any) -> Behaviour:
    async def call(request: Any, context: Context) -> None:
        async for response in behaviour(request, context):
            await context.write(response)

    return call
