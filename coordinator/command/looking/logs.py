"""Shell. Output of workers as lines to be read, and how far it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from drumbeat.coordinator.api.documents import STREAMS, lines_of
from drumbeat.format import count, one_line, printable

ROUNDS_RESUMED = 2  # agents keep no more
_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green")


class Told(NamedTuple):
    """What is shown: lines for standard output, and notes for standard error."""

    lines: list[str]
    notes: list[str]


class Cursors:
    """How far the output of a run was read, by agent and stream."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[int, int, int], Any]] = {}
        self._latest = 0

    def move(self, response: Any) -> None:
        """Take in what was shown. Streams of rounds that agents keep no more are forgotten."""
        own = self._of.setdefault(response.incarnation, {})
        for piece in response.pieces:
            place = piece.next
            if not place.stream:  # said of all of a worker
                continue
            own[place.round_id, place.rank, place.stream] = place
            if place.round_id > self._latest:
                self._latest = place.round_id
                self._forget(place.round_id - ROUNDS_RESUMED)

    def __iter__(self) -> Iterator[tuple[str, Iterable[Any]]]:
        return ((incarnation, own.values()) for incarnation, own in self._of.items() if own)

    def _forget(self, round_id: int) -> None:
        for own in self._of.values():
            for key in [key for key in own if key[0] <= round_id]:
                del own[key]


def told(response: Any, prefix: Callable[[int], str]) -> Told:
    """Return it to be read; each line stands behind the ``prefix`` of its rank."""
    lines: list[str] = []
    notes: list[str] = []
    silent: dict[str, set[int]] = {}
    for piece in response.pieces:
        place = piece.next
        if piece.missed:
            which = STREAMS[place.stream % len(STREAMS)]
            lost = f"{count(piece.missed, 'line')} of its {which} not shown"
            notes.append(f"rank {place.rank}: {lost}: they came faster than they were read")
        if piece.problem:
            silent.setdefault(one_line(piece.problem), set()).add(place.rank)
        lines += [prefix(place.rank) + printable(line) for line in lines_of(piece.text)]
    on = f" on {one_line(response.name, 64)}" if response.name else ""
    notes += [f"{_ranks(ranks)}{on}: no output: {why}" for why, ranks in silent.items()]
    return Told(lines, notes)


def colour_of(rank: int) -> str:
    """Return the colour of a rank."""
    return _COLOURS[rank % len(_COLOURS)]


def _ranks(ranks: Iterable[int]) -> str:
    found: Sequence[int] = sorted(ranks)
    return f"{'rank' if len(found) == 1 else 'ranks'} {','.join(map(str, found))}"
