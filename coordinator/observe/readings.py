"""Shell. A cache of readings: each is made once for all readers, in a share of the event loop.

A reading shows something that changes all the time: an overview of a run, its ranks, metrics.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from drumbeat.coordinator.core.run.state import RunState

Reading = TypeVar("Reading")
# Makes a reading from the previous one; yields so that other tasks can run.
Make = Callable[[Reading | None], Generator[None, None, Reading]]

# Share of the event loop that one view of a run may use, and the shortest time a reading is fresh.
SHARE, FRESH_LEAST_S = 0.01, 1.0
# The share just after an event of the run.
SHARE_AT_EVENTS = 0.05
# How often a reading is started again because a round began meanwhile.
PASSES_MAX = 3
# Readings that no reader has asked for in this time are dropped.
KEPT_S = 60.0


def fresh_s(took_s: float, share: float, least_s: float = FRESH_LEAST_S) -> float:
    """Return how long a reading has to serve so that making readings takes that share."""
    return max(least_s, took_s / share)


@dataclass(frozen=True, eq=False)
class View(Generic[Reading]):
    """A kind of reading. ``giving_s``: the time it takes to serve one reader."""

    share: float = SHARE
    least_s: float = FRESH_LEAST_S
    giving_s: Callable[[Reading], float] = lambda _: 0.0


@dataclass(slots=True)
class _Kept:
    """The latest reading of a view."""

    latest: Any = None
    made_at: float = -math.inf
    asked_at: float = -math.inf
    took_s: float = 0.0
    version: tuple[int, bool] = (0, False)  # of the run
    readers: int = 0  # that repeat their calls and were given it
    readers_before: int = 0  # that were given the one before
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the next one is made


class Readings:
    """The latest readings. ``now`` is the coordinator's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._kept: dict[tuple[View[Any], str], _Kept] = {}

    async def get(
        self,
        view: View[Reading],
        make: Make[Reading],
        state: RunState | None = None,
        *,
        is_repeated: bool = True,
        readers: int = 0,
    ) -> Reading:
        """Return a reading made after this call; if the call is repeated, one that is still fresh.

        ``readers``: how many readers this caller passes it on to.
        """
        kept = self._of(view, state)
        asked_at = kept.asked_at = self.now()
        async with kept.lock:
            # After the end of a run readers ask once more: give them nothing older.
            is_told = _version(state)[1] == kept.version[1]
            is_fresh = is_told and asked_at < self.fresh_until(view, state)
            if kept.latest is None or not (is_fresh if is_repeated else kept.made_at >= asked_at):
                await self._renew(kept, make, state)
            kept.readers = max(kept.readers, readers) if readers else kept.readers + is_repeated
            return kept.latest  # type: ignore[no-any-return] # what the view's maker made

    def fresh_until(self, view: View[Reading], state: RunState | None = None) -> float:
        """Return until when the latest reading serves repeated calls."""
        kept = self._of(view, state)
        share = view.share if _version(state) == kept.version else SHARE_AT_EVENTS
        readers = max(kept.readers, kept.readers_before)
        giving_s = readers * view.giving_s(kept.latest) if readers else 0.0
        return kept.made_at + fresh_s(kept.took_s + giving_s, share, view.least_s)

    async def _renew(self, kept: _Kept, make: Make[Any], state: RunState | None) -> None:
        took_s = 0.0
        for _ in range(PASSES_MAX):
            # The version before the pass, for later changes may be missing from it.
            version, current = _version(state), None if state is None else state.round
            latest, pass_s = await _in_turns(make(kept.latest))
            took_s += pass_s
            if state is None or state.round is current:
                break
        kept.latest, kept.took_s, kept.version = latest, took_s, version
        kept.readers, kept.readers_before = 0, kept.readers
        kept.made_at = self.now()

    def _of(self, view: View[Any], state: RunState | None) -> _Kept:
        """Return the entry of a view; when a new one is added, drop those not asked for."""
        oldest, key = self.now() - KEPT_S, (view, "" if state is None else state.key)
        if (kept := self._kept.get(key)) is None:
            asked = {k: v for k, v in self._kept.items() if v.asked_at >= oldest}
            self._kept = {**asked, key: (kept := _Kept())}
        return kept


def _version(state: RunState | None) -> tuple[int, bool]:
    """Return how many events a run has had, and whether it has ended."""
    return (0, False) if state is None else (state.events_count, state.verdict is not None)


async def _in_turns(work: Generator[None, None, Reading]) -> tuple[Reading, float]:
    """Work in turns with other tasks; return the result and the CPU time it took."""
    took_s = 0.0
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration as end:
            return end.value, took_s + time.thread_time() - began
        took_s += time.thread_time() - began
        await asyncio.sleep(0)
