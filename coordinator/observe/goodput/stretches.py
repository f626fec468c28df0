"""Pure. A run's time as stretches between decisions, which observations cut into parts.

Instants are whole nanoseconds of the coordinator's clock, so that parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from drumbeat.coordinator.observe.steps.progress import Checkpoint

# Absences of the coordinator within a stretch; beyond that the oldest count as training.
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


# While the coordinator is away, training goes on.
EFFECTIVE = frozenset({Part.TRAINING, Part.AWAY})


class Cause(StrEnum):
    """Why time was lost. The values are those of the protocol."""

    START = "START"
    WORKER_FAILED = "WORKER_FAILED"
    HANG = "HANG"
    AGENT_LOST = "AGENT_LOST"
    AGENT_JOINED = "AGENT_JOINED"
    AGENT_DRAINED = "AGENT_DRAINED"
    RESTART_ASKED = "RESTART_ASKED"
    STOPPED = "STOPPED"
    INTERRUPTED = "INTERRUPTED"
    REHEARSED = "REHEARSED"


FAILURES = frozenset({Cause.WORKER_FAILED, Cause.HANG, Cause.AGENT_LOST, Cause.INTERRUPTED})


class Stretch(StrEnum):
    """The state of a run between two journaled decisions."""

    FORMING = "FORMING"  # before the first round
    GATHERING = "GATHERING"
    ROUND = "ROUND"  # a round or, within it, what follows a restart in process
    INTERRUPTED = "INTERRUPTED"
    HUNG = "HUNG"  # a round whose workers exceed a limit, until they go on or it ends
    ENDING = "ENDING"


# Stretches that observations cut into parts; the others are one part each.
MEASURED = frozenset({Stretch.GATHERING, Stretch.ROUND})
_WHOLE = {
    Stretch.FORMING: Part.WAITING,
    Stretch.INTERRUPTED: Part.INTERRUPTED,
    Stretch.HUNG: Part.HANGING,
    Stretch.ENDING: Part.STOPPING,
}


class Marks(Struct, frozen=True, kw_only=True):
    """Observations of the open stretch: instants in nanoseconds, and steps of workers."""

    is_stopping: bool = False  # workers of the previous round were alive when it began
    stopped: int | None = None  # when they were gone
    running: int | None = None  # when the workers of all hosts ran
    heard: int | None = None  # the latest first heartbeat of a host
    began: int | None = None  # when all ranks had sent a heartbeat
    progress: int | None = None  # the latest heartbeat
    step_first: int | None = None
    step: int | None = None  # the highest
    caught_up: int | None = None  # the first step that no earlier stretch had reached
    away: tuple[tuple[int, int], ...] = ()  # absences of the coordinator

    def began_after(self, reached: int | None) -> int | None:
        """Return when all ranks of a round progressed; ``reached``: the highest step before it.

        For workers without steps it is when they ran, or sent a first heartbeat.
        """
        if self.began is not None or reached is not None or self.step_first is not None:
            return self.began
        return max((at for at in (self.heard, self.running) if at is not None), default=None)


class StretchEnd(Struct, frozen=True, kw_only=True):
    """Why a stretch ends. ``since``: nothing was trained from then on.

    ``host`` is the one to blame for what is lost; empty: none in particular. Of a failure
    ``signature`` is its cause as it is the same on any host; ``ranks`` and ``names`` of agents are
    those that failed or were lost, a few of them.
    """

    cause: Cause
    host: str = ""
    since: int | None = None
    signature: str = ""
    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


class ProgressNoted(Struct, frozen=True, kw_only=True):
    """All observations of the open stretch; ``end``: why it ends now."""

    marks: Marks
    at_s: float = 0.0
    end: StretchEnd | None = None
    steps_total: int = 0
    checkpoint: Checkpoint | None = None


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
    """Cut a stretch into pieces without gap or overlap, whatever its marks say.

    ``reached`` is the highest step of all stretches before, ``since`` that of ``StretchEnd``.
    """
    if marks is None or stretch not in MEASURED:
        yield from _between([(_WHOLE.get(stretch, Part.UNKNOWN), end)], start, end)
    elif stretch is Stretch.GATHERING:
        borders = [(Part.STOPPING, _stopped(marks, start, end)), (Part.WAITING, end)]
        yield from _between(borders, start, end)
    else:
        yield from _cut_round(marks, start, end, reached=reached, since=since)


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


def _between(borders: Sequence[tuple[Part, int]], start: int, end: int) -> Iterator[Piece]:
    """Yield the part before each border, unless it is empty."""
    for part, border in borders:
        last = min(max(border, start), end)
        if last > start:
            yield part, start, last
        start = last
