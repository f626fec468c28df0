"""The account of a run, painted from all that was heard and decided in a world.

It keeps nothing while the world lives. Afterwards it finds each border in the whole log, and
asks of each time between two instants that matter what it was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from drumbeat.coordinator.core.inprocess.records import IterationInterrupted
from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnd, RoundEnded
from drumbeat.coordinator.observe.goodput.stretches import FAILURES, Cause, Part, Stretch
from drumbeat.model import GroupState
from tests.simulation.goodput.log import Decision, Heard, Life, Log, Lost, ns

NEVER = math.inf
# Ranks that told nothing are waited for no more after so many steps of others.
STEPS_ALONE = 2
LOST_FOR_NOTHING = (Part.TRAINING, Part.AWAY)


class Piece(NamedTuple):
    """A time that was one part."""

    start: int
    end: int
    part: Part
    cause: Cause | None
    host: str
    round_id: int | None
    iteration: int | None


class Account(NamedTuple):
    """All of it. Hosts' time is that of all hosts together."""

    pieces: list[Piece]
    hosts: dict[Part, int]
    failures: int
    restarts: dict[Cause, int]


class BeatWord(NamedTuple):
    """What a beat says of workers of a round, by instants."""

    place: int  # in the log
    name: str
    ranks: frozenset[int]  # of workers that have told a heartbeat of it
    latest: int
    steps: list[int]


@dataclass(slots=True, kw_only=True)
class Chapter:
    """What one core knew of a span, as far as that was not forgotten."""

    life: Life
    is_first: bool
    entries: list[Heard | Lost]
    is_kept: bool  # any of it is durable, or it is the core that knows now

    def lost_at(self, name: str) -> float:
        """Return when it gave an agent up, by its place in the log."""
        lost = (e.index for e in self.entries if isinstance(e, Lost) and e.name == name)
        return next(lost, NEVER)


@dataclass(kw_only=True)
class Span:
    """A time between two decisions, of which it is to be found out what it was."""

    log: Log
    kind: Stretch
    decisions: list[Decision]
    before: Span | None
    closing: Decision | None = None
    now: tuple[Life | None, int] = (None, 0)  # who knows more than is durable, and when it is
    cause: Cause = Cause.START
    host: str = ""

    @property
    def first(self) -> Decision:
        """What it began with."""
        return self.decisions[0]

    @property
    def start(self) -> int:
        """When it began."""
        return self.first.at

    @property
    def end(self) -> int:
        """When it ended."""
        return self.now[1] if self.closing is None else self.closing.at

    @property
    def is_again(self) -> bool:
        """Whether a round goes on after an interruption."""
        return self.before is not None and self.before.kind is Stretch.INTERRUPTED

    @cached_property
    def chapters(self) -> list[Chapter]:
        """What each core knew, in order."""
        last = NEVER if self.closing is None else self.closing.index
        knows = self.now[0] if self.closing is None else self.closing.taken.life
        found: list[Chapter] = []
        for life in self.log.lives:
            is_first = life is self.first.taken.life
            if not is_first and not self.first.index < life.index < last:
                continue
            until = last
            if life is not knows:
                notes = [at for at in life.notes if self.first.index < at < last]
                until = max(notes, default=0)
            entries = [e for e in life.entries if self.first.index < e.index < until]
            is_kept = until > 0
            found.append(Chapter(life=life, is_first=is_first, entries=entries, is_kept=is_kept))
        return found

    # Who is waited for.

    @cached_property
    def stopping(self) -> tuple[bool, int | None, frozenset[str]]:
        """Whether workers of before were alive, until when, and whose still are as it ends."""
        is_stopping, stopped, waiting = False, None, frozenset[str]()
        is_noted = False
        for chapter in self.chapters:
            if chapter.is_first:
                waiting = self.waited_for(chapter.life)
                is_stopping = bool(waiting)
            else:
                if not is_noted:
                    is_stopping = self.kind is Stretch.GATHERING
                waiting = frozenset()
                if is_stopping and stopped is None:
                    waiting = chapter.life.members
                    if self.kind is Stretch.ROUND:
                        waiting &= self.first.seats.keys()
                    if not waiting:
                        stopped = ns(chapter.life.at)
            for entry in chapter.entries:
                if entry.name in waiting and self._has_stopped(entry):
                    waiting -= {entry.name}
                    if not waiting:
                        stopped = ns(entry.at)
            is_noted = is_noted or chapter.is_kept
        return is_stopping, stopped, waiting

    def _has_stopped(self, entry: Heard | Lost) -> bool:
        if isinstance(entry, Lost) or not entry.beat.workers_alive:
            return True
        return self.kind is Stretch.ROUND and entry.beat.round_id == self.first.place[0]

    def waited_for(self, life: Life) -> frozenset[str]:
        """Return whose workers of before may be alive as far as the first core knew."""
        if self.kind is Stretch.GATHERING:
            alive = set(self.first.members)
            for entry in life.entries:
                if isinstance(entry, Heard) and entry.index < self.first.index:
                    alive.discard(entry.name)
                    if entry.beat.workers_alive and entry.name in self.first.members:
                        alive.add(entry.name)
            return frozenset(alive)
        if self.kind is Stretch.ROUND and self.before and self.before.kind is Stretch.GATHERING:
            return self.before.stopping[2] & self.first.seats.keys()
        return frozenset()

    def _expected(self, chapter: Chapter) -> dict[str, int]:
        """Return who is to start and tell a heartbeat in a chapter, with how many workers."""
        seats = self.first.seats
        if chapter.is_first:
            return seats
        return {name: size for name, size in seats.items() if name in chapter.life.members}

    # What workers told.

    @cached_property
    def words(self) -> list[tuple[Chapter, list[BeatWord]]]:
        """What beats said of the round from here on, by chapters."""
        round_id = self.first.place[0]
        return [
            (
                chapter,
                [
                    told
                    for entry in chapter.entries
                    if isinstance(entry, Heard) and entry.beat.round_id == round_id
                    if (told := self._read(entry)).ranks
                ],
            )
            for chapter in self.chapters
        ]

    def _read(self, entry: Heard) -> BeatWord:
        workers = [
            (ns(entry.sent_at - worker.heartbeat_age_s), worker)
            for worker in entry.beat.workers
            if worker.heartbeat_age_s is not None
        ]
        fresh = [(at, worker) for at, worker in workers if at >= self.start]
        latest = max((at for at, _ in fresh), default=0)
        steps = [worker.step for _, worker in fresh if worker.step is not None]
        ranks = frozenset(worker.local_rank for _, worker in fresh)
        return BeatWord(entry.index, entry.name, ranks, latest, steps)

    @property
    def all_told(self) -> list[BeatWord]:
        """The same, all of it."""
        return [told for _, of_chapter in self.words for told in of_chapter]

    @property
    def progress(self) -> int | None:
        """When the latest heartbeat was."""
        return max((told.latest for told in self.all_told), default=None)

    @property
    def step_first(self) -> int | None:
        """The first step that was told."""
        return next((min(told.steps) for told in self.all_told if told.steps), None)

    @property
    def step(self) -> int | None:
        """The highest step."""
        return max((step for told in self.all_told for step in told.steps), default=None)

    @property
    def reached(self) -> int | None:
        """The highest step before it."""
        span, steps = self.before, []
        while span is not None:
            if span.kind is Stretch.ROUND and span.step is not None:
                steps.append(span.step)
            span = span.before
        return max(steps, default=None)

    @property
    def caught_up(self) -> int | None:
        """When a step came that was not done before."""
        least = -1 if self.reached is None else self.reached
        return next((t.latest for t in self.all_told if t.steps and max(t.steps) > least), None)

    @cached_property
    def running(self) -> int | None:
        """When the workers of all hosts ran."""
        if self.is_again and self._is_known_again:
            return self.start
        for chapter in self.chapters:
            waiting = set(self._expected(chapter))
            for entry in chapter.entries:
                if isinstance(entry, Lost) or self._runs(entry):
                    waiting.discard(entry.name)
                    if not waiting:
                        return ns(entry.at)
        return None

    def _runs(self, entry: Heard) -> bool:
        is_here = entry.beat.round_id == self.first.place[0]
        return is_here and entry.beat.state not in (GroupState.IDLE, GroupState.STARTING)

    @property
    def _is_known_again(self) -> bool:
        """Whether it is still known that this round had begun before: else all is seen anew."""
        return self.chapters[0].is_kept or len(self.chapters) == 1

    @cached_property
    def beginnings(self) -> tuple[list[tuple[int, int]], int | None]:
        """When hosts told their first heartbeats, by place in the log; when all had."""
        firsts: list[tuple[int, int]] = []
        if self.is_again and self._is_known_again:
            return firsts, self.start
        least, most = None, -1
        for chapter, told in self.words:
            places: list[float] = []
            for name, size in self._expected(chapter).items():
                lost_at = chapter.lost_at(name)
                mine = [each for each in told if each.name == name and each.place < lost_at]
                ranks = accumulate((each.ranks for each in mine), lambda a, b: a | b)
                whole = [each for each, of in zip(mine, ranks, strict=True) if len(of) == size]
                firsts += [(each.place, each.latest) for each in (*mine[:1], *whole[:1])]
                places.append(min([lost_at, *(each.place for each in whole)]))
            by_all = max(places, default=NEVER)
            if all(index > by_all for index, _ in firsts):
                by_all = NEVER
            for each in told:
                least = min(each.steps) if least is None and each.steps else least
                most = max([most, *each.steps])
                if each.place <= by_all and least is not None and most - least >= STEPS_ALONE:
                    return firsts, each.latest
            if by_all < NEVER:
                return firsts, max(at for index, at in firsts if index <= by_all)
        return firsts, None

    @property
    def began(self) -> int:
        """When it trained."""
        firsts, began = self.beginnings
        if began is None and self.reached is None and self.step_first is None:
            known = [at for _, at in firsts]
            known += [self.running] if self.running is not None else []
            began = max(known, default=None)
        return self.end if began is None else max(began, self.start)

    @cached_property
    def away(self) -> list[tuple[int, int]]:
        """When no core was there, as far as that is known."""
        return [
            (chapter.life.seen, ns(chapter.life.at))
            for chapter in self.chapters
            if not chapter.is_first and chapter.is_kept
        ]

    # How it ended.

    @cached_property
    def ending(self) -> tuple[Cause, str, int | None] | None:
        """What ended it, at which host, and since when it can't have trained."""
        match None if self.closing is None else self.closing.taken.record:
            case IterationInterrupted():
                return self._found_interrupted()
            case RoundEnded(cause=RoundEnd.AGENT_LOST):
                return self._found_lost()
            case EndingStarted(cause=VerdictCause.STOPPED):
                return Cause.STOPPED, "", None
            case RoundEnded(cause=RoundEnd.WORKER_FAILED) | EndingStarted():
                return self._found_failed()
            case RoundEnded(cause=cause):
                return Cause(cause), "", None
        return None

    def _found_interrupted(self) -> tuple[Cause, str, int | None]:
        assert self.closing is not None, "it has ended"
        notes = [n for n in self.log.noted if self.first.index < n[0] < self.closing.index]
        if not notes or (found := notes[-1][1]) is None:
            return Cause.INTERRUPTED, "", None
        return found.cause, found.host, self.progress if found.cause is Cause.HANG else None

    def _found_failed(self) -> tuple[Cause, str, int | None]:
        assert self.closing is not None, "it has ended"
        taken, progress = self.closing.taken, self.progress
        if not taken.causes:
            failed = (name for name in self.first.seats if self._has_failed(name))
            name = next(failed, None)
            return Cause.WORKER_FAILED, self.first.names[name] if name else "", progress
        first = taken.causes[0]
        since = ns(first.happened_at)
        if first.hang is not None:
            hung = since - ns(first.hang.elapsed_s)
            return Cause.HANG, first.agent, hung if progress is None else progress
        # What hits most hosts alike is charged to none of them.
        hosts = len(taken.alike.union(cause.incarnation for cause in taken.causes))
        host = "" if hosts > 1 and 2 * hosts > len(self.first.seats) else first.agent
        return Cause.WORKER_FAILED, host, max(since, progress or since)

    def _has_failed(self, name: str) -> bool:
        assert self.closing is not None, "it has ended"
        taken = self.closing.taken
        return any(
            isinstance(entry, Heard)
            and entry.name == name
            and not entry.is_excused
            and entry.beat.round_id == self.first.place[0]
            and entry.beat.state is GroupState.FAILED
            for entry in taken.life.entries
            if entry.index < taken.index
        )

    def _found_lost(self) -> tuple[Cause, str, int | None]:
        assert self.closing is not None, "it has ended"
        taken = self.closing.taken
        if self.kind is Stretch.ENDING or not taken.lost:
            return Cause.AGENT_LOST, "", None
        gone: dict[str, int] = {}
        for entry in taken.life.entries:
            is_here = self.first.index < entry.index < taken.index
            if isinstance(entry, Lost) and is_here:
                gone[entry.name] = ns(entry.silent_since) or taken.life.seen
        first = min(taken.lost, key=lambda name: (gone.get(name, 0), name))
        host = self.first.names[first]
        if taken.lost <= taken.drained:
            return Cause.AGENT_DRAINED, host, None
        known = [at for at in (gone.get(first), self.progress) if at is not None]
        # What hits several hosts at once is charged to none of them.
        return Cause.AGENT_LOST, host if len(taken.lost) == 1 else "", max(known, default=None)

    # What it was.

    def borders(self) -> list[int]:
        """Return all instants at which it may have become another part."""
        found = [self.start, self.end, self.began]
        found += [at for away in self.away for at in away]
        found += [each.at for each in self.decisions]
        more = [self.stopping[1], self.caught_up, self.ending[2] if self.ending else None]
        found += [at for at in more if at is not None]
        return sorted({at for at in found if self.start <= at <= self.end})

    def part_at(self, at: int) -> Part:
        """Return what the run did just after an instant."""
        is_stopping, stopped, _ = self.stopping
        is_stopping = is_stopping and (stopped is None or at < stopped)
        always = {
            Stretch.FORMING: Part.WAITING,
            Stretch.GATHERING: Part.STOPPING if is_stopping else Part.WAITING,
            Stretch.INTERRUPTED: Part.INTERRUPTED,
            Stretch.ENDING: Part.STOPPING,
        }
        if self.kind in always:
            return always[self.kind]
        if at < self.began:
            return Part.STOPPING if is_stopping else Part.STARTING
        if self.ending is not None and self.ending[2] is not None and at >= self.ending[2]:
            return Part.HANGING
        is_away = any(first <= at < last for first, last in self.away)
        trained = Part.AWAY if is_away else Part.TRAINING
        return Part.REPEATED if self._is_repeated(at) else trained

    def _is_repeated(self, at: int) -> bool:
        if self.reached is None or self.step_first is None or self.step_first > self.reached:
            return False
        return self.caught_up is None or at < self.caught_up

    def pieces(self) -> Iterator[tuple[Piece, int]]:
        """Yield what it was, time by time, each with the hosts that it had."""
        place = self.decisions[-1].place
        for start, end in pairwise(self.borders()):
            part, cause, host = self.part_at(start), self.cause, self.host
            if part is Part.HANGING and self.ending is not None:
                cause, host = self.ending[:2]
            hosts = next(each.hosts for each in reversed(self.decisions) if each.at <= start)
            if part in LOST_FOR_NOTHING:
                yield Piece(start, end, part, None, "", *place), hosts
            else:
                yield Piece(start, end, part, cause, host, *place), hosts


def spans_of(log: Log, *, now: float = 0.0, life: Life | None = None) -> list[Span]:
    """Return the spans of a run; up to now, with what this core knows, if it goes on."""
    spans: list[Span] = []
    for decision in log.decisions:
        last = spans[-1] if spans else None
        if last is not None and last.kind is decision.stretch:
            last.decisions.append(decision)
            continue
        cause, host = Cause.START, ""
        if last is not None:
            last.closing = decision
            cause, host = last.cause, last.host
            if last.ending is not None and decision.stretch is not None:
                cause, host = last.ending[:2]
        if decision.stretch is None:
            return spans
        span = Span(log=log, kind=decision.stretch, decisions=[decision], before=last)
        span.now, span.cause, span.host = (life, ns(now)), cause, host
        spans.append(span)
    return spans


def account_of(spans: list[Span]) -> Account:
    """Return what the time of a run went into."""
    pieces: list[Piece] = []
    hosts_time: dict[Part, int] = defaultdict(int)
    failures, restarts = 0, dict[Cause, int]()
    for span in spans:
        for piece, hosts in span.pieces():
            hosts_time[piece.part] += hosts * (piece.end - piece.start)
            if pieces and pieces[-1][2:] == piece[2:]:
                pieces[-1] = pieces[-1]._replace(end=piece.end)
            else:
                pieces.append(piece)
        if span.ending is None or span.closing is None or span.closing.stretch is None:
            continue
        cause = span.ending[0]
        failures += span.kind is Stretch.ROUND and cause in FAILURES
        if span.closing.stretch in (Stretch.GATHERING, Stretch.INTERRUPTED):
            restarts[cause] = restarts.get(cause, 0) + 1
    return Account(pieces, dict(hosts_time), failures, restarts)
