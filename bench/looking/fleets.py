"""What a look at all ranks of a fleet costs: a question for each figure at each size."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from bench.figures import one_of_each
from bench.harness import Question, Scene
from bench.scale import fake_agents
from bench.ways import Way

WORKERS = 8  # of each agent

Measure = Callable[[Scene, int], Coroutine[Any, Any, dict[str, float | None]]]
"""Returns figures by name, of a fleet with so many ranks."""


def questions(
    prefix: str, measure: Measure, sizes: Iterable[int], rows: Iterable[tuple[str, str, str]]
) -> tuple[Question, ...]:
    """Return a question for each row, a figure's name, its unit and its text, at each size."""
    runs = {ranks: one_of_each(partial(_figures, measure, ranks)) for ranks in sizes}
    return tuple(
        Question(
            name=f"{prefix}_{ranks}_{name}",
            text=f"{text}, {ranks:,} ranks of {ranks // WORKERS:,} agents",
            unit=unit,
            repeats=3,
            **figures.in_each_way(name),
        )
        for ranks, figures in runs.items()
        for name, unit, text in rows
    )


def _figures(measure: Measure, ranks: int, way: str) -> dict[str, float | None]:
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene, ranks))
