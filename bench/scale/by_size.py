"""What costs how much at which number of ranks: as questions, and as a table."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from bench.harness import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    MedianMs = Callable[[str, int], float]


def questions(
    prefix: str, what: str, measures: Iterable[str], sizes: Iterable[int], median_ms: MedianMs
) -> tuple[Question, ...]:
    """Return a question for each measure at each size."""
    return tuple(
        Question(
            name=f"{prefix}_{name.replace(' ', '_')}_{size}",
            text=f"{what}, {name}, {size:,} ranks",
            unit="ms",
            ours=partial(median_ms, name, size),
        )
        for name in measures
        for size in sizes
    )


def main(
    text: str | None, measures: Iterable[str], sizes: Sequence[int], median_ms: MedianMs
) -> None:
    """Print a table for the sizes that the command line names."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("sizes", nargs="*", type=int, default=sizes, help="ranks, 8 per host")
    asked = parser.parse_args().sizes
    print("milliseconds, median; ranks:".ljust(36), *(f"{size:>9,}" for size in asked))
    for name in measures:
        print(name.ljust(36), *(f"{median_ms(name, size):9.3f}" for size in asked))
