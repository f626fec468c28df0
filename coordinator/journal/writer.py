"""Shell. Writes a journal until it succeeds, if need be once the disk has room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from coordinator.core.effects import Effect, Kept
from coordinator.errors import JournalOutage
from coordinator.journal.journal import Journal

log = structlog.get_logger()

# A write that takes longer than this counts as an outage before it returns.
PATIENCE_S = 5.0
# The first retry comes soon, for what passes by itself; later ones cost a write each
# and are spread out, up to a delay that is short against making room on a disk.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
# After this long the log says again that it goes on; then after twice that, and so on.
REMIND_FIRST_S = 60.0


class Outage:
    """A time in which a journal can't be written. ``now`` is seconds of one clock."""

    def __init__(self, *, now: float) -> None:
        self.began_at = now
        self._reason = ""
        self._retry_s = RETRY_FIRST_S
        self._remind_after_s = REMIND_FIRST_S

    def failed(self, reason: str, *, now: float) -> bool:
        """Take a failure in; return whether it should be logged."""
        is_news, self._reason = reason != self._reason, reason
        is_due = now - self.began_at >= self._remind_after_s
        if is_due:
            self._remind_after_s *= 2
        return is_news or is_due

    def next_retry_s(self) -> float:
        """Return how long to wait before the next try; it doubles up to ``RETRY_MAX_S``."""
        delay, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return delay


class Writer:
    """While a write fails or does not return, its caller waits.

    ``on_outage`` is told each reason, ``on_serving`` when an outage begins and ends.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        on_outage: Callable[[str], None],
        on_serving: Callable[[bool], Awaitable[None]] | None,
    ) -> None:
        self._journal = journal
        self._on_outage, self._on_serving = on_outage, on_serving
        self._outage: Outage | None = None

    async def write(self, effects: Sequence[Effect], *, now: float) -> None:
        """Return once what is to be kept of these effects is durable."""
        while any(isinstance(effect, Kept) for effect in effects):
            write = asyncio.ensure_future(self._journal.write(effects, now=now))
            try:
                done, _ = await asyncio.wait({write}, timeout=PATIENCE_S)
                if not done:
                    await self._note(
                        f"the disk of the journal has not answered for {PATIENCE_S:g} s"
                    )
                await write
            except JournalOutage as error:
                outage = await self._note(str(error), advice=error.hint)
                await asyncio.sleep(outage.next_retry_s())
            else:
                break
            finally:
                write.cancel()
        if self._outage is not None:
            lasted_s = round(time.monotonic() - self._outage.began_at, 1)
            self._outage = None
            if self._on_serving is not None:
                await self._on_serving(True)
            log.warning("the journal can be written again", after_s=lasted_s)

    async def _note(self, reason: str, **details: str) -> Outage:
        now = time.monotonic()
        if self._outage is None:
            self._outage = Outage(now=now)
            if self._on_serving is not None:
                await self._on_serving(False)
        self._on_outage(reason)
        if self._outage.failed(reason, now=now):
            since_s = round(now - self._outage.began_at, 1)
            told = "nothing is decided until the journal can be written"
            log.error(told, reason=reason, since_s=since_s, **details)
        return self._outage
