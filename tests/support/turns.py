"""Work that is done in several turns."""

from collections.abc import Generator
from typing import TypeVar

Made = TypeVar("Made")


def made(work: Generator[None, None, Made]) -> tuple[Made, int]:
    """Return what comes of the work, and after how many turns."""
    turns = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, turns
        turns += 1
