"""Shell. Writes a journal until it succeeds, if need be once the disk has room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from coordinator.core.effects import Effect, Kept
from coordinator.errors import JournalOutage
from coordinator.journal.journal import Journal
from coordinator.journal.outage import Outage

log = structlog.get_logger()

# A write that takes longer than this counts as an outage before it returns.
PATIENCE_S = 5.0

OnServing = Callable[[bool], Awaitable[None]]


class Writer:
    """While a write fails or does not return, ``outage`` is set and the caller waits.

    ``on_outage`` is told each reason, ``on_serving`` whether there is an outage.
    """

    def __init__(
        self, journal: Journal, *, on_outage: Callable[[str], None], on_serving: OnServing
    ) -> None:
        self.outage: Outage | None = None
        self._journal = journal
        self._on_outage, self._on_serving = on_outage, on_serving

    async def write(self, effects: Sequence[Effect], *, now: float) -> None:
        """Return once what is to be kept of these effects is durable."""
        while any(isinstance(effect, Kept) for effect in effects):
            try:
                await self._try(effects, now)
            except JournalOutage as error:
                outage = await self._note(str(error), advice=error.hint)
                await asyncio.sleep(outage.next_retry_s())
            else:
                if self.outage is not None:
                    await self._end(self.outage)
                return

    async def _try(self, effects: Sequence[Effect], now: float) -> None:
        write = asyncio.ensure_future(self._journal.write(effects, now=now))
        try:
            done, _ = await asyncio.wait({write}, timeout=PATIENCE_S)
            if not done:
                await self._note(f"the disk of the journal has not answered for {PATIENCE_S:g} s")
            await write
        finally:
            write.cancel()

    async def _note(self, reason: str, **details: str) -> Outage:
        now = time.monotonic()
        if self.outage is None:
            self.outage = Outage(now=now)
            await self._on_serving(False)
        self._on_outage(reason)
        if self.outage.failed(reason, now=now):
            log.error(
                "nothing is decided until the journal can be written",
                reason=reason,
                since_s=round(self.outage.lasted_s(now=now), 1),
                **details,
            )
        return self.outage

    async def _end(self, outage: Outage) -> None:
        self.outage = None
        await self._on_serving(True)
        lasted_s = round(outage.lasted_s(now=time.monotonic()), 1)
        log.warning("the journal can be written again", after_s=lasted_s)
