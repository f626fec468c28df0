"""Shell. Failure records that wait for the core, behind everything else.

A machine room that fails sends tens of thousands at once, of up to 256 KiB each. They
are taken a few at a time, when nothing else waits, and their streams are not read
while there are enough here: gRPC then holds the rest back on the agents.
"""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.core.events import FailureReported

# More of them would only be read, not be handled, earlier.
COUNT_MAX = 1_024

# Of one batch: what the disk takes within milliseconds, so that decisions wait no longer.
TAKEN_MAX = 256
TAKEN_BYTES_MAX = 1024 * 1024


class FailureQueue:
    """First come, first served. At most ``COUNT_MAX`` records, or ``bytes_max`` and one more."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._events: deque[FailureReported] = deque()
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._events)

    async def room(self) -> None:
        """Return when one more record may be added."""
        while self._is_full():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._call_next()  # its place is free for another
                raise

    def add(self, event: FailureReported) -> None:
        """Add a record, for which there should be ``room``."""
        self._events.append(event)
        self._bytes += event.record.size_bytes

    def take(self) -> list[FailureReported]:
        """Return the next batch: at least one, if there are any."""
        taken: list[FailureReported] = []
        size = 0
        while self._events and len(taken) < TAKEN_MAX and size < TAKEN_BYTES_MAX:
            taken.append(self._events.popleft())
            size += taken[-1].record.size_bytes
        self._bytes -= size
        for _ in taken:
            self._call_next()
        return taken

    def clear(self) -> None:
        """Drop what is here; agents send it again."""
        self._events.clear()
        self._bytes = 0
        while self._waiting:
            self._call_next()

    def _is_full(self) -> bool:
        return len(self._events) >= COUNT_MAX or self._bytes >= self._bytes_max

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
