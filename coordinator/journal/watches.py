"""Shell. Wakes the readers of a run when there is more to read. Nothing is queued for them.

Agents are told first, so that no agent waits for readers, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from drumbeat.coordinator.errors import CoordinatorError, LimitReached


class Watch:
    """One reader of one run: whether there may be news since it last asked."""

    def __init__(self) -> None:
        self._is_due = asyncio.Event()
        self._error: CoordinatorError | None = None

    def wake(self, error: CoordinatorError | None = None) -> None:
        """Let ``news`` return, or raise an error."""
        self._error = self._error or error
        self._is_due.set()

    async def news(self) -> None:
        """Return once there may be news. Raises the error that ended it."""
        await self._is_due.wait()
        self._is_due.clear()
        if self._error is not None:
            raise self._error


class Watches:
    """All readers that wait, by ``RunState.key``."""

    def __init__(self) -> None:
        self._open: dict[str, set[Watch]] = {}
        self._changed: set[str] = set()
        self._count = 0
        self._error: CoordinatorError | None = None

    @contextmanager
    def open(self, key: str, *, most: int) -> Iterator[Watch]:
        """Wake a reader while the context is open. Raises ``LimitReached`` beyond ``most``."""
        if self._count >= most:
            raise LimitReached("watches_max", most)
        watch = Watch()
        watch.wake(self._error)
        self._open.setdefault(key, set()).add(watch)
        self._count += 1
        try:
            yield watch
        finally:
            self._count -= 1
            self._open[key].discard(watch)
            if not self._open[key]:
                del self._open[key]

    def changed(self, key: str) -> None:
        """Note that there is more to read of a run."""
        if key in self._open:
            self._changed.add(key)

    def tell(self) -> None:
        """Wake the readers of all runs that have changed."""
        for key in self._changed:
            for watch in self._open.get(key, ()):
                watch.wake()
        self._changed.clear()

    def end(self, error: CoordinatorError) -> None:
        """End all watches, and those that come, with an error."""
        self._error = error
        for watches in self._open.values():
            for watch in watches:
                watch.wake(error)
