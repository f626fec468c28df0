"""Pure. What must hold of a round, from what workers wrote and what the harness did and saw."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.decisions import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEHIND_S = 8.0
"""How long the workers of a host may go on after it was cut off or stood still: until its agent
has come back to a coordinator, and its workers had their time to end."""
INSTANT_S = 0.002
"""Two processes that only touch: one wrote its last line as the next began."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one process did at one place: of a round, or of an iteration in it."""

    seat: Seat
    iteration: int
    began_at: float
    last_at: float
    is_done: bool

    @property
    def generation(self) -> tuple[int, int]:
        """Which of all that had the rank this is."""
        return self.seat.round_id, self.iteration


@dataclass(frozen=True, slots=True)
class Absence:
    """A host that heard nothing, or did nothing, for a while."""

    host: str
    began_at: float
    ended_at: float


def lives(text: str) -> list[Life]:
    """Read the file of a worker. What was cut off by its end is no line."""
    read: list[Life] = []
    began: dict[str, object] | None = None
    last_at, is_done = 0.0, False

    def close() -> None:
        if began is not None:
            read.append(_life(began, last_at, is_done=is_done))

    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        if line.startswith("{"):
            close()
            began = json.loads(line)
            assert began is not None
            last_at = float(str(began["at"]))
        else:
            kind, instant, *_ = line.split()
            last_at, is_done = float(instant), kind == "E"
    close()
    return read


def _life(began: dict[str, object], last_at: float, *, is_done: bool) -> Life:
    number = {
        name: int(str(began[name])) for name in ("round_id", "rank", "world_size", "restarts")
    }
    seat = Seat(
        run_id=str(began["run_id"]),
        master=str(began["master"]),
        host=str(began["host"]),
        pid=int(str(began["pid"])),
        **number,
    )
    return Life(seat, int(str(began["iteration"])), float(str(began["at"])), last_at, is_done)


def overlaps(those: Iterable[Life], absences: Sequence[Absence]) -> list[str]:
    """Return each two generations of one rank that lived at once, without a host's absence."""
    problems = []
    ranks: dict[tuple[str, int], list[Life]] = defaultdict(list)
    for life in those:
        ranks[life.seat.run_id, life.seat.rank].append(life)
    for (run_id, rank), lived in sorted(ranks.items()):
        lived.sort(key=lambda life: (life.generation, life.began_at))
        for number, new in enumerate(lived):
            for old in lived[:number]:
                by_s = min(old.last_at, new.last_at) - max(new.began_at, old.began_at)
                if by_s > INSTANT_S and not _is_excused(old, new, absences):
                    problems.append(
                        f"rank {rank} of {run_id} lived twice for {by_s:.3f} s: "
                        f"{_name(old)} until {old.last_at:.3f}, {_name(new)} from "
                        f"{new.began_at:.3f}"
                    )
    return problems


def _is_excused(old: Life, new: Life, absences: Sequence[Absence]) -> bool:
    """On one host nothing is: its agent ends what is old, whatever it hears."""
    if old.seat.host == new.seat.host:
        return False
    return any(
        absence.host == old.seat.host
        and absence.began_at <= new.began_at
        and old.last_at <= absence.ended_at + BEHIND_S
        for absence in absences
    )


def _name(life: Life) -> str:
    return f"{life.generation} (pid {life.seat.pid} on {life.seat.host})"
