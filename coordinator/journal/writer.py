"""Shell. The journal's thread: each write is made durable, if need be once the disk has room."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from coordinator.core.run.state import RunState
from coordinator.errors import JournalOutage
from coordinator.journal.outage import Outage
from coordinator.journal.sqlite import Change, Journal, MemoryJournal

log = structlog.get_logger()

# A call of the journal that takes longer than this counts as an outage before it returns.
PATIENCE_S = 5.0

Result = TypeVar("Result")
OnServing = Callable[[bool], Awaitable[None]]


async def ignore(is_serving: bool) -> None:
    """Tell nobody."""


class Writer:
    """Calls a journal, one call at a time, each until it succeeds.

    While a call fails or does not return, ``outage`` is set and ``on_serving`` has
    been told ``False``; the caller waits. Cancelling it gives the call up.
    """

    def __init__(self, journal: Journal, *, on_serving: OnServing = ignore) -> None:
        self.outage: Outage | None = None
        self.outages_count = 0
        """Outages that are over."""
        self._journal = journal
        self._on_serving = on_serving
        # SQLite waits for the disk; the event loop does not wait with it.
        is_instant = isinstance(journal, MemoryJournal)
        self._thread = None if is_instant else ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Return once the changes are durable."""
        await self._persist(lambda: self._journal.write(changes, now=now))

    async def load_run(self, run_id: str) -> RunState | None:
        """Return one run as it was journaled. Raises ``JournalCorrupt``."""
        return await self._persist(lambda: self._journal.load_run(run_id))

    def close(self) -> None:
        """Close the journal once the call in progress, if any, has returned.

        If it does not, the process ends here: nothing in it can, with a thread that
        waits for a disk.
        """
        if self._thread is None:
            self._journal.close()
            return
        closed = self._thread.submit(self._journal.close)
        self._thread.shutdown(wait=False)
        try:
            closed.result(timeout=PATIENCE_S)
        except TimeoutError:
            log.critical("coordinator ends", reason="the disk of the journal does not answer")
            os._exit(1)

    async def _persist(self, call: Callable[[], Result]) -> Result:
        while True:
            try:
                result = await self._try(call)
            except JournalOutage as error:
                await self._note(str(error), advice=error.hint)
                assert self.outage is not None, "just noted"
                await asyncio.sleep(self.outage.next_retry_s())
            else:
                if self.outage is not None:
                    await self._end(self.outage)
                return result

    async def _try(self, call: Callable[[], Result]) -> Result:
        if self._thread is None:
            return call()
        result = asyncio.get_running_loop().run_in_executor(self._thread, call)
        done, _ = await asyncio.wait({result}, timeout=PATIENCE_S)
        if not done:
            await self._note(f"the disk of the journal has not answered for {PATIENCE_S:g} s")
        return await result

    async def _note(self, reason: str, **details: str) -> None:
        now = time.monotonic()
        if self.outage is None:
            self.outage = Outage(now=now)
            await self._on_serving(False)
        if self.outage.failed(reason, now=now):
            log.error(
                "nothing is decided until the journal can be written",
                reason=reason,
                since_s=round(self.outage.lasted_s(now=now), 1),
                **details,
            )

    async def _end(self, outage: Outage) -> None:
        self.outage = None
        self.outages_count += 1
        await self._on_serving(True)
        lasted_s = round(outage.lasted_s(now=time.monotonic()), 1)
        log.warning("the journal can be written again", after_s=lasted_s)
