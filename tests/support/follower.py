"""A coordinator that follows: it answers every call with the one that leads, as it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tests.support.fake_coordinator import Refused, not_leading


class Follower(grpc.GenericRpcHandler):
    """Answers once it ``is_free`` to."""

    def __init__(self) -> None:
        self.answer: Refused = not_leading()
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.is_asked = asyncio.Event()
        self.calls = 0
        self.address = ""

    def names(self, leader: str = "", reason: str = "it starts") -> None:
        """Say from now on who leads, or why none does."""
        self.answer = not_leading(leader, reason)

    def service(self, _call: object) -> Any:
        """Take a call of any method."""
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _requests: object, context: Any) -> None:
        self.calls += 1
        await context.send_initial_metadata(())  # as one does that serves
        self.is_asked.set()
        await self.is_free.wait()
        await self.answer.abort(context)


@asynccontextmanager
async def follower() -> AsyncIterator[Follower]:
    """Serve on loopback, in plaintext."""
    made, server = Follower(), grpc.aio.server()
    server.add_generic_rpc_handlers((made,))
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)
