"""Pure. Where workers stand, as far as they say so, and who seems to hold the others up."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

# Of the name of an open timer or section, in UTF-8; enough to recognize it.
SCOPE_BYTES_MAX = 128
# Ranks named in one line; if more are behind, none in particular is.
BEHIND_SHOWN_MAX = 4
# For how long, and up to twice that, the longest time between two steps counts; the first words of
# a round that tell of other steps do not: there is much to be made ready in these.
LATELY_S, FIRST_MOVES = 300.0, 3
# Step times that are kept of each host: of each word that tells of other steps the longest.
STEP_TIMES_KEPT = 15


class WorkerProgress(Struct, frozen=True, kw_only=True):
    """Where one worker stands. Ages are seconds, as of one instant."""

    local_rank: int
    step: int | None = None  # of its latest heartbeat, if that named one
    step_time_s: float | None = None
    heartbeat_age_s: float | None = None  # None: there was none
    runtime_age_s: float | None = None  # None: it does not use the SDK
    scope: str = ""  # the innermost open section, else the latest open timer
    scope_age_s: float | None = None
    scopes_open: int = 0
    # Only where slow ranks are looked for: how many steps are timed, what they took together,
    # and whether that is the time of the worker's own work.
    steps_timed: int = 0
    steps_s: float = 0.0
    is_busy_time: bool = False
    is_stopped: bool = False  # its process, by a signal or a debugger
    # For how long its next heartbeat has been expected; None: none is, e.g. in a section.
    progress_age_s: float | None = None
    steps_total: int = 0  # how many there will be; 0: not told
    loss: float | None = None  # the latest told
    saved_step: int = 0  # of its latest checkpoint
    saved_age_s: float | None = None  # None: it has told none

    def aged(self, seconds: float) -> WorkerProgress:
        """Return the same, told ``seconds`` later."""
        ages = ("heartbeat_age_s", "runtime_age_s", "scope_age_s", "progress_age_s", "saved_age_s")
        known = {name: age for name in ages if (age := getattr(self, name)) is not None}
        return replace(self, **{name: age + seconds for name, age in known.items()})

    @property
    def steps(self) -> float:
        """How far it has come: infinitely far if it counts no steps, it is not behind for it."""
        if self.step is not None:
            return self.step
        return -math.inf if self.heartbeat_age_s is None else math.inf


class Standing(Struct, frozen=True, kw_only=True):
    """Where one worker of a round stood."""

    rank: int
    host: str
    progress: WorkerProgress

    def __str__(self) -> str:
        who, progress = f"rank {self.rank} on {self.host}", self.progress
        if progress.step is not None:
            return f"{who} at step {progress.step}"
        return f"{who} before its first heartbeat" if progress.steps < 0 else who


class Standings(Struct, frozen=True, kw_only=True):
    """Who was where when a round failed, by rank: the most telling, of ``count`` in all."""

    shown: tuple[Standing, ...] = ()
    count: int = 0


NOWHERE = Standings()


@dataclass(slots=True)
class Whereabouts:
    """Where the workers of one host stand in one round, by local rank.

    One that the latest message leaves out stays where it died: the report has to show that.
    """

    _round_id: int | None = None
    _latest: dict[int, tuple[WorkerProgress, float]] = field(default_factory=dict)
    _pids: tuple[int | None, tuple[int, ...]] = (None, ())  # by local rank, with their round
    _highest: int | None = None  # step of this round
    is_restarted: bool = False  # a step of this round was lower than one before it
    _step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES_KEPT))
    # The longest time between two steps, of late and before that, and since when that is "of late";
    # of this round, without its first steps. How many words told of other steps.
    _longest_s: tuple[float, float] = (0.0, 0.0)
    _longest_since: float = 0.0
    _moves: int = 0

    def take(self, round_id: int | None, workers: Iterable[WorkerProgress], *, now: float) -> None:
        """Take in what a message that arrived ``now`` says of the workers of a round."""
        if round_id != self._round_id:
            self._round_id, self._latest, self._highest = round_id, {}, None
            self.is_restarted, self._moves, self._longest_s = False, 0, (0.0, 0.0)
            self._step_times_s.clear()
        latest, step_s, longest_s = self._latest, 0.0, 0.0
        for worker in workers:
            before, step = latest.get(worker.local_rank), worker.step
            latest[worker.local_rank] = (worker, now)
            if step is None:
                continue
            if self._highest is None or step > self._highest:
                self._highest = step
            took_s = worker.step_time_s or 0.0
            if before is not None:
                if (step_before := before[0].step) == step:
                    continue  # it has made no step since
                waited_s = before[0].progress_age_s  # at least so long did the step before it take
                if waited_s is not None and waited_s > longest_s:
                    longest_s = waited_s
                if step_before is not None and step < step_before:
                    self.is_restarted = True
            step_s = max(step_s, took_s)
        if step_s:
            self._step_times_s.append(step_s)
            self._note_longest(max(step_s, longest_s), now)

    def highest_step(self, round_id: int | None) -> int | None:
        """Return the highest step of a worker in this round; ``None``: none was told."""
        return self._highest if round_id == self._round_id else None

    def step_times_s(self, round_id: int) -> Sequence[float]:
        """Return what steps took in the latest words that told of any, one of each."""
        return self._step_times_s if round_id == self._round_id else ()

    def longest_step_s(self, round_id: int) -> float:
        """Return the longest time between two steps of a worker lately; 0: not known."""
        return max(self._longest_s) if round_id == self._round_id else 0.0

    def take_pids(self, round_id: int | None, pids: tuple[int, ...]) -> None:
        """Take in which processes the workers of a round are, by local rank."""
        self._pids = round_id, pids

    def pids_in(self, round_id: int) -> tuple[int, ...]:
        """Return the processes of this round by local rank, 0 if unknown; none if none is known."""
        return self._pids[1] if self._pids[0] == round_id else ()

    def received(self, round_id: int) -> Mapping[int, tuple[WorkerProgress, float]]:
        """Return the same by local rank, each with the instant at which it was told."""
        return self._latest if round_id == self._round_id else {}

    def in_round(self, round_id: int, *, now: float) -> list[WorkerProgress]:
        """Return where they stand in this round, by local rank, with the ages of ``now``."""
        if round_id != self._round_id:
            return []
        known = sorted(self._latest.items())
        return [worker.aged(max(0.0, now - since)) for _, (worker, since) in known]

    def _note_longest(self, seconds: float, now: float) -> None:
        self._moves += 1
        if self._moves <= FIRST_MOVES:
            return
        latest, before = self._longest_s
        if now - self._longest_since > LATELY_S:
            self._longest_since, latest, before = now, 0.0, latest
        self._longest_s = max(latest, seconds), before


def most_telling(standings: Sequence[Standing], shown_max: int) -> Standings:
    """Keep so many of those found: the furthest behind, elsewhere than the others, silent."""
    scope = _common_scope(standings)

    def lag(standing: Standing) -> tuple[float, bool, float, int]:
        at = standing.progress
        return at.steps, at.scope == scope, -(at.heartbeat_age_s or 0.0), standing.rank

    shown = sorted(
        heapq.nsmallest(shown_max, standings, key=lag), key=lambda standing: standing.rank
    )
    return Standings(shown=tuple(shown), count=len(standings))


def furthest_behind(standings: Sequence[Standing]) -> str:
    """Name who is behind the others, e.g. "rank 3 on b at step 40"; empty if no rank is.

    Behind are those with the lowest step; if all are equally far, those that are not within
    the scope in which most of the others are. Of half or more nothing is said.
    """
    steps = [standing.progress.steps for standing in standings]
    counted = [step for step in steps if math.isfinite(step)] or steps
    least, where = min(steps, default=0.0), ""
    if least < max(counted, default=0.0):
        behind = [standing for standing in standings if standing.progress.steps == least]
    elif scope := _common_scope(standings):
        behind = [standing for standing in standings if standing.progress.scope != scope]
        where = f", not in {scope!r} as the others"
    else:
        return ""
    if not behind or len(behind) > BEHIND_SHOWN_MAX or 2 * len(behind) >= len(standings) > 2:
        return ""
    return ", ".join(map(str, behind)) + where


def _common_scope(standings: Sequence[Standing]) -> str:
    """Return the scope that more than half of the workers are in; empty if there is none."""
    scopes = Counter(standing.progress.scope for standing in standings)
    scope, count = scopes.most_common(1)[0] if scopes else ("", 0)
    return scope if 2 * count > len(standings) else ""
