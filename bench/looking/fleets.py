"""What a look at all ranks of a fleet costs: a question for each figure at each size."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from bench.figures import OneOfEach, in_scenes
from bench.harness import Question

WORKERS = 8  # of each agent


def questions(
    prefix: str,
    measure: Callable[..., Coroutine[Any, Any, OneOfEach]],
    sizes: Iterable[int],
    rows: Iterable[tuple[str, str, str]],
) -> list[Question]:
    """Return a question for each row, as ``Runs`` takes them, of a fleet with so many ranks."""
    asked: list[Question] = []
    for ranks in sizes:
        of = f"{ranks:,} ranks of {ranks // WORKERS:,} agents"
        sized = [(name, unit, f"{text}, {of}") for name, unit, text in rows]
        runs = in_scenes(partial(measure, ranks=ranks))
        asked += runs.questions(f"{prefix}_{ranks}", sized, repeats=3)
    return asked
