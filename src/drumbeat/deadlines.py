"""Pure. A set of named instants that tells which is next and which are due."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Named deadlines; setting one again replaces it.

    Postponing costs O(1) and adds nothing to the heap, because a lease is
    postponed at every heartbeat: an entry that comes up early is put back.
    """

    def __init__(self) -> None:
        self._instants: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._counter = count()  # ties are broken by age, so that keys are never compared

    def set(self, key: K, instant: float) -> None:
        """Give ``key`` this instant."""
        before = self._instants.get(key)
        self._instants[key] = instant
        if before is not None and instant >= before:
            return
        heapq.heappush(self._heap, (instant, next(self._counter), key))
        if len(self._heap) > max(64, 2 * len(self._instants)):
            # Most of it is out of date. Linear, but at most once per as many pushes.
            self._heap = [(at, next(self._counter), key) for key, at in self._instants.items()]
            heapq.heapify(self._heap)

    def clear(self, key: K) -> None:
        """Forget ``key``, if it is there."""
        self._instants.pop(key, None)

    def of(self, key: K) -> float | None:
        """Return the instant of ``key``, ``None`` if it has none."""
        return self._instants.get(key)

    def next(self) -> float | None:
        """Return the earliest instant, ``None`` if there is none."""
        while self._heap:
            queued, _, key = self._heap[0]
            if (instant := self._instants.get(key)) == queued:
                return queued
            if instant is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (instant, next(self._counter), key))
        return None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys whose instant has come, earliest first."""
        due: list[K] = []
        while (instant := self.next()) is not None and instant <= now:
            key = heapq.heappop(self._heap)[2]
            del self._instants[key]
            due.append(key)
        return due
