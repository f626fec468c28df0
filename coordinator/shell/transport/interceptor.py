"""Shell. What is around every call: who makes it, how many there are, and errors as statuses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from drumbeat import VERSION
from drumbeat.access.token import Role
from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.authentication import Authenticator, token_id_of
from drumbeat.coordinator.core.tokens.caller import TRUSTED, Caller
from drumbeat.coordinator.errors import (
    CoordinatorError,
    InvalidRequest,
    LimitReached,
    Unauthenticated,
)
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.methods import Behaviour, Calls, Context, behaviour_of
from drumbeat.coordinator.wire.session import error_detail
from drumbeat.wire.mapping import CLOCK_KEY, ERROR_KEY, VERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

_ANYONE = Caller("anonymous", Role.VIEW)

# Of gRPC's own services, whose packages declare it and do not implement it.
_NOT_SERVED = frozenset({"/grpc.health.v1.Health/List"})

_caller: ContextVar[Caller] = ContextVar("caller")  # of the call that a task serves


def set_caller(caller: Caller) -> None:
    """Say who makes the call that this task serves."""
    _caller.set(caller)


def caller_of(context: object) -> Caller:
    """Return who makes a call; without a context it is made in this process."""
    return TRUSTED if context is None else _caller.get()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Lets callers in that are known and may do what they ask for; all else ends with a status.

    Methods of ``open_services`` need no caller; for others ``check_method`` raises ``Forbidden``.
    The calls of one caller are limited. ``audit`` gets each refused call.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        limits: Limits,
        *,
        open_services: AbstractSet[str],
        check_method: Callable[[Caller, str], None],
        audit: Audit,
    ) -> None:
        self._authenticator, self._limits = authenticator, limits
        self._open_services, self._check_method = open_services, check_method
        self._audit = audit
        # By the caller's name. Of one that was revoked they stay: a call may begin later.
        self._under_way: dict[str, Calls] = {}

    def revoke(self, name: str) -> None:
        """End all that a caller has under way: it is not known any more."""
        revoked = Unauthenticated(f"its token {name} was revoked")
        self._under_way.setdefault(name, Calls()).end(revoked)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call. One that is refused for its token is not even read."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method in _NOT_SERVED:
            return None
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if method[: method.rfind("/") + 1] in self._open_services:
            caller: Caller | None = _ANYONE
        else:
            try:
                caller = self._authenticator.by_token(metadata)
                if caller is not None:
                    self._check_method(caller, method)
            except CoordinatorError as error:
                refuse = self._refusing(error, method, token_id_of(metadata))
                return grpc.stream_stream_rpc_method_handler(refuse)

        behaviour = behaviour_of(handler, self._limits)
        codecs = (handler.request_deserializer, handler.response_serializer)
        wrapped = self._wrapped(behaviour, method, caller)
        return grpc.stream_stream_rpc_method_handler(wrapped, *codecs)

    def _refusing(self, error: CoordinatorError, method: str, token_id: str) -> Behaviour:
        async def refuse(_: Any, context: Context) -> None:
            self._audit.refused(context.peer(), error, method=method, token_id=token_id)
            _end(context, error)

        return refuse

    def _wrapped(self, behaviour: Behaviour, method: str, caller: Caller | None) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:
            known = caller
            try:
                if known is None:
                    known = self._authenticator.by_certificate(context.auth_context())
                    self._check_method(known, method)
                set_caller(known)
                # By itself: a call that is ended while its first answer takes it along would
                # send it twice, which gRPC refuses, and then the caller hears of no end.
                clock = ((VERSION_KEY, VERSION), (CLOCK_KEY, f"{time.time():.3f}"))
                await context.send_initial_metadata(() if known is _ANYONE else clock)
                with self._counted(known):
                    return await behaviour(request, context)
            except CoordinatorError as error:
                if error.status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                    name = "" if caller is None else caller.name
                    self._audit.refused(context.peer(), error, method=method, token_id=name)
                _end(context, error)
            except DecodeError as error:
                _end(context, InvalidRequest("message", str(error), "one of this method"))
            except grpc.aio.BaseError:  # the call was aborted, or its caller is gone
                raise
            except Exception:
                # gRPC tells the caller alone.
                log.exception("call broken", method=method)
                raise
            return None

        return call

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Hold a call among those of its caller. Raises ``LimitReached`` or ``Unauthenticated``."""
        calls = self._under_way.setdefault(caller.name, Calls())
        name = "anonymous_calls_max" if caller is _ANYONE else "streams_per_caller_max"
        if calls.error is None and len(calls) >= (most := getattr(self._limits, name)):
            error = LimitReached(name, most)
            if caller is not _ANYONE:
                raise error
            calls.end_oldest(error)
        try:
            with calls.held():
                yield
        finally:
            if not calls and calls.error is None:
                self._under_way.pop(caller.name, None)


def _end(context: Context, error: CoordinatorError) -> None:
    """Have a call that returns now end with an error: the one place where it becomes a status.

    Neither the error nor gRPC is to hold the frames that it went through, as ``abort`` does: they
    hold the call, so that it would stay in memory until Python looks for garbage.
    """
    context.set_code(grpc.StatusCode[error.status])
    context.set_details(str(error))
    context.set_trailing_metadata(((ERROR_KEY, error_detail(error).SerializeToString()),))
    error.__traceback__ = error.__context__ = None
