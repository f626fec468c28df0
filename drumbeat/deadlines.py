"""Pure. A set of named instants that tells which is next and which are due."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Named deadlines; setting one again replaces it.

    Postponing costs O(1) and adds nothing to the heap, because a lease is
    postponed at every heartbeat: an entry that comes up early is put back.
    Entries that an earlier one replaced are swept out when they are most of the
    heap, so its size stays within a constant factor of the deadlines.
    """

    _SWEEP_AT_MIN = 64

    def __init__(self) -> None:
        self._instants: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._queued: dict[K, float] = {}
        self._counter = 0  # ties are broken by age, so that keys are never compared

    def __len__(self) -> int:
        return len(self._instants)

    def __contains__(self, key: K) -> bool:
        return key in self._instants

    def get(self, key: K) -> float | None:
        """Return the instant of ``key``, ``None`` if it has none."""
        return self._instants.get(key)

    def set(self, key: K, instant: float) -> None:
        """Give ``key`` this instant."""
        self._instants[key] = instant
        queued = self._queued.get(key)
        if queued is None or instant < queued:
            self._push(key, instant)

    def clear(self, key: K) -> None:
        """Forget ``key``, if it is there."""
        self._instants.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest instant, ``None`` if there is none."""
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys whose instant has come, earliest first."""
        due: list[K] = []
        while (instant := self.next()) is not None and instant <= now:
            key = heapq.heappop(self._heap)[2]
            del self._queued[key]
            del self._instants[key]
            due.append(key)
        return due

    def _push(self, key: K, instant: float) -> None:
        self._counter += 1
        self._queued[key] = instant
        heapq.heappush(self._heap, (instant, self._counter, key))
        if len(self._heap) > max(self._SWEEP_AT_MIN, 2 * len(self._instants)):
            self._sweep()

    def _sweep(self) -> None:
        """Keep one entry of each key. Linear, but at most once per as many pushes."""
        entries = {
            entry[2]: entry
            for entry in self._heap
            if entry[2] in self._instants and self._queued[entry[2]] == entry[0]
        }
        self._heap = list(entries.values())
        heapq.heapify(self._heap)
        self._queued = {key: entry[0] for key, entry in entries.items()}

    def _settle_top(self) -> None:
        """Make the top of the heap an entry that is still true."""
        while self._heap:
            queued, _, key = self._heap[0]
            instant = self._instants.get(key)
            if instant == queued and self._queued.get(key) == queued:
                return
            heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue  # replaced by an earlier entry
            del self._queued[key]
            if instant is not None:
                self._push(key, instant)
