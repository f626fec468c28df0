"""Shell. gRPC's server, protected against calls of methods whose names are not UTF-8.

gRPC 1.85 decodes the name of each unknown method and, if it is not UTF-8, ends the server with all
its sessions; earlier releases only end the call. So calls of unknown methods are answered here,
whatever their name. This is the only module with private names of gRPC. With a release that lacks
one of them the server is gRPC's own, and the log says what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined] # it has no types

log = structlog.get_logger()

_Core: Any = cygrpc.AioServer
_ASKS = "_make_request_call_future"  # only releases with it need the protection: 1.85 and later
_USED = ("_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
_UNKNOWN_METHOD = None  # gRPC's argument to ask for the next call of an unknown method


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
            risk = "a caller that names a method in bytes that are not UTF-8 can end this server"
            log.warning("server of gRPC unprotected", reason=f"{why}: {risk}")
    server: grpc.aio.Server = made
    return server


def _check_names() -> None:
    """Raise ``AttributeError`` if this gRPC lacks a private name that is used here."""
    for name in _USED:
        getattr(cygrpc, name)
    _ = _Core._request_call  # noqa: SLF001


class _Server(_Core):  # type: ignore[misc] # it has no types
    def _make_request_call_future(self, method: bytes | None) -> Any:
        if method is not _UNKNOWN_METHOD:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._answer_unknown())

    async def _answer_unknown(self) -> None:
        """Answer every call that there is no such method, until the server ends."""
        loop, answered = asyncio.get_running_loop(), set()
        none_known = cygrpc._MethodResolver([], {})  # noqa: SLF001
        while True:
            state = await self._request_call()
            answer = cygrpc._handle_rpc("", none_known, (), state, loop, False)  # noqa: SLF001
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, ""))  # noqa: SLF001
            answered.add(task)
            task.add_done_callback(answered.discard)
