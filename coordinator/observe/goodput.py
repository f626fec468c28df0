"""Pure. What the time of a run went into: stretches of it, cut into parts without gap or overlap.

Instants are whole nanoseconds of the coordinator's clock, so that parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec import Struct, structs

from drumbeat.durations import format_duration

# Hosts that lost time is told of one by one; that of more is told together, under no name.
HOSTS_MAX = 256
# Times within one stretch that the coordinator was away; of more the oldest count as training.
AWAY_MAX = 64
# Segments that are kept; of more the oldest are dropped, their time stays in the parts.
SEGMENTS_MAX = 1_000
# Of a shorter run no line tells the parts: they would be the delays of messages.
TOLD_MIN_S = 1.0
SECOND = 1_000_000_000


class Part(StrEnum):
    """What a run did. The values are those of the protocol."""

    WAITING = "WAITING"
    STARTING = "STARTING"
    TRAINING = "TRAINING"
    REPEATED = "REPEATED"
    HANGING = "HANGING"
    INTERRUPTED = "INTERRUPTED"
    STOPPING = "STOPPING"
    AWAY = "AWAY"
    UNKNOWN = "UNKNOWN"


# The coordinator was away, but training was not.
EFFECTIVE = frozenset({Part.TRAINING, Part.AWAY})


class Cause(StrEnum):
    """What time was lost for. The values are those of the protocol."""

    START = "START"
    WORKER_FAILED = "WORKER_FAILED"
    HANG = "HANG"
    AGENT_LOST = "AGENT_LOST"
    AGENT_JOINED = "AGENT_JOINED"
    AGENT_DRAINED = "AGENT_DRAINED"
    RESTART_ASKED = "RESTART_ASKED"
    STOPPED = "STOPPED"
    INTERRUPTED = "INTERRUPTED"


FAILURES = frozenset({Cause.WORKER_FAILED, Cause.HANG, Cause.AGENT_LOST, Cause.INTERRUPTED})


class Stretch(StrEnum):
    """What the journal's decisions alone tell of a time."""

    FORMING = "FORMING"  # before the first round
    GATHERING = "GATHERING"
    ROUND = "ROUND"  # a round or, within it, what follows a restart in process
    INTERRUPTED = "INTERRUPTED"
    HUNG = "HUNG"  # a round whose workers exceed a limit, until they go on or it ends
    ENDING = "ENDING"


# What is cut into parts by what was seen of it.
MEASURED = frozenset({Stretch.GATHERING, Stretch.ROUND})


class Marks(Struct, frozen=True, kw_only=True):
    """What was seen of the present stretch: instants, and the steps that workers named."""

    is_stopping: bool = False  # workers of the round before were alive when it began
    stopped: int | None = None  # until then
    running: int | None = None  # the workers of all hosts run
    heard: int | None = None  # the latest host to do so told its first heartbeat
    began: int | None = None  # all ranks have told one
    progress: int | None = None  # the latest heartbeat
    step_first: int | None = None
    step: int | None = None  # the highest
    caught_up: int | None = None  # a step came that no earlier stretch had reached
    away: tuple[tuple[int, int], ...] = ()  # the coordinator was

    def began_after(self, reached: int | None) -> int | None:
        """Return since when all ranks of a round progressed; ``reached``: the highest step before.

        Of workers that name no steps it is known that they run, or have told a heartbeat.
        """
        if self.began is not None or reached is not None or self.step_first is not None:
            return self.began
        return max((at for at in (self.heard, self.running) if at is not None), default=None)


class Found(Struct, frozen=True, kw_only=True):
    """What ends a stretch. ``since``: from then on nothing can have been trained."""

    cause: Cause
    host: str = ""
    since: int | None = None


class ProgressNoted(Struct, frozen=True, kw_only=True):
    """What was seen of the present stretch, all of it; ``found``: what ends it now."""

    marks: Marks
    at_s: float = 0.0
    found: Found | None = None


class Time(Struct, frozen=True, kw_only=True):
    """Nanoseconds of a run, and those of its hosts together."""

    run: int = 0
    hosts: int = 0

    def plus(self, run: int, hosts: int) -> Time:
        """Return more of it, spent by so many hosts."""
        return Time(run=self.run + run, hosts=self.hosts + run * hosts)


class Segment(Struct, frozen=True, array_like=True):
    """A time that was all one part, from the end of the segment before. In nanoseconds."""

    time: int
    part: Part
    cause: Cause | None  # of lost time
    host: str
    round_id: int | None  # the current or last then
    iteration: int | None  # the latest of that round then; ``None``: it had none


NONE = Time()
_WORDS = {
    Part.WAITING: "waiting for hosts",
    Part.STARTING: "starting",
    Part.REPEATED: "repeating steps",
    Part.HANGING: "no progress",
    Part.INTERRUPTED: "interrupted",
    Part.STOPPING: "stopping",
}
Piece = tuple[Part, int, int]


def nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(seconds * SECOND)


def cut(
    stretch: Stretch,
    marks: Marks | None,
    start: int,
    end: int,
    *,
    reached: int | None = None,
    since: int | None = None,
) -> Iterator[Piece]:
    """Yield the pieces of a stretch in order, from its start to its end, whatever marks say.

    ``reached`` is the highest step of all stretches before, ``since`` that of ``Found``.
    """
    borders: list[tuple[Part, int]]
    match stretch:
        case Stretch.FORMING:
            borders = [(Part.WAITING, end)]
        case Stretch.INTERRUPTED:
            borders = [(Part.INTERRUPTED, end)]
        case Stretch.HUNG:
            borders = [(Part.HANGING, end)]
        case Stretch.ENDING:
            borders = [(Part.STOPPING, end)]
        case _ if marks is None:
            borders = [(Part.UNKNOWN, end)]
        case Stretch.GATHERING:
            borders = [(Part.STOPPING, _stopped(marks, start, end)), (Part.WAITING, end)]
        case Stretch.ROUND:
            yield from _cut_round(marks, start, end, reached=reached, since=since)
            return
    yield from _between(borders, start, end)


def _stopped(marks: Marks, start: int, end: int) -> int:
    if not marks.is_stopping:
        return start
    return end if marks.stopped is None else marks.stopped


def _cut_round(
    marks: Marks, start: int, end: int, *, reached: int | None, since: int | None
) -> Iterator[Piece]:
    began = marks.began_after(reached)
    began = end if began is None else began
    again = began
    if reached is not None and marks.step_first is not None and marks.step_first <= reached:
        again = end if marks.caught_up is None else marks.caught_up
    since = end if since is None else max(since, began)
    borders = [
        (Part.STOPPING, min(_stopped(marks, start, end), began)),
        (Part.STARTING, began),
        (Part.REPEATED, min(again, since)),
        (Part.TRAINING, since),
        (Part.HANGING, end),
    ]
    for part, first, last in _between(borders, start, end):
        if part is not Part.TRAINING:
            yield part, first, last
            continue
        away = [border for one in marks.away for border in zip((part, Part.AWAY), one, strict=True)]
        yield from _between([*away, (part, last)], first, last)


def _between(borders: Sequence[tuple[Part, int | None]], start: int, end: int) -> Iterator[Piece]:
    """Yield what ends at each border, none of it empty."""
    for part, border in borders:
        last = end if border is None else min(max(border, start), end)
        if last > start:
            yield part, start, last
        start = last


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The account of a run: the fold of its decisions and of ``ProgressNoted``.

    All that is before ``until`` is in ``parts``; from there the open stretch goes on.
    """

    began: int | None = None
    until: int = 0
    seen: int = 0  # the latest instant of which the journal tells
    stretch: Stretch | None = None
    number: int = 0  # counts stretches
    hosts: int = 0  # of the open stretch
    marks: Marks | None = None  # of it; None: nothing was noted of it
    found: Found | None = None  # what ends it
    reached: int | None = None  # the highest step before it
    cause: Cause = Cause.START  # of the time that is lost from here on
    host: str = ""
    round_id: int | None = None  # of the open stretch
    iteration: int | None = None
    failures: int = 0
    parts: dict[Part, Time] = field(default_factory=dict)
    causes: dict[Cause, Time] = field(default_factory=dict)  # of lost time
    restarts: dict[Cause, int] = field(default_factory=dict)
    hosts_lost: dict[str, Time] = field(default_factory=dict)  # by the host that was the cause
    # The latest, oldest first, up to ``until``.
    segments: list[Segment] = field(default_factory=list)

    def note(self, noted: ProgressNoted) -> None:
        """Take in what was seen of the open stretch."""
        self.seen = max(self.seen, nanoseconds(noted.at_s))
        self.marks, self.found = noted.marks, noted.found

    def follow(
        self,
        at_s: float,
        stretch: Stretch | None,
        *,
        hosts: int,
        cause: Cause | None = None,
        known_since_s: float = 0.0,
        place: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Take in a decision, after which the run is in this stretch; ``None``: it has ended.

        ``cause`` is that of a decision that ends a round or interrupts it, ``known_since_s`` is
        when the run began as far as that is known, ``place`` is the round and iteration.
        """
        at = max(nanoseconds(at_s), self.seen)
        if self.began is None:
            self._begin(at, nanoseconds(known_since_s) or at)
        elif self.stretch is None:
            return  # it has ended
        self.seen = at
        if stretch is not self.stretch or hosts != self.hosts:
            self._close(at)
            if stretch is not self.stretch:
                self._turn(stretch, cause)
            self.hosts = hosts
        self.round_id, self.iteration = place

    def as_of(self, now_s: float, marks: Marks | None) -> Ledger:
        """Return the account as it is now, with what was seen of the open stretch."""
        return self.up_to(max(nanoseconds(now_s), self.seen), marks)

    def up_to(self, end: int, marks: Marks | None = None) -> Ledger:
        """Return the account as ``as_of`` does, up to an instant of the open stretch."""
        parts, causes, hosts_lost = dict(self.parts), dict(self.causes), dict(self.hosts_lost)
        segments = list(self.segments)
        known = replace(self, parts=parts, causes=causes, hosts_lost=hosts_lost, segments=segments)
        if known.stretch is not None:
            known.marks, known.seen = marks or known.marks, max(end, known.seen)
            known._close(end)  # noqa: SLF001 - its own
        return known

    @property
    def whole(self) -> int:
        """All of the time that is accounted for."""
        return 0 if self.began is None else self.until - self.began

    @property
    def effective(self) -> int:
        """The time in which the run trained what it had not trained before."""
        return sum(self.parts.get(part, NONE).run for part in EFFECTIVE)

    @property
    def ratio(self) -> float | None:
        """ETTR, the effective training time ratio; ``None`` if nothing is known of any time."""
        known = self.whole - self.parts.get(Part.UNKNOWN, NONE).run
        return self.effective / known if known else None

    def line(self) -> str:
        """Say in a line what the time went into; empty if nothing is known, or it was short."""
        known = self.whole - self.parts.get(Part.UNKNOWN, NONE).run
        if (ratio := self.ratio) is None or known < TOLD_MIN_S * SECOND:
            return ""
        lost = [(time.run, part) for part, time in self.parts.items() if _is_lost(part)]
        shares = [f"{_WORDS[part]} {_percent(run / known)}" for run, part in _largest(lost)]
        shown = format_duration(known / SECOND)
        return f"trained {_percent(ratio)} of {shown}{'; ' * bool(shares)}{', '.join(shares)}"

    def check_invariants(self) -> None:
        """Assert what must hold between records."""
        total = sum(time.run for time in self.parts.values())
        assert total == self.whole, "parts do not add up to the whole"
        lost = sum(time.run for part, time in self.parts.items() if _is_lost(part))
        assert sum(time.run for time in self.causes.values()) == lost, "causes do not add up"
        assert sum(time.run for time in self.hosts_lost.values()) <= lost, "hosts lost too much"
        assert len(self.hosts_lost) <= HOSTS_MAX + 1, "too many hosts"
        assert len(self.segments) <= SEGMENTS_MAX, "too many segments"
        for part in Part:
            time = sum(each.time for each in self.segments if each.part is part)
            assert time <= self.parts.get(part, NONE).run, f"segments have too much {part}"
        assert self.until <= self.seen or self.began is None, "time that was not seen"

    def _begin(self, at: int, known_since: int) -> None:
        """Begin with what an earlier version has journaled, of which nothing is known."""
        self.began = self.until = min(at, known_since)
        self.seen, self.stretch = at, Stretch.FORMING
        if at > self.until:
            self._add(Part.UNKNOWN, at - self.until)
            self.until = at

    def _turn(self, stretch: Stretch | None, cause: Cause | None) -> None:
        """Enter another stretch, for what was found or else for ``cause``."""
        found = self.found or (Found(cause=cause) if cause is not None else None)
        if found is not None and stretch is not None:
            is_end = self.stretch in (Stretch.ROUND, Stretch.HUNG) and stretch is not Stretch.HUNG
            self.failures += is_end and found.cause in FAILURES
            self.cause, self.host = found.cause, found.host
            if stretch in (Stretch.GATHERING, Stretch.INTERRUPTED):
                self.restarts[found.cause] = self.restarts.get(found.cause, 0) + 1
        steps = (self.reached, self.marks.step if self.marks is not None else None)
        self.reached = max((step for step in steps if step is not None), default=None)
        self.stretch, self.marks, self.found = stretch, None, None
        self.number += 1

    def _close(self, at: int) -> None:
        """Account for the open stretch so far; what it is then goes on from there."""
        assert self.stretch is not None, "nothing is open"
        found, reached = self.found, self.reached
        since = found.since if found is not None else None
        start = self.until
        pieces = cut(self.stretch, self.marks, start, at, reached=reached, since=since)
        for part, first, last in pieces:
            cause, host = self.cause, self.host
            if part is Part.HANGING and found is not None:
                cause, host = found.cause, found.host
            self._add(part, last - first, cause, host)
        self.until = at

    def _add(self, part: Part, time: int, cause: Cause = Cause.START, host: str = "") -> None:
        hosts = self.hosts
        self.parts[part] = self.parts.get(part, NONE).plus(time, hosts)
        if not _is_lost(part):
            self._append(Segment(time, part, None, "", self.round_id, self.iteration))
            return
        self._append(Segment(time, part, cause, host, self.round_id, self.iteration))
        self.causes[cause] = self.causes.get(cause, NONE).plus(time, hosts)
        if host:
            if host not in self.hosts_lost and len(self.hosts_lost) >= HOSTS_MAX:
                host = ""
            self.hosts_lost[host] = self.hosts_lost.get(host, NONE).plus(time, hosts)

    def _append(self, segment: Segment) -> None:
        """Go on with the latest segment if this one is like it."""
        last = self.segments[-1] if self.segments else None
        if last is not None and structs.replace(last, time=segment.time) == segment:
            self.segments[-1] = structs.replace(last, time=last.time + segment.time)
            return
        self.segments.append(segment)
        if len(self.segments) > SEGMENTS_MAX:
            del self.segments[0]


def _is_lost(part: Part) -> bool:
    return part not in EFFECTIVE and part is not Part.UNKNOWN


def _largest(lost: list[tuple[int, Part]]) -> list[tuple[int, Part]]:
    return sorted(lost, key=lambda each: (-each[0], each[1]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
