"""Shell. Overviews of runs, made while the others have their turns, and shared by readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.core.progress.overview import Overview
from coordinator.core.run.state import RunState
from coordinator.wire.run_status import AnyRun, glimpses, overview_message
from coordinator.wire.step_times import stragglers_of
from drumbeat.mapping import duration
from drumbeat.v1 import query_pb2

# Workers passed between two turns of the others: some 3 ms.
ROWS_PER_TURN = 2_000
# How often a pass is made from the beginning, because a round began on the way.
PASSES_MAX = 3
# What readers that ask again and again may take of the event loop's time together, of one run, and
# how long the answer of one serves all of them at least.
SHARE, FRESH_LEAST_S = 0.01, 1.0
# The same just after an event.
SHARE_AT_EVENTS = 0.05
# What it takes to give one reader what is there: receiving, encoding, encrypting.
ANSWER_S = 0.001
# What no one has asked for in this time is forgotten.
KEPT_S = 60.0


@dataclass(slots=True)
class _Kept:
    """The latest answer for one run. Who makes the next one holds the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: query_pb2.GetOverviewResponse | None = None
    written_at: float = 0.0
    took_s: float = 0.0
    events_count: int = 0
    served: int = 0  # repeated readers that were given it
    served_before: int = 0  # that were given the one before

    def serves(self, state: RunState, *, asked_at: float, is_repeated: bool) -> bool:
        """Return whether a reader that asked then may have this answer."""
        if self.answer is None or not is_repeated:
            return self.answer is not None and self.written_at >= asked_at
        # Of a run that has ended a reader asks once more, and never again.
        is_told = state.verdict is None or self.answer.run.phase == query_pb2.RUN_PHASE_ENDED
        return is_told and asked_at < self.fresh_until(state)

    def fresh_until(self, state: RunState) -> float:
        """Return until when repeated readers are given this answer."""
        share = SHARE if state.events_count == self.events_count else SHARE_AT_EVENTS
        takes_s = self.took_s + ANSWER_S * max(self.served, self.served_before)
        return self.written_at + max(FRESH_LEAST_S, takes_s / share)


class Overviews:
    """Of all runs. ``now`` is the coordinator's clock."""

    def __init__(self, now: Callable[[], float], *, rows_per_turn: int = ROWS_PER_TURN) -> None:
        self._now, self._rows_per_turn = now, rows_per_turn
        self._kept: dict[str, _Kept] = {}

    async def get(
        self, state: RunState, run: AnyRun | None, *, is_repeated: bool
    ) -> query_pb2.GetOverviewResponse:
        """Return an overview that was written after this call, or lately for a repeated one."""
        asked_at = self._now()
        self._forget(asked_at)
        kept = self._kept.setdefault(state.key, _Kept())
        async with kept.lock:
            if not kept.serves(state, asked_at=asked_at, is_repeated=is_repeated):
                overview, kept.took_s = await self._passed(state, run)
                kept.written_at, kept.events_count = self._now(), state.events_count
                kept.answer = overview_message(state, run, overview, now=kept.written_at)
                stragglers, kept.answer.stragglers_count = stragglers_of(state, run)
                kept.answer.stragglers.extend(stragglers)
                kept.served_before, kept.served = kept.served, 0
            kept.served += is_repeated
        assert kept.answer is not None, "just made, or served from"
        answer = query_pb2.GetOverviewResponse()
        answer.CopyFrom(kept.answer)
        answer.fresh_for.CopyFrom(duration(max(0.0, kept.fresh_until(state) - self._now())))
        return answer

    async def _passed(self, state: RunState, run: AnyRun | None) -> tuple[Overview, float]:
        """Return an overview of one round, and what it took of the event loop's time."""
        overview, took_s = Overview(), 0.0
        for _ in range(PASSES_MAX):
            current, overview = state.round, Overview()
            began, due = time.thread_time(), self._rows_per_turn
            for agent in glimpses(state, run):
                overview.take(agent)
                if overview.rows_count >= due:
                    due = overview.rows_count + self._rows_per_turn
                    took_s += time.thread_time() - began
                    await asyncio.sleep(0)
                    began = time.thread_time()
            took_s += time.thread_time() - began
            if state.round is current:
                break
        return overview, took_s

    def _forget(self, now: float) -> None:
        old = [
            key
            for key, kept in self._kept.items()
            if now - kept.written_at > KEPT_S and not kept.lock.locked()
        ]
        for key in old:
            del self._kept[key]
