"""Shell. The socket between a front end and its coordinator: messages in batches, in order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from drumbeat.coordinator.frontends.messages import Decoder, Message, encoded

# What is taken in one turn of the loop, so that others have theirs.
MESSAGES_PER_TURN = 64


class Link(asyncio.Protocol):
    """Messages of one turn of the loop leave in one write.

    ``take`` gets each message that comes, ``on_lost`` is called once nothing can come any more.
    What waits to be written is bounded by the calls: each has one message on its way.
    """

    def __init__(
        self, kinds: object, take: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> None:
        self._decoder, self._take, self._on_lost = Decoder(kinds), take, on_lost
        self._come: Iterator[Message] = iter(())  # that were read and not taken yet
        self._waiting: list[Message] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "it is a socket's"
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Hand on what is there whole; nothing is read before that is done."""
        self._come = self._decoder.decoded(data)
        self._take_some()

    def _take_some(self) -> None:
        taken = 0
        for message in itertools.islice(self._come, MESSAGES_PER_TURN):
            self._take(message)
            taken += 1
        if self._transport is None:
            return
        if taken < MESSAGES_PER_TURN:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._take_some)

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
