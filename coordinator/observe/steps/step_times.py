"""Pure. How long the steps of a round's ranks took in the last minutes, in bounded memory.

Kept in columns: one an instant, a number for each rank. While a round is young they are close to
each other; once there are as many as are kept, every other one is given up, and the next are twice
as far apart, up to the longest interval. From then on the oldest goes when another comes.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from drumbeat.coordinator.core.model import Beat, Round
from drumbeat.coordinator.observe.steps.medians import lower_median, spread

# Of 80,000 ranks 60 columns take 19.2 MB, and as much again if ranks tell of their own work.
COLUMNS_MAX = 60
# The last 8 minutes, 4 at least once it has run so long.
INTERVAL_LEAST_S, INTERVAL_MAX_S = 1.0, 8.0
# Numbers of all columns together; of larger rounds there are fewer columns, but so many.
CELLS_MAX, COLUMNS_LEAST = COLUMNS_MAX * 80_000, 12


@dataclass(slots=True, eq=False)
class Column:
    """What was told from one instant on: of each rank the first, in seconds, NaN if unknown."""

    began_at: float
    steps: array[float]
    busy: array[float] | None = None
    # Once it is complete; the second if a reader has asked.
    medians: tuple[float, float] | None = None
    slowest: list[int] = field(default_factory=list)


class StepTimes:
    """Those of one round. Constant time for each worker of a beat, mostly for each beat."""

    def __init__(self, current: Round) -> None:
        self.round_id = current.round_id
        self.columns: list[Column] = []
        self._seats, self._size = current.seats, current.world_size
        self._most = min(COLUMNS_MAX, max(COLUMNS_LEAST, CELLS_MAX // max(1, self._size)))
        self._interval_s, self._next_at = INTERVAL_LEAST_S, -math.inf
        self._nothing = array("f", [math.nan])
        self._filled: set[str] = set()  # incarnations that are in the latest column

    def heard(
        self, incarnation: str, beat: Beat, busy: array[float] | None = None, *, now: float
    ) -> None:
        """Take in what a beat of this round says; ``busy``: what each rank worked for a step."""
        if now >= self._next_at:
            self._begin(now)
        if incarnation in self._filled:
            return
        seat = self._seats.get(incarnation)
        if seat is None:
            return
        column, first = self.columns[-1], seat.rank_first
        for worker in beat.workers:
            if worker.step_time_s is not None:
                column.steps[first + worker.local_rank] = worker.step_time_s
                self._filled.add(incarnation)
        if busy is not None:
            if column.busy is None:
                column.busy = self._nothing * self._size
            last = first + seat.agent.local_world_size
            column.busy[first:last] = busy[first:last]

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        assert len(self.columns) <= self._most, "more columns than are kept"

    def medians(self, column: Column) -> tuple[float, float]:
        """Return the lower medians of steps and of own work in a column, NaN if there are none."""
        if column.medians is not None:
            return column.medians
        ranks = spread(range(self._size))
        both = [
            lower_median((times[rank] for rank in ranks) if times else (), of_none=math.nan)
            for times in (column.steps, column.busy)
        ]
        medians = both[0], both[1]
        if column is not self.columns[-1]:
            column.medians = medians
        return medians

    def slowest(self, most: int, first: Iterable[int] = ()) -> list[int]:
        """Return the ranks to look at: those given first, then the slowest of late.

        Linear in ranks, once for each column: the latest that is complete tells, if it can.
        """
        chosen = dict.fromkeys(sorted(first)[:most])
        for column in self.columns[-2:]:
            if len(chosen) >= most:
                break
            if column is self.columns[-1] or len(column.slowest) < most:
                times = column.steps if column.busy is None else column.busy
                known = [rank for rank, time in enumerate(times) if time >= 0]
                column.slowest = heapq.nlargest(most, known, key=times.__getitem__)
            chosen |= dict.fromkeys(column.slowest)
        return sorted(list(chosen)[:most])

    def _begin(self, now: float) -> None:
        """Begin a column."""
        if len(self.columns) >= self._most:
            if self._interval_s < INTERVAL_MAX_S:
                self.columns, self._interval_s = self.columns[::2], 2 * self._interval_s
            else:
                del self.columns[0]
        self.columns.append(Column(now, self._nothing * self._size))
        self._next_at = now + self._interval_s
        self._filled.clear()
        for complete in self.columns[-2:-1]:  # now, so that no reader waits for those of all
            self.medians(complete)
