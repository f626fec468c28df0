"""Runs that answer several questions at once."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import LOOPBACK, Question, Scene
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

Figures = dict[str, list[float | None]]
"""By name; one run may have several of each."""
OneOfEach = dict[str, float | None]

OURS, BOTH = ("ours",), ("ours", "torchrun")
WAYS = tuple(map(str, Way))


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

    def questions(
        self,
        prefix: str,
        rows: Iterable[tuple[str, str, str]],
        sides: Iterable[str] = WAYS,
        **more: Any,
    ) -> list[Question]:
        """Return a question for each row: a figure's name, its unit and its text.

        ``more`` as in ``Question``.
        """
        return [
            Question(
                name=f"{prefix}_{name}",
                text=text,
                unit=unit,
                **{side: partial(self.figure, side, name) for side in sides},  # type: ignore[arg-type]
                **more,
            )
            for name, unit, text in rows
        ]


def one_of_each(run: Callable[[str], OneOfEach]) -> Runs:
    """Return runs that have one figure of each name."""
    return Runs(lambda side: {name: [figure] for name, figure in run(side).items()})


def in_scenes(measure: Callable[[Scene], Coroutine[Any, Any, OneOfEach]]) -> Runs:
    """Return runs that have a scene of their own each."""

    def run(side: str) -> OneOfEach:
        with Scene(Way(side)) as scene:
            return fake_agents.run(measure(scene))

    return one_of_each(run)


@asynccontextmanager
async def assigned_fleet(
    scene: Scene, port: int, count: int, workers: int = 0
) -> AsyncIterator[Fleet]:
    """Have so many agents of one run, once all of them have ranks."""
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    async with Fleet(address, count, workers=workers, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        yield fleet
