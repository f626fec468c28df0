"""Pure. What agents say, as marks of the present stretch of a run: all that the account needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.goodput.stretches import (
    AWAY_MAX,
    MEASURED,
    Marks,
    ProgressNoted,
    Stretch,
    StretchEnd,
)
from drumbeat.coordinator.observe.steps.progress import Progress
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState
from drumbeat.text.durations import SECOND, nanoseconds

# How much of what was seen of a round a coordinator that crashes loses at most.
NOTE_INTERVAL_S = 60.0
# Steps after which ranks that have told no heartbeat are waited for no more: none could train
# so far without them.
STEPS_ALONE_MAX = 2

_NOT_YET = (GroupState.IDLE, GroupState.STARTING)

Seated = tuple[int | None, Mapping[str, int]]  # the round that runs, and workers of participants


class Meter:
    """Sees each beat, in constant time. ``note_at``: when what was seen is to be journaled.

    Heartbeats count by their own ages, so it is no matter how often agents beat.
    """

    def __init__(self) -> None:
        self.note_at: float | None = None
        self.number = -1  # of the stretch
        self.gone: dict[str, int] = {}  # members lost in it, and since when they were not heard
        self._round_id: int | None = None
        self._start = 0
        self._resumed_from = 0  # the latest instant of which an earlier life has told
        self._reached: int | None = None
        # Members that may have workers of the round before; of the round, those whose workers do
        # not all run, that have told no heartbeat, and those of whose workers some have told none:
        # a bit for each of these, by its local rank.
        self._stopping: set[str] = set()
        self._unstarted: set[str] = set()
        self._unheard: set[str] = set()
        self._unbegun: dict[str, int] = {}
        self._is_changed = False
        self.marks = Marks()  # what was seen of the stretch
        self.said = Progress()

    def enter(
        self, ledger: Ledger, seated: Seated, alive: Iterable[str], *, is_again: bool
    ) -> None:
        """Follow the account into another stretch. Linear in agents.

        ``alive`` are the members that may have workers. ``is_again``: the round goes on after an
        interruption.
        """
        round_id, sizes = seated
        self.number, self.gone = ledger.number, {}
        self._round_id, self._start, self._reached = round_id, ledger.until, ledger.reached
        self._unstarted, self._unheard, self._unbegun = set(), set(), {}
        if ledger.stretch is not Stretch.HUNG and not ledger.goes_on:
            self.said.begin()
        is_round = ledger.stretch is Stretch.ROUND
        if ledger.stretch is Stretch.GATHERING:
            self._stopping = set(alive)
        elif is_round and not is_again:
            self._stopping &= sizes.keys()
            self._expect(sizes)
        else:
            self._stopping = set()
        at = self._start if is_round and is_again else None
        self.marks = Marks(is_stopping=bool(self._stopping), running=at, began=at)
        self._is_changed, self.note_at = ledger.stretch in MEASURED, None

    def resume(self, ledger: Ledger, seated: Seated, members: Iterable[str], *, now: float) -> None:
        """Go on in a stretch that an earlier life of the coordinator has seen. Linear.

        Those ``seated`` are participants that are left, ``members`` are all agents.
        """
        self._round_id, sizes = seated
        self.number, self._resumed_from = ledger.number, ledger.seen
        self._start, self._reached = ledger.until, ledger.reached
        marks = ledger.marks or Marks(is_stopping=ledger.stretch is Stretch.GATHERING)
        self.marks = marks
        if marks.is_stopping and marks.stopped is None:
            is_round = ledger.stretch is Stretch.ROUND
            self._stopping = set(sizes if is_round else members)
        if ledger.stretch is Stretch.ROUND:
            if marks.began is None:
                self._expect(sizes)
            if marks.running is not None:
                self._unstarted = set()
            away = (ledger.seen, nanoseconds(now))
            self.marks = replace(marks, away=(*marks.away, away)[-AWAY_MAX:])
        self._review(now)
        self._is_changed = ledger.stretch in MEASURED
        self.note_at = now if self._is_changed else None

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take a beat of a member in."""
        if incarnation in self._stopping and (
            not beat.workers_alive
            or (self._round_id is not None and beat.round_id == self._round_id)
        ):
            self._stopping.discard(incarnation)
            self._review(now)
        if beat.round_id != self._round_id or self._round_id is None:
            return
        if incarnation in self._unstarted and beat.state not in _NOT_YET:
            self._unstarted.discard(incarnation)
            self._review(now)
        if beat.workers:
            self._take(incarnation, beat.workers, sent_at, now)

    def lost(self, incarnation: str, *, silent_since: float, now: float) -> None:
        """Take in that a member is given up: nothing of it is waited for.

        One that this life of the coordinator never heard may have been there until the last ended.
        """
        self.gone[incarnation] = nanoseconds(silent_since) or self._resumed_from
        for waited_for in (self._stopping, self._unstarted, self._unheard):
            waited_for.discard(incarnation)
        self._unbegun.pop(incarnation, None)
        self._review(now)

    def is_due(self, now: float) -> bool:
        """Return whether what was seen is to be journaled, though nothing else may be."""
        return self._is_changed or (self.note_at is not None and now >= self.note_at)

    def note(self, *, now: float, end: StretchEnd | None = None) -> ProgressNoted:
        """Return what to journal of the stretch."""
        self._is_changed = False
        self.note_at = None if self._round_id is None else now + NOTE_INTERVAL_S
        return ProgressNoted(
            marks=self.marks,
            at_s=now,
            end=end,
            steps_total=self.said.steps_total,
            checkpoint=self.said.checkpoint,
        )

    def _expect(self, sizes: Mapping[str, int]) -> None:
        self._unstarted, self._unheard = set(sizes), set(sizes)
        self._unbegun = {incarnation: (1 << size) - 1 for incarnation, size in sizes.items()}

    def _see(self, **marks: object) -> None:
        self.marks = replace(self.marks, **marks)

    def _see_border(self, **marks: object) -> None:
        """Take in what is to be journaled soon."""
        self._see(**marks)
        self._is_changed = True

    def _take(
        self, incarnation: str, workers: Sequence[WorkerProgress], sent_at: float, now: float
    ) -> None:
        """Take in the heartbeats of this stretch."""
        self.said.hear(workers, sent_at)
        limit_s = sent_at - self._start / 1e9
        fresh = [
            worker
            for worker in workers
            if worker.heartbeat_age_s is not None and worker.heartbeat_age_s <= limit_s
        ]
        if not fresh:
            return
        age_s = min(worker.heartbeat_age_s or 0.0 for worker in fresh)
        latest = max(nanoseconds(sent_at - age_s), self._start)
        if self.marks.progress is None or latest > self.marks.progress:
            self._see(progress=latest)
        steps = [worker.step for worker in fresh if worker.step is not None]
        if steps:
            self._take_step(max(steps), min(steps), latest)
            self.said.pace.take(max(steps), latest / SECOND)
        if self.marks.began is None:
            self._take_first(incarnation, fresh, latest, now)

    def _take_step(self, step: int, least: int, at: int) -> None:
        marks = self.marks
        if marks.step_first is None:
            self._see(step_first=least)
        if marks.step is None or step > marks.step:
            self._see(step=step)
        if marks.caught_up is None and (self._reached is None or step > self._reached):
            self._see_border(caught_up=at)

    def _take_first(
        self, incarnation: str, fresh: Sequence[WorkerProgress], at: int, now: float
    ) -> None:
        """Take in first heartbeats of ranks."""
        is_heard = incarnation in self._unheard
        self._unheard.discard(incarnation)
        if silent := self._unbegun.get(incarnation, 0):
            for worker in fresh:
                if worker.local_rank < silent.bit_length():
                    silent &= ~(1 << worker.local_rank)
            self._unbegun[incarnation] = silent
        has_begun = silent == 0 and self._unbegun.pop(incarnation, None) is not None
        if is_heard or has_begun:
            self._see(heard=max(at, self.marks.heard or at))
        first, step = self.marks.step_first, self.marks.step
        if first is not None and step is not None and step - first >= STEPS_ALONE_MAX:
            self._see_border(began=at)
        self._review(now)

    def _review(self, now: float) -> None:
        """Note the borders for which no agent is waited any more."""
        marks = self.marks
        if marks.is_stopping and marks.stopped is None and not self._stopping:
            self._see_border(stopped=nanoseconds(now))
        if self._round_id is None:
            return
        if marks.running is None and not self._unstarted:
            self._see_border(running=nanoseconds(now))
        if marks.began is None and marks.heard is not None and not self._unbegun:
            self._see_border(began=marks.heard)
