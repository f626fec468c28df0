"""Shell. The gRPC services: each call is handed to ``Sessions``, each error put into a status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Self

import grpc

from coordinator.errors import CoordinatorError
from coordinator.shell.queries import Control, Queries
from coordinator.shell.sessions import Sessions
from coordinator.wire.session import error_detail
from drumbeat.v1 import control_pb2, control_pb2_grpc, query_pb2_grpc, session_pb2, session_pb2_grpc

# Trailing metadata of a refused call: an encoded `drumbeat.v1.ErrorDetail`.
ERROR_KEY = "drumbeat-error-bin"

Context = grpc.aio.ServicerContext[Any, Any]


class _Requests:
    """What a caller says. An object and not a generator: one that is left is no task's to close."""

    def __init__(self, context: Context) -> None:
        self._read = context.read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


class AgentService(session_pb2_grpc.AgentServiceServicer):
    """Sessions of agents, and their failure records."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def OpenSession(  # type: ignore[override] # the stub knows handlers that yield only
        self, request_iterator: AsyncIterator[session_pb2.AgentReport], context: Context
    ) -> None:
        """Hold one session."""
        await self._sessions.open(_Requests(context), context.write)

    async def ReportFailures(  # type: ignore[override] # the stub knows handlers that yield only
        self, request_iterator: AsyncIterator[session_pb2.ReportFailuresRequest], context: Context
    ) -> None:
        """Journal and acknowledge records."""
        await self._sessions.report(_Requests(context), context.write)


def _answered(answer: Callable[[Queries, Any], Any]) -> Any:
    async def handle(self: QueryService, request: Any, _context: Context) -> Any:
        return answer(self.queries, request)

    return handle


class QueryService(query_pb2_grpc.QueryServiceServicer):
    """Questions about runs."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries

    GetRun: Any = _answered(Queries.get_run)
    ListRuns: Any = _answered(Queries.list_runs)
    ListAgents: Any = _answered(Queries.list_agents)
    ListEvents: Any = _answered(Queries.list_events)
    GetReport: Any = _answered(Queries.get_report)


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """What operators may change."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def ResetLimits(
        self, request: control_pb2.ResetLimitsRequest, context: Context
    ) -> control_pb2.ResetLimitsResponse:
        """Forget what was learned of one run."""
        return await self._control.reset_limits(request)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a ``CoordinatorError`` into its status: the one place where that happens."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_translated(handler.unary_unary), *codecs)
        if iscoroutinefunction(handler.stream_stream):  # ours; that of reflection yields
            behaviour = _translated(handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(behaviour, *codecs)
        return handler


def _translated(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await behaviour(request, context)
        except CoordinatorError as error:
            await _abort(context, error)

    return call


async def _abort(context: Context, error: CoordinatorError) -> None:
    metadata = ((ERROR_KEY, error_detail(error).SerializeToString()),)
    await context.abort(grpc.StatusCode[error.status], str(error), metadata)
