"""Pure. Which ranks take longer for their steps than their peers, and keep doing so.

A rank's peers are the ranks of its role in the round. Of each beat the mean of the steps since the
beat before is compared with the median of the peers, so that every step counts, however many there
are between two beats. Nothing is decided by what is found: it is told.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import ClassVar

from msgspec import Struct

from drumbeat.coordinator.core.model import Round, Seat
from drumbeat.coordinator.observe.steps.medians import spread
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.text.durations import format_duration

# How long a median serves before it is taken anew.
MEDIAN_INTERVAL_S = 1.0
# Beats in a row that have to say the same, beside the steps: a single pause is in one of them.
BEATS_LEAST = 3
# Two ranks always differ by a little, in steps of microseconds by a large factor.
DIFFERENCE_LEAST_S = 0.001
# Stragglers of a run that are named at once; more are counted.
NAMED_MAX = 16
# Events of a run: so many at once, then one in that time. What is found meanwhile is told as it is
# by then, and a rank that comes and goes in between is not.
EVENTS_BURST, EVENT_INTERVAL_S = 16, 30.0


# As the history calls the records.
FOUND, OVER = "straggler found", "straggler over"


class Straggler(Struct, frozen=True, kw_only=True):
    """A rank of a round that takes longer for its steps, and what it took last."""

    rank: int
    name: str  # of its agent
    host: str
    step_time_s: float
    median_s: float  # of its peers then
    is_busy_time: bool = False  # both are times of a rank's own work

    def __str__(self) -> str:
        does = "works" if self.is_busy_time else "takes"
        took, median = format_duration(self.step_time_s), format_duration(self.median_s)
        who = f"rank {self.rank} on {self.name}"
        return f"{who} {does} {took} for a step, the median of its peers is {median}"


class StragglerFound(Struct, frozen=True, kw_only=True):
    """A rank of the round that runs was found to be one."""

    decision: ClassVar[str] = FOUND
    straggler: Straggler
    at_s: float = 0.0


class StragglerOver(Struct, frozen=True, kw_only=True):
    """It is one no more; ``straggler`` has its latest times."""

    decision: ClassVar[str] = OVER
    straggler: Straggler
    at_s: float = 0.0


StragglerRecord = StragglerFound | StragglerOver


@dataclass(slots=True)
class _Streak:
    """How many steps and beats in a row say that a rank became a straggler, or is none any more."""

    steps: int = 0
    beats: int = 0


class Stragglers:
    """Those of one round. Constant time for each worker of a beat.

    ``by_rank`` are all there are, by rank; ``known`` in an earlier life of the coordinator are
    among them until enough steps say otherwise.
    """

    def __init__(
        self, current: Round, *, factor: float, steps: int, known: Mapping[int, Straggler]
    ) -> None:
        self.by_rank: dict[int, Straggler] = dict(known)
        self._seats, self._factor, self._steps = current.seats, factor, steps
        self._latest: dict[str, dict[int, WorkerProgress]] = {}  # by incarnation and local rank
        self._streaks: dict[int, _Streak] = {}
        self._ended: dict[int, Straggler] = {}  # of late, with their latest times
        # Of each rank the mean of its latest steps; by whether they are times of its own work.
        self._means: dict[bool, array[float]] = {}
        self._size = current.world_size
        self._peers = _samples(current.seats.values())
        self._medians: dict[tuple[str, bool], tuple[float, float | None]] = {}
        self._due_at = math.inf
        self._room, self._room_at = float(EVENTS_BURST), -math.inf

    def heard(self, incarnation: str, workers: Iterable[WorkerProgress], *, now: float) -> None:
        """Take in what a beat of this round says of an agent's workers."""
        if (seat := self._seats.get(incarnation)) is None:
            return
        latest, first = self._latest.setdefault(incarnation, {}), seat.rank_first
        stragglers, streaks = self.by_rank, self._streaks
        limits: dict[bool, float] = {}
        for worker in workers:
            if not (timed := worker.steps_timed):
                continue
            local_rank, is_busy = worker.local_rank, worker.is_busy_time
            before = latest.get(local_rank)
            latest[local_rank] = worker
            if before is None or before.is_busy_time is not is_busy:
                continue
            if (steps := timed - before.steps_timed) <= 0:
                continue
            rank, mean = first + local_rank, max(0.0, worker.steps_s - before.steps_s) / steps
            if (means := self._means.get(is_busy)) is None:
                means = self._means[is_busy] = array("f", [math.nan]) * self._size
            means[rank] = mean
            if (limit := limits.get(is_busy)) is None:
                limit = limits[is_busy] = self._limit(seat.agent.role, is_busy, now)
            # Most are as all others, and cost no more than this. Without peers nothing is known.
            if mean > limit or ((rank in stragglers or rank in streaks) and limit < math.inf):
                latest_of = self._straggler(seat, rank, mean, now, is_busy=is_busy)
                self._judge(latest_of, steps, is_slow=mean > limit, now=now)

    def lost(self, incarnation: str) -> None:
        """Forget the ranks of an agent that is given up."""
        if (seat := self._seats.get(incarnation)) is None:
            return
        self._latest.pop(incarnation, None)
        nothing = array("f", [math.nan])
        for rank in range(seat.rank_first, seat.rank_first + seat.agent.local_world_size):
            if self.by_rank.pop(rank, None) is not None:
                self._due_at = -math.inf
            self._streaks.pop(rank, None)
            for means in self._means.values():
                means[rank : rank + 1] = nothing

    def busy_times(self) -> array[float] | None:
        """Return what each rank worked for a step of late, NaN if unknown; none if no rank says."""
        return self._means.get(True)

    def is_due(self, now: float) -> bool:
        """Return whether there may be something to tell."""
        return now >= self._due_at

    def news(self, known: Mapping[int, Straggler], *, now: float) -> list[StragglerRecord]:
        """Return what to journal after ``known``, no more than the pace of events allows."""
        since, self._room_at = max(0.0, now - self._room_at), now
        self._room = min(float(EVENTS_BURST), self._room + since / EVENT_INTERVAL_S)
        over = [straggler for rank, straggler in sorted(known.items()) if rank not in self.by_rank]
        records: list[StragglerRecord] = [
            StragglerOver(straggler=self._ended.get(straggler.rank, straggler), at_s=now)
            for straggler in over[: int(self._room)]
        ]
        self._ended = {
            straggler.rank: self._ended.get(straggler.rank, straggler)
            for straggler in over[len(records) :]
        }
        room = min(int(self._room) - len(records), NAMED_MAX - len(known) + len(records))
        new = (straggler for rank, straggler in self.by_rank.items() if rank not in known)
        slowest = nsmallest(room, new, key=_slowness) if room > 0 else []
        records += [StragglerFound(straggler=straggler, at_s=now) for straggler in slowest]
        self._room -= len(records)
        is_full = len(known) - len(over) + len(slowest) >= NAMED_MAX
        left = len(over) > len(records) - len(slowest)
        left |= not is_full and len(self.by_rank) > len(known) - len(over) + len(slowest)
        wait_s = max(0.0, (1.0 - self._room) * EVENT_INTERVAL_S)
        self._due_at = now + wait_s if left else math.inf
        return records

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in stragglers; for tests."""
        assert all(0 <= rank < self._size for rank in self.by_rank), "a rank of another round"
        assert self._room >= 0, "more events than the pace allows"
        assert all(streak.beats for streak in self._streaks.values()), "a streak of nothing"

    def _limit(self, role: str, is_busy: bool, now: float) -> float:
        """Return what a step of a rank of this role takes at most that is not slow."""
        if (median := self._median(role, is_busy, now)) is None:
            return math.inf
        return max(self._factor * median, median + DIFFERENCE_LEAST_S)

    def _straggler(
        self, seat: Seat, rank: int, mean: float, now: float, *, is_busy: bool
    ) -> Straggler:
        """Return a rank with what it took last, beside its peers."""
        return Straggler(
            rank=rank,
            name=seat.agent.name,
            host=seat.agent.host,
            step_time_s=mean,
            median_s=self._median(seat.agent.role, is_busy, now) or mean,
            is_busy_time=is_busy,
        )

    def _judge(self, latest: Straggler, steps: int, *, is_slow: bool, now: float) -> None:
        """Take in that the latest steps of a rank were slow, or not, where that may be news."""
        rank = latest.rank
        was_found = is_found = rank in self.by_rank
        if is_slow is was_found:
            self._streaks.pop(rank, None)
        else:
            streak = self._streaks.setdefault(rank, _Streak())
            streak.steps, streak.beats = streak.steps + steps, streak.beats + 1
            if streak.steps >= self._steps and streak.beats >= BEATS_LEAST:
                del self._streaks[rank]
                is_found = is_slow
                self._due_at = min(self._due_at, now)
        if is_found:
            self.by_rank[rank] = latest
        elif was_found:
            del self.by_rank[rank]
            self._ended[rank] = latest

    def _median(self, role: str, is_busy: bool, now: float) -> float | None:
        """Return the lower median of what is known of a role's ranks; ``None`` of fewer than two.

        Of two ranks it is the faster: the other has no more than this one to be compared with.
        """
        at, median = self._medians.get((role, is_busy), (-math.inf, None))
        if now - at < MEDIAN_INTERVAL_S and median is not None:
            return median
        means = self._means[is_busy]
        known = sorted(mean for rank in self._peers[role] if (mean := means[rank]) >= 0)
        median = known[(len(known) - 1) // 2] if len(known) > 1 else None
        self._medians[role, is_busy] = now, median
        return median


def _samples(seats: Iterable[Seat]) -> dict[str, Sequence[int]]:
    """Return of each role the ranks whose median counts. Linear in workers."""
    ranks: dict[str, list[int]] = {}
    seats = list(seats)
    if len({seat.agent.role for seat in seats}) == 1:
        size = seats[-1].rank_first + seats[-1].agent.local_world_size
        return {seats[0].agent.role: spread(range(size))}
    for seat in seats:
        first, size = seat.rank_first, seat.agent.local_world_size
        ranks.setdefault(seat.agent.role, []).extend(range(first, first + size))
    return {role: spread(of_role) for role, of_role in ranks.items()}


def _slowness(straggler: Straggler) -> tuple[float, int]:
    took_s = straggler.step_time_s
    return straggler.median_s / took_s if took_s else 1.0, straggler.rank
