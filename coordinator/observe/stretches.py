"""Pure. What a run does at a time: stretches between decisions, cut into parts by what was seen.

Instants are whole nanoseconds of the coordinator's clock, so that parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

# Times within one stretch that the coordinator was away; of more the oldest count as training.
AWAY_MAX = 64


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


Piece = tuple[Part, int, int]


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
