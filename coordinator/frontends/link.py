"""Shell. The socket between a front end and its coordinator: messages in batches, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from drumbeat.coordinator.frontends.messages import Decoder, Message, encoded


# What is read in one turn of the loop: some hundred messages, so that others have their turn.
READ_BYTES = 32 * 1024


class Link(asyncio.BufferedProtocol):
    """Messages of one turn of the loop leave in one write.

    ``take`` gets each message that comes, ``on_lost`` is called once nothing can come any more.
    What waits to be written is bounded by the calls: each has one message on its way.
    """

    def __init__(
        self, kinds: object, take: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> None:
        self._decoder, self._take, self._on_lost = Decoder(kinds), take, on_lost
        self._read = bytearray(READ_BYTES)
        self._waiting: list[Message] = []
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.WriteTransport), "it is a socket's"
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell that the other process is gone."""
        self._transport = None
        self._on_lost()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        """Return where the next bytes go."""
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what is there whole."""
        for message in self._decoder.decoded(self._read[:nbytes]):
            self._take(message)

    def send(self, message: Message) -> None:
        """Send a message with the others of this turn; a process that is gone gets none."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(message)

    def close(self) -> None:
        """End the connection once all is written."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._transport is not None and waiting:
            self._transport.write(encoded(waiting))
