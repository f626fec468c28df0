"""Shell. A call whose connection a front end holds, as a servicer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NoReturn

import grpc

from drumbeat.coordinator.frontends import messages as ms

Codec = Callable[[Any], Any] | None


class ForwardedCall:
    """As ``grpc.aio.ServicerContext``, of which it has what our services and gRPC's own use."""

    def __init__(self, begun: ms.Begun, send: Callable[[ms.Message], None]) -> None:
        self.number, self._begun, self._send = begun.call, begun, send
        self._read: Codec = None
        self._written: Codec = None
        self._reader: asyncio.Future[None] | None = None  # waits for the caller
        self._message: bytes | None = None  # that waits to be read
        self._is_all = False  # the caller says no more
        self._code, self._details = grpc.StatusCode.OK, ""
        self._trailing: ms.Metadata = ()
        self._taken: asyncio.Future[None] | None = None

    def use(self, read: Codec, written: Codec) -> None:
        """Have messages made of bytes, and bytes of messages, like this."""
        self._read, self._written = read, written

    def take(self, message: ms.Said | ms.Taken | ms.SaidAll) -> None:
        """Take in what the front end says of the caller, or that the latest message has left."""
        waiting = self._taken if isinstance(message, ms.Taken) else self._reader
        match message:
            case ms.Said(message=data):
                self._message = data
            case ms.SaidAll():
                self._is_all = True
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # What servicers use.

    async def read(self) -> Any:
        """Return the caller's next message, ``grpc.aio.EOF`` at the end. Raises ``DecodeError``."""
        while self._message is None:
            if self._is_all:
                return grpc.aio.EOF
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message, self._message = self._message, None
        self._send(ms.Taken(self.number))
        return message if self._read is None else self._read(message)

    async def requests(self) -> AsyncIterator[Any]:
        """Yield the caller's messages. Raises ``DecodeError``."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def write(self, message: Any) -> None:
        """Send a message; return once it has left for the caller."""
        data = message if self._written is None else self._written(message)
        self._taken = asyncio.get_running_loop().create_future()
        self._send(ms.Said(self.number, data))
        await self._taken

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._send(ms.Greeted(self.number, tuple(metadata)))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: ms.Metadata = ()
    ) -> NoReturn:
        """End the call with a status. Always raises ``AbortError``."""
        self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: ms.Metadata) -> None:
        self._trailing = trailing_metadata

    def end_by_itself(self) -> None:
        """Send the status of a call whose servicer has returned."""
        self.end(self._code, self._details, self._trailing)

    def end(self, code: grpc.StatusCode, details: str = "", metadata: ms.Metadata = ()) -> None:
        """Send the status with which the call ends."""
        self._send(ms.Ended(self.number, code.value[0], details, tuple(metadata)))

    def invocation_metadata(self) -> ms.Metadata:
        return self._begun.metadata

    def peer(self) -> str:
        return self._begun.peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._begun.properties
