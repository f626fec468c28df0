"""What costs how much at which size of a run: as questions, and as a table."""

from __future__ import annotations

import argparse
import gc
import statistics
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bench.harness import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Results = dict[str, dict[int, float]]
"""By measure and size."""


class Costs(NamedTuple):
    """Measures by name, which return samples in ``unit`` of a run of some ``size`` of ``sized``."""

    unit: str
    sized: str
    measures: Mapping[str, Callable[[int], list[float]]]
    sizes: Sequence[int]

    def median(self, name: str, size: int) -> float:
        """Return what one measure costs at one size."""
        gc.collect()
        return statistics.median(self.measures[name](size))

    def questions(self, prefix: str, what: str) -> list[Question]:
        """Return a question for each measure at each size."""
        return [
            Question(
                name=f"{prefix}_{name.replace(' ', '_').replace(',', '')}_{size}",
                text=f"{what}, {name}, {size:,} {self.sized}",
                unit=self.unit,
                ours=partial(self.median, name, size),
            )
            for name in self.measures
            for size in self.sizes
        ]

    def results(self, sizes: Sequence[int]) -> Results:
        """Measure everything, print a table, and return the medians."""
        results: Results = {}
        title = f"{self.unit}, median; {self.sized}:"
        print(title.ljust(38), *(f"{size:>9,}" for size in sizes), "   growth")
        for name in self.measures:
            row = results[name] = {size: round(self.median(name, size), 3) for size in sizes}
            growth = row[sizes[-1]] / row[sizes[0]]
            print(name.ljust(38), *(f"{row[size]:9.3f}" for size in sizes), f"{growth:8.1f}x")
        return results

    def main(self, about: str | None) -> None:
        """Print a table for the sizes that the command line names."""
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("sizes", nargs="*", type=int, default=self.sizes, help=self.sized)
        self.results(parser.parse_args().sizes)
