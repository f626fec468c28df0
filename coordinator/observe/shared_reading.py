"""Shell. Readings: made once for all readers, and in a bounded share of the event loop's time.

A reading is what is shown of something that changes all the time: an overview of a run, metrics.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from drumbeat.coordinator.core.run.state import RunState

Reading = TypeVar("Reading")

# Share of the event loop's time that one reading may take, and how long it is fresh at least.
SHARE, FRESH_LEAST_S = 0.01, 1.0
# The share just after an event of the run.
SHARE_AT_EVENTS = 0.05
# How often a reading is made from the beginning because a round began on the way.
PASSES_MAX = 3
# A reading that is older than this is forgotten.
KEPT_S = 60.0


def fresh_s(took_s: float, share: float, least_s: float = FRESH_LEAST_S) -> float:
    """Return how long to wait for the next reading, so that readings take that share."""
    return max(least_s, took_s / share)


class SharedReading(Generic[Reading]):
    """The latest reading of one thing. If that is a run, each call is given its state."""

    def __init__(
        self, now: Callable[[], float], share: float = SHARE, least_s: float = FRESH_LEAST_S
    ) -> None:
        self._now, self._share, self._least_s = now, share, least_s
        self._reading: Reading | None = None
        self._took_s, self._version = 0.0, (0, False)
        self.lock = asyncio.Lock()  # held by the reader that makes the next one
        self.made_at = -math.inf
        self.giving_s = 0.0  # what it takes to give a reading to all its readers

    async def get(
        self,
        make: Callable[[Reading | None], Generator[None, None, Reading]],
        state: RunState | None = None,
        *,
        is_repeated: bool = True,
    ) -> Reading:
        """Return a reading that was made after this call, or is fresh if the call is repeated.

        ``make`` is given the reading before; it yields whenever other tasks are to have a turn.
        """
        asked_at = self._now()
        async with self.lock:
            reading, took_s = self._reading, 0.0
            # Of a run that has ended a reader asks once more, and never again.
            is_told = _version(state)[1] == self._version[1]
            is_fresh = is_told and asked_at < self.fresh_until(state)
            if reading is not None and (is_fresh if is_repeated else self.made_at >= asked_at):
                return reading
            for _ in range(PASSES_MAX):
                # From before the pass: what changes on the way may be missing.
                version, current = _version(state), None if state is None else state.round
                reading, pass_s = await _in_turns(make(self._reading))
                took_s += pass_s
                if state is None or state.round is current:
                    break
            assert reading is not None, "just made"
            self._reading, self._took_s, self._version = reading, took_s, version
            self.made_at = self._now()
            return reading

    def fresh_until(self, state: RunState | None = None) -> float:
        """Return until when the reading serves repeated calls."""
        share = self._share if _version(state) == self._version else SHARE_AT_EVENTS
        return self.made_at + fresh_s(self._took_s + self.giving_s, share, self._least_s)


class RunReadings(Generic[Reading]):
    """A shared reading of each run that one was asked for of late."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._of = now, dict[str, SharedReading[Reading]]()

    def of(self, state: RunState) -> SharedReading[Reading]:
        """Return that of a run, and forget old ones."""
        oldest = self._now() - KEPT_S
        kept = {k: v for k, v in self._of.items() if v.made_at >= oldest or v.lock.locked()}
        self._of = kept
        return kept.setdefault(state.key, SharedReading(self._now))


def _version(state: RunState | None) -> tuple[int, bool]:
    """Return how many events a run has had, and whether it has ended."""
    return (0, False) if state is None else (state.events_count, state.verdict is not None)


async def _in_turns(work: Generator[None, None, Reading]) -> tuple[Reading, float]:
    """Work, and let other tasks run in between; return what was made, and the time it took."""
    took_s = 0.0
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration as end:
            return end.value, took_s + time.thread_time() - began
        took_s += time.thread_time() - began
        await asyncio.sleep(0)
