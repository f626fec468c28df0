"""Shell. The gRPC services: each call is handed to ``Sessions``, each error put into a status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Self

import grpc

from coordinator.errors import CoordinatorError
from coordinator.shell.sessions import Sessions
from drumbeat.v1 import (
    failure_pb2,
    failure_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)

# Trailing metadata of a refused call: the name of a `drumbeat.v1.Refusal`.
REFUSAL_KEY = "drumbeat-reason"

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


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Registrations of agents."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def Open(  # type: ignore[override] # the stub knows handlers that yield only
        self, request_iterator: AsyncIterator[session_pb2.OpenRequest], context: Context
    ) -> None:
        """Hold one session."""
        await self._sessions.open(_Requests(context), context.write)


class FailureService(failure_pb2_grpc.FailureServiceServicer):
    """Failure records."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def Report(  # type: ignore[override] # the stub knows handlers that yield only
        self, request_iterator: AsyncIterator[failure_pb2.ReportRequest], context: Context
    ) -> None:
        """Journal and acknowledge records."""
        await self._sessions.report(_Requests(context), context.write)


class RunService(run_pb2_grpc.RunServiceServicer):
    """Questions about runs, and the one thing people can change."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def GetRun(
        self, request: run_pb2.GetRunRequest, context: Context
    ) -> run_pb2.GetRunResponse:
        """Return one run."""
        return self._sessions.get_run(request)

    async def GetVerdict(
        self, request: run_pb2.GetVerdictRequest, context: Context
    ) -> run_pb2.GetVerdictResponse:
        """Return how a run ended."""
        return self._sessions.get_verdict(request)

    async def ResetLimits(
        self, request: run_pb2.ResetLimitsRequest, context: Context
    ) -> run_pb2.ResetLimitsResponse:
        """Forget what was learned of one run."""
        return await self._sessions.reset_limits(request)

    async def ListRuns(
        self, request: run_pb2.ListRunsRequest, context: Context
    ) -> run_pb2.ListRunsResponse:
        """Return all runs."""
        return self._sessions.list_runs()


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
    metadata = ((REFUSAL_KEY, f"REFUSAL_{error.refusal}"),)
    await context.abort(grpc.StatusCode[error.status], str(error), metadata)
