"""Runs that answer several questions at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from bench.ways import Ways, in_each_way

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, list[float | None]]
"""By name; one run may have several of each."""


class Runs:
    """Figures of runs that answer several questions, several of each; each is given out once.

    Args:
        run: Makes a run of a side.
    """

    def __init__(self, run: Callable[[str], Figures]) -> None:
        self._run = run
        self._kept: dict[tuple[str, str], list[float | None]] = defaultdict(list)

    def figure(self, side: str, name: str) -> float | None:
        """Return a figure that was not given out before, of a new run if there is none."""
        kept = self._kept[side, name]
        if not kept:
            for key, values in self._run(side).items():
                self._kept[side, key].extend(values)
        return kept.pop(0)

    def in_each_way(self, name: str) -> Ways:
        """Return what to give a question whose figure runs have in each way."""
        return in_each_way(lambda way: self.figure(way, name))


def one_of_each(run: Callable[[str], dict[str, float | None]]) -> Runs:
    """Return runs that have one figure of each name."""
    return Runs(lambda side: {name: [figure] for name, figure in run(side).items()})
