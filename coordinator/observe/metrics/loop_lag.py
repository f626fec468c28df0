"""Shell. The lag of the event loop, measured by a timer once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# One measurement takes about 10 µs.
INTERVAL_S = 1.0


class LoopLag:
    """Calls ``observe`` with each lag in seconds, from ``start`` to ``stop``."""

    def __init__(self, observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
        self._observe, self._interval_s = observe, interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring the running loop."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + self._interval_s, self._look, loop)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._timer is not None, "it was set"
        self._observe(max(0.0, loop.time() - self._timer.when()))
        self.start()
