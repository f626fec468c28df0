"""Shell. Brings events and metrics to a handler, on a thread of its own.

Whatever the handler does, the agent only ever appends to a bounded queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

import structlog

from agent.telemetry.catalog import Factory
from agent.telemetry.handlers import EventHandler
from agent.telemetry.model import Event, Item, Metric

log = structlog.get_logger()

QUEUE_MAX = 10_000
"""Items that wait for the handler; more are dropped and counted."""

CLOSE_TIMEOUT_S = 2.0
"""How long the end of an agent waits for its handler to take what is left."""

DROPPED = "telemetry.dropped"


class Relay:
    """A bounded queue and the thread that empties it into a handler."""

    def __init__(self, make: Factory, *, queue_max: int = QUEUE_MAX) -> None:
        """Start the thread; ``make`` is called there."""
        self.dropped = 0
        """Items that found the queue full, or no handler."""
        self.failed = 0
        """Calls of the handler that raised."""
        self._make = make
        self._queue_max = queue_max
        self._queue: deque[Item] = deque()
        self._arrived = threading.Condition()
        self._is_closing = False
        self._is_broken = False
        # A daemon: a handler that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def send(self, items: Iterable[Item]) -> None:
        """Hand items over. Never blocks on the handler and never raises."""
        with self._arrived:
            for item in items:
                if self._is_broken or self._is_closing or len(self._queue) >= self._queue_max:
                    self.dropped += 1
                else:
                    self._queue.append(item)
            self._arrived.notify()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the handler take what is left, for at most ``timeout_s``, and say what is missing."""
        with self._arrived:
            self._is_closing = True
            self._arrived.notify()
        self._thread.join(timeout_s)
        with self._arrived:
            left = len(self._queue) + self._thread.is_alive()
            missing = self.dropped + self.failed + left
        if missing:
            log.warning(
                "telemetry incomplete",
                reason=f"{self.dropped} items dropped, {self.failed} refused by the handler, "
                f"{left} not taken within {timeout_s:g} s",
            )

    def _run(self) -> None:
        try:
            handler = self._make()
        except Exception as error:  # noqa: BLE001 - foreign code, of which training is independent
            self._break(error)
            return
        while (item := self._next()) is not None:
            self._deliver(handler, item)
        if self.dropped:
            self._deliver(handler, Metric(name=DROPPED, value=self.dropped))
        try:
            handler.close()
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)

    def _next(self) -> Item | None:
        """Wait for an item; ``None`` when there will be no more."""
        with self._arrived:
            while not self._queue and not self._is_closing:
                self._arrived.wait()
            return self._queue.popleft() if self._queue else None

    def _deliver(self, handler: EventHandler, item: Item) -> None:
        try:
            if isinstance(item, Event):
                handler.handle(item)
            else:
                handler.put(item)
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        self.failed += 1
        if self.failed == 1:  # once: a disk that is full stays full
            log.warning("event handler failed", reason=_describe(error))

    def _break(self, error: Exception) -> None:
        with self._arrived:
            self._is_broken = True
            self.dropped += len(self._queue)
            self._queue.clear()
        log.warning("event handler not available", reason=_describe(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
