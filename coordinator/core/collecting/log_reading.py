"""Pure. One reader of workers' output: what it asked for, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from drumbeat.coordinator.core.collecting.stack_gathering import AskedAgent

CURSORS_MAX = 16_384  # of one agent; the oldest are forgotten


class LogsAsked(Struct, frozen=True, kw_only=True):
    """What a reader asked for; no ``ranks``: all."""

    run_id: str
    ranks: tuple[int, ...]
    since_round: int
    tail: int
    follow: bool
    tail_bytes: int = 0  # of each stream; 0: no limit


class Brought(Struct, frozen=True, kw_only=True):
    """What one agent brought, or why it brings nothing of some ranks."""

    incarnation: str
    pieces: tuple[Any, ...] = ()
    ranks: tuple[int, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class LogReading:
    """``waiting`` are agents that have not told all; only they are asked if nothing is followed."""

    asked: LogsAsked
    waiting: dict[str, AskedAgent]
    _cursors: dict[str, dict[tuple[int, int, int], Any]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all is told."""
        return not self.asked.follow and not self.waiting

    def is_wanted_of(self, incarnation: str) -> bool:
        """Whether an agent is to bring something."""
        return self.asked.follow or incarnation in self.waiting

    def begin(self, known: Mapping[str, Iterable[Any]]) -> None:
        """Go on from places that were read before, by agent."""
        for incarnation, cursors in known.items():
            self._move(incarnation, cursors)

    def cursors(self, incarnation: str) -> list[Any]:
        """Return where an agent goes on."""
        return list(self._cursors.get(incarnation, {}).values())

    def brought(self, incarnation: str, pieces: Iterable[Any]) -> Brought:
        """Take in what an agent brought."""
        taken = tuple(pieces)
        self._move(incarnation, (piece.next for piece in taken))
        return Brought(incarnation=incarnation, pieces=taken)

    def complete(self, incarnation: str) -> Brought | None:
        """Take in that an agent has told all; return which ranks it said nothing of, if any."""
        agent = self.waiting.pop(incarnation, None)
        heard = {rank for _, rank, _ in self._cursors.get(incarnation, {})}
        ranks = tuple(agent.ranks.values()) if agent is not None else ()
        if self.asked.follow or not (silent := tuple(i for i in ranks if i not in heard)):
            return None
        why = "it has not been started yet"
        return Brought(incarnation=incarnation, ranks=silent, problem=why)

    def given_up(self, incarnation: str, why: str) -> Brought | None:
        """Say why an agent brings nothing; ``None`` if it has told all."""
        if (agent := self.waiting.pop(incarnation, None)) is None:
            return None
        ranks = tuple(agent.ranks.values())
        return Brought(incarnation=incarnation, ranks=ranks, problem=why)

    def _move(self, incarnation: str, cursors: Iterable[Any]) -> None:
        own = self._cursors.setdefault(incarnation, {})
        for cursor in cursors:
            own[cursor.round_id, cursor.rank, cursor.stream] = cursor
        while len(own) > CURSORS_MAX:
            del own[next(iter(own))]
