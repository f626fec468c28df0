"""Shell. How late the event loop comes to what is due: it is made to be due, once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# A lag has no event of its own; to look for one takes some 10 µs.
INTERVAL_S = 1.0


class LoopLag:
    """Tells ``observe`` each lag in seconds, from ``start`` to ``stop``."""

    def __init__(self, observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
        self._observe, self._interval_s = observe, interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, on the loop that runs."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + self._interval_s, self._look, loop)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._timer is not None, "it was set"
        self._observe(max(0.0, loop.time() - self._timer.when()))
        self.start()
