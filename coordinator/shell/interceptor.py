"""Shell. What is around every call: who makes it, how many there are, and errors as statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from coordinator.access.authentication import Authenticator, token_id_of
from coordinator.access.caller import OPEN, TRUSTED, Caller
from coordinator.errors import CoordinatorError, LimitReached, RevokedToken
from coordinator.wire.session import error_detail
from drumbeat.access.token import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]

# Trailing metadata of a refused call: an encoded `drumbeat.v1.ErrorDetail`.
ERROR_KEY = "drumbeat-error-bin"

# Calls under way of which the caller is not asked for; a probe's are over at once.
ANONYMOUS_MAX = 1_000
_ANYONE = Caller("anonymous", Role.VIEW)

_caller: ContextVar[Caller] = ContextVar("caller")  # of the call that a task serves


def caller_of(context: object) -> Caller:
    """Return who makes a call; without a context it is made in this process."""
    return TRUSTED if context is None else _caller.get()


class OnRefused(Protocol):
    """Takes in that a caller was refused; ``token_id`` is that of the token it showed."""

    def __call__(
        self, peer: str, error: CoordinatorError, *, method: str = "", token_id: str = ""
    ) -> None:
        """Do so."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Lets callers in that are known and may do what they ask for; all else ends with a status.

    Of one caller at most ``streams_max`` calls are under way; ``on_refused`` is told of each that
    is refused for who makes it.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        streams_max: int,
        on_refused: OnRefused,
    ) -> None:
        self._authenticator, self._streams_max = authenticator, streams_max
        self._on_refused = on_refused
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}  # by the caller's name
        self._revoked: set[asyncio.Task[Any]] = set()

    def revoke(self, name: str) -> None:
        """End all that a caller has under way: it is not known any more."""
        for task in self._under_way.get(name, ()):
            self._revoked.add(task)
            task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call. One that is refused for its token is not even read."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if method[: method.rfind("/") + 1] in OPEN:
            caller: Caller | None = _ANYONE
        else:
            try:
                caller = self._authenticator.by_token(metadata)
                if caller is not None:
                    caller.check_method(method)
            except CoordinatorError as error:
                refuse = self._refusing(error, method, token_id_of(metadata))
                return grpc.stream_stream_rpc_method_handler(refuse)
        return _rebuilt(handler, lambda behaviour: self._wrapped(behaviour, method, caller))

    def _refusing(self, error: CoordinatorError, method: str, token_id: str) -> Behaviour:
        async def refuse(_: Any, context: Context) -> None:
            self._on_refused(context.peer(), error, method=method, token_id=token_id)
            await _abort(context, error)

        return refuse

    def _wrapped(self, behaviour: Behaviour, method: str, caller: Caller | None) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:
            known = caller
            try:
                if known is None:
                    known = self._authenticator.by_certificate(context.auth_context())
                    known.check_method(method)
                _caller.set(known)
                with self._counted(known):
                    return await behaviour(request, context)
            except CoordinatorError as error:
                if error.status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                    name = "" if caller is None else caller.name
                    self._on_refused(context.peer(), error, method=method, token_id=name)
                await _abort(context, error)

        return call

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Hold a call among those of its caller. Raises ``LimitReached`` or ``RevokedToken``."""
        task = asyncio.current_task()
        assert task is not None, "a call has one"
        calls = self._under_way.setdefault(caller.name, set())
        most = ANONYMOUS_MAX if caller is _ANYONE else self._streams_max
        if len(calls) >= most:
            raise LimitReached("streams_per_caller_max", most)
        calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            raise RevokedToken(caller.name, caller.run_id) from None
        finally:
            self._revoked.discard(task)
            calls.discard(task)
            if not calls:
                self._under_way.pop(caller.name, None)


async def _abort(context: Context, error: CoordinatorError) -> None:
    """End a call with an error: the one place where it becomes a status."""
    metadata = ((ERROR_KEY, error_detail(error).SerializeToString()),)
    await context.abort(grpc.StatusCode[error.status], str(error), metadata)


def _rebuilt(handler: Any, wrap: Callable[[Behaviour], Behaviour]) -> Any:
    """Return a handler whose behaviour is wrapped; one that yields writes instead."""
    for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        if (behaviour := getattr(handler, kind)) is not None:
            made = getattr(grpc, f"{kind}_rpc_method_handler")
            if isasyncgenfunction(behaviour):
                behaviour = _writing(behaviour)
            codecs = (handler.request_deserializer, handler.response_serializer)
            return made(wrap(behaviour), *codecs)
    return handler


def _writing(behaviour: Any) -> Behaviour:
    async def call(request: Any, context: Context) -> None:
        async for response in behaviour(request, context):
            await context.write(response)

    return call
