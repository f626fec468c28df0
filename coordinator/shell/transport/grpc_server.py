"""Shell. gRPC's server, kept from ending for a call of a method that it cannot read.

It reads the method of each call that is none of ours as UTF-8, and ends, with all sessions, if one
is not: any caller could say so (seen in 1.85; before, only the call failed). So those calls never
get there: they are answered here, whatever their method. That takes private names of gRPC. With a
release that lacks one the server is gRPC's own, and the log says what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined] # it tells its types of nothing

log = structlog.get_logger()

_Core: Any = cygrpc.AioServer
_ASKS = "_make_request_call_future"  # since 1.85; without it a bad method costs its call alone
_USED = ("_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
_OF_NO_METHOD = None  # as gRPC asks for the next call that is of no registered method


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]
) -> grpc.aio.Server:
    """Return a server that only serves what is registered by name, as generated code does it."""
    made: Any = grpc.aio.server(interceptors=interceptors, options=options)
    if hasattr(_Core, _ASKS):
        try:
            _check_names()
            loop = asyncio.get_running_loop()
            made._server = _Server(loop, None, (), interceptors, tuple(options), None)  # noqa: SLF001
        except (AttributeError, TypeError) as error:
            why = f"gRPC {grpc.__version__} has changed ({error})"
            told = "a caller that names a method in bytes that are not UTF-8 can end this server"
            log.warning("server of gRPC unprotected", reason=f"{why}: {told}")
    server: grpc.aio.Server = made
    return server


def _check_names() -> None:
    """Raise ``AttributeError`` if this gRPC lacks a private name that is used here."""
    for name in _USED:
        getattr(cygrpc, name)
    _ = _Core._request_call  # noqa: SLF001


class _Server(_Core):  # type: ignore[misc] # what it is made of is not told
    def _make_request_call_future(self, method: bytes | None) -> Any:
        if method is not _OF_NO_METHOD:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._answer_others())

    async def _answer_others(self) -> None:
        """Say that there is no such method, until the server ends."""
        loop, answered = asyncio.get_running_loop(), set()
        none_known = cygrpc._MethodResolver([], {})  # noqa: SLF001
        while True:
            state = await self._request_call()
            answer = cygrpc._handle_rpc("", none_known, (), state, loop, False)  # noqa: SLF001
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, ""))  # noqa: SLF001
            answered.add(task)
            task.add_done_callback(answered.discard)
