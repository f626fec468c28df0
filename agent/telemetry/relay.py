"""Shell. Brings an agent's events and metrics to the handler that was asked for.

The handler has a thread of its own: whatever it does, the agent only ever fills a bounded queue.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Full, Queue
from threading import Thread

import structlog

from agent.core.effects import Effect
from agent.core.events import Event as CoreEvent
from agent.settings.config import AgentConfig
from agent.telemetry import handlers
from agent.telemetry.items import Event, Item, Metric
from agent.telemetry.observer import Observer
from drumbeat.format import describe

log = structlog.get_logger()

QUEUE_MAX = 10_000
"""Items that wait for the handler; more are dropped and counted."""

CLOSE_TIMEOUT_S = 2.0
"""How long the end of an agent waits for its handler to take what is left."""

DROPPED = "telemetry.dropped"


class Telemetry:
    """The telemetry of one agent. Costs nothing without a handler."""

    def __init__(self, config: AgentConfig, *, host: str) -> None:
        make = handlers.factory(config.event_handler, config.event_log_file)
        now = time.monotonic()
        self._observer = Observer(config, host=host, epoch_s=time.time() - now, now=now)
        self._relay = None if make is None else Relay(make)

    def saw(self, event: CoreEvent | None, effects: Sequence[Effect], *, now: float) -> None:
        """Pass on what follows from an event and the core's answer to it."""
        if self._relay is not None:
            self._relay.send(self._observer.saw(event, effects, now=now))

    async def close(self) -> None:
        """Let the handler finish, for a bounded time."""
        if self._relay is not None:
            await asyncio.to_thread(self._relay.close)


class Relay:
    """A bounded queue and the thread that empties it into a handler, which ``make`` makes there.

    ``dropped`` counts items that found the queue full, or no handler; ``failed`` calls of the
    handler that raised.
    """

    def __init__(self, make: handlers.Factory, *, queue_max: int = QUEUE_MAX) -> None:
        self.dropped = self.failed = 0
        self._queue: Queue[Item | None] = Queue(queue_max)
        self._is_closing = False
        # A daemon: a handler that never returns must not keep the process alive.
        self._thread = Thread(target=self._run, args=(make,), name="telemetry", daemon=True)
        self._thread.start()

    def send(self, items: Iterable[Item]) -> None:
        """Hand items over. Never blocks on the handler and never raises."""
        for item in items:
            if self._is_closing or self._queue.full():  # nothing else fills it
                self.dropped += 1
            else:
                self._queue.put_nowait(item)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the handler take what is left, for at most ``timeout_s``, and say what is missing."""
        self._is_closing = True
        until = time.monotonic() + timeout_s
        with suppress(Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(max(0.0, until - time.monotonic()))
        left = max(self._queue.qsize(), self._thread.is_alive())
        if self.dropped or self.failed or left:
            missing = f"{self.dropped} items dropped, {self.failed} refused by the handler"
            reason = f"{missing}, {left} not taken within {timeout_s:g} s"
            log.warning("telemetry incomplete", reason=reason)

    def _run(self, make: handlers.Factory) -> None:
        try:
            handler = make()
        except Exception as error:  # noqa: BLE001 - foreign code, of which training is independent
            log.warning("event handler not available", reason=describe(error))
            while self._queue.get() is not None:
                self.dropped += 1
            return
        while (item := self._queue.get()) is not None:
            self._call(handler.handle if isinstance(item, Event) else handler.put, item)
        if self.dropped:
            self._call(handler.put, Metric(name=DROPPED, value=self.dropped))
        self._call(handler.close)

    def _call(self, method: Callable[..., None], *items: Item) -> None:
        try:
            method(*items)
        except Exception as error:  # noqa: BLE001
            self.failed += 1
            if self.failed == 1:  # once: a disk that is full stays full
                log.warning("event handler failed", reason=describe(error))
