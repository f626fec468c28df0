"""Pure. Goodput: how much of a run's time was spent on what, and what losses were due to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import Struct, structs

from drumbeat.coordinator.observe.goodput.stretches import (
    EFFECTIVE,
    FAILURES,
    Cause,
    Marks,
    Part,
    ProgressNoted,
    Stretch,
    StretchEnd,
    cut,
)
from drumbeat.text.durations import SECOND, format_duration, nanoseconds

# Hosts that losses are listed for; those of further hosts are summed under an empty name.
HOSTS_MAX = 256
# Latest segments that are kept. The time of older ones stays in the parts.
SEGMENTS_MAX = 1_000
# Of the steps that were repeated: far beyond any run, and every JSON reader keeps it exact.
STEPS_REPEATED_MAX = 2**53
# Shorter runs have no line: their parts would be delays of messages.
TOLD_MIN_S = 1.0


class Time(Struct, frozen=True, kw_only=True):
    """Nanoseconds of a run, and the sum over its hosts."""

    run: int = 0
    hosts: int = 0

    def plus(self, run: int, hosts: int) -> Time:
        """Add time that a number of hosts spent."""
        return Time(run=self.run + run, hosts=self.hosts + run * hosts)


class Segment(Struct, frozen=True, array_like=True):
    """A time of one part, in nanoseconds. It begins at the end of the previous segment."""

    time: int
    part: Part
    cause: Cause | None  # ``None``: the time was not lost
    host: str
    round_id: int | None  # the current or last then
    iteration: int | None  # the latest of that round then; ``None``: it had none
    hosts: int = 0  # nanoseconds of all hosts


NONE = Time()
_WORDS = {
    Part.WAITING: "waiting",
    Part.STARTING: "starting",
    Part.REPEATED: "repeating steps",
    Part.HANGING: "no progress",
    Part.INTERRUPTED: "interrupted",
    Part.STOPPING: "stopping",
}


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The account of a run's time: a fold of decisions and of ``ProgressNoted``.

    Time before ``until`` is in ``parts``; the open stretch begins there.
    """

    began: int | None = None
    until: int = 0
    seen: int = 0  # the latest instant in the journal
    stretch: Stretch | None = None
    number: int = 0  # counts stretches
    hosts: int = 0  # of the open stretch
    marks: Marks | None = None  # of the open stretch; None: none were journaled
    end: StretchEnd | None = None  # why it ends
    reached: int | None = None  # the highest step before it
    repeated: int = 0  # steps of all stretches before that others had made already
    goes_on: bool = False  # it goes on with the steps of the one before, which hung
    cause: Cause = Cause.START  # of losses from here on
    host: str = ""
    round_id: int | None = None  # of the open stretch
    iteration: int | None = None
    failures: int = 0
    failed_at: list[int] = field(default_factory=list)  # when the latest were
    parts: dict[Part, Time] = field(default_factory=dict)
    causes: dict[Cause, Time] = field(default_factory=dict)  # of lost time
    restarts: dict[Cause, int] = field(default_factory=dict)
    hosts_lost: dict[str, Time] = field(default_factory=dict)  # by the host that was the cause
    # The latest, oldest first, up to ``until``.
    segments: list[Segment] = field(default_factory=list)

    def note(self, noted: ProgressNoted) -> None:
        """Take in observations of the open stretch."""
        self.saw(noted.at_s)
        self.marks, self.end = noted.marks, noted.end

    def saw(self, at_s: float) -> None:
        """Take in that a coordinator was there at this time."""
        self.seen = max(self.seen, nanoseconds(at_s))

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
        """Take in a decision, which leads to this stretch; ``None``: the run has ended.

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
        """Return the account as of now, with the latest marks of the open stretch."""
        return self.up_to(max(nanoseconds(now_s), self.seen), marks)

    def up_to(self, end: int, marks: Marks | None = None) -> Ledger:
        """Return the account up to an instant of the open stretch."""
        parts, causes, hosts_lost = dict(self.parts), dict(self.causes), dict(self.hosts_lost)
        segments = list(self.segments)
        known = replace(self, parts=parts, causes=causes, hosts_lost=hosts_lost, segments=segments)
        if known.stretch is not None:
            known.marks, known.seen = marks or known.marks, max(end, known.seen)
            known._close(end)  # noqa: SLF001 - its own
        return known

    @property
    def whole(self) -> int:
        """The time accounted for."""
        return 0 if self.began is None else self.until - self.began

    @property
    def ratio(self) -> float | None:
        """The effective training time ratio (ETTR); ``None`` if all time is unknown."""
        known = self.whole - self.parts.get(Part.UNKNOWN, NONE).run
        effective = sum(self.parts.get(part, NONE).run for part in EFFECTIVE)
        return effective / known if known else None

    @property
    def highest_step(self) -> int | None:
        """The highest step that a worker has named; ``None``: none has."""
        steps = (self.reached, None if self.marks is None else self.marks.step)
        return max((step for step in steps if step is not None), default=None)

    @property
    def steps_repeated(self) -> int:
        """Steps that were made again after restarts, as far as is journaled: it never falls."""
        marks, again = self.marks, 0
        if marks is not None and marks.step_first is not None and not self.goes_on:
            last = min(marks.step or 0, self.reached or 0)
            again = max(0, last - marks.step_first) if self.reached is not None else 0
        return min(self.repeated + again, STEPS_REPEATED_MAX)

    def line(self) -> str:
        """Return a summary in one line; empty if all is unknown, or the run was short."""
        known = self.whole - self.parts.get(Part.UNKNOWN, NONE).run
        if (ratio := self.ratio) is None or known < TOLD_MIN_S * SECOND:
            return ""
        lost = sorted((-time.run, part) for part, time in self.parts.items() if _is_lost(part))
        shares = [f"{_WORDS[part]} {_percent(-run / known)}" for run, part in lost]
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
            time = sum(segment.time for segment in self.segments if segment.part is part)
            assert time <= self.parts.get(part, NONE).run, f"segments have too much {part}"
        assert self.until <= self.seen or self.began is None, "time that was not seen"

    def _begin(self, at: int, known_since: int) -> None:
        """Begin the account; time before the first record is unknown."""
        self.began = self.until = min(at, known_since)
        self.seen, self.stretch = at, Stretch.FORMING
        if at > self.until:
            self._add(Part.UNKNOWN, at - self.until)
            self.until = at

    def _turn(self, stretch: Stretch | None, cause: Cause | None) -> None:
        """Enter another stretch, for the cause that was found or else for ``cause``."""
        ending = self.end or (StretchEnd(cause=cause) if cause is not None else None)
        if ending is not None and stretch is not None:
            is_end = self.stretch in (Stretch.ROUND, Stretch.HUNG) and stretch is not Stretch.HUNG
            if is_end and ending.cause in FAILURES:
                self.failures += 1
                self.failed_at = [*self.failed_at[-SEGMENTS_MAX + 1 :], self.until]
            self.cause, self.host = ending.cause, ending.host
            if stretch in (Stretch.GATHERING, Stretch.INTERRUPTED):
                self.restarts[ending.cause] = self.restarts.get(ending.cause, 0) + 1
        self.repeated, self.goes_on = self.steps_repeated, self.stretch is Stretch.HUNG
        self.reached = self.highest_step
        self.stretch, self.marks, self.end = stretch, None, None
        self.number += 1

    def _close(self, at: int) -> None:
        """Account for the open stretch up to an instant."""
        assert self.stretch is not None, "nothing is open"
        ending = self.end
        since = ending.since if ending is not None else None
        pieces = cut(self.stretch, self.marks, self.until, at, reached=self.reached, since=since)
        for part, first, last in pieces:
            cause, host = self.cause, self.host
            if part is Part.HANGING and ending is not None:
                cause, host = ending.cause, ending.host
            self._add(part, last - first, cause, host)
        self.until = at

    def _add(self, part: Part, time: int, cause: Cause = Cause.START, host: str = "") -> None:
        hosts = self.hosts
        self.parts[part] = self.parts.get(part, NONE).plus(time, hosts)
        place = self.round_id, self.iteration, time * hosts
        if not _is_lost(part):
            self._append(Segment(time, part, None, "", *place))
            return
        self._append(Segment(time, part, cause, host, *place))
        self.causes[cause] = self.causes.get(cause, NONE).plus(time, hosts)
        if host:
            if host not in self.hosts_lost and len(self.hosts_lost) >= HOSTS_MAX:
                host = ""
            self.hosts_lost[host] = self.hosts_lost.get(host, NONE).plus(time, hosts)

    def _append(self, segment: Segment) -> None:
        """Add a segment, or extend the latest one if they are alike."""
        last = self.segments[-1] if self.segments else None
        time, hosts = segment.time, segment.hosts
        if last is not None and structs.replace(last, time=time, hosts=hosts) == segment:
            more = {"time": last.time + time, "hosts": last.hosts + hosts}
            self.segments[-1] = structs.replace(last, **more)
            return
        self.segments.append(segment)
        if len(self.segments) > SEGMENTS_MAX:
            del self.segments[0]


def _is_lost(part: Part) -> bool:
    return part not in EFFECTIVE and part is not Part.UNKNOWN


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
