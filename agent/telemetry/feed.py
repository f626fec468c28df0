"""Shell. Joins an agent's observer to the handler that was asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agent.core.effects import Effect
from agent.core.events import Event
from agent.settings.config import AgentConfig
from agent.telemetry import catalog
from agent.telemetry.observer import Observer
from agent.telemetry.relay import Relay


class Telemetry:
    """The telemetry of one agent. Costs nothing if nobody listens."""

    def __init__(self, config: AgentConfig, *, host: str) -> None:
        self._observer: Observer | None = None
        self._relay: Relay | None = None
        make = catalog.factory(config.event_handler, config.event_log_file)
        if make is not None:
            now = time.monotonic()
            self._observer = Observer(config, host=host, epoch_s=time.time() - now, now=now)
            self._relay = Relay(make)

    def saw(self, event: Event | None, effects: Sequence[Effect], *, now: float) -> None:
        """Pass on what follows from an event and the core's answer to it."""
        if self._observer is not None and self._relay is not None:
            items = self._observer.saw(event, effects, now=now)
            if items:
                self._relay.send(items)

    async def close(self) -> None:
        """Let the handler finish, for a bounded time."""
        if self._relay is not None:
            await asyncio.to_thread(self._relay.close)
