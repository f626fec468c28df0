"""What does a restart in process cost a whole run, and does it grow with the ranks?

Through the registry and the run, with an agent for each 8 ranks: every beat of theirs, what is
journaled, and what each of them is told. Pure code: no network and no journal. Prints median
milliseconds of one whole iteration, from the fault of a worker until the beats that say that the
next one runs, and of parts of it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from bench.scale import core_cost
from bench.scale.by_size import Costs
from bench.scale.core_cost import RUN
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.inprocess.rank_rules import (
    FILL_GAPS,
    SHIFT_RANKS,
    Ranking,
    RankRule,
    RuleKind,
    assign,
)
from drumbeat.coordinator.core.inprocess.records import (
    InprocessReport,
    InprocessSpec,
    IterationPhase,
)
from drumbeat.inprocess import InprocessStep, Interruption, InterruptionKind
from drumbeat.model import GroupState
from drumbeat.wire.messages import DIRECTIVE

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (8, 1_000, 16_000)
WORKERS_PER_HOST = 8
SAMPLES = 5
SPEC = InprocessSpec()
FAULT = Interruption(local_rank=3, kind=InterruptionKind.EXCEPTION, message="ValueError: no")
# Groups of 8 workers may stay.
EIGHTS = RankRule(kind=RuleKind.GROUPS, allowed=b"\0\1")


class Fleet(core_cost.Fleet):
    """Agents of one run in a round whose workers restart in process."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks // WORKERS_PER_HOST)
        self.iteration = 0
        self.join_all()
        self.told: list[fx.Instruct] = []
        self.enter_all()
        self.say_all(InprocessStep.RUNNING)

    def say(self, index: int, report: InprocessReport | None) -> None:
        """Deliver one agent's beat."""
        event = self.beat_of(index, GroupState.RUNNING, inprocess=report)
        effects = self.handle(event)
        if len(effects) > 1:
            self.told = [effect for effect in effects if isinstance(effect, fx.Instruct)]

    def say_all(self, step: InprocessStep) -> None:
        """Let all agents say the same."""
        spec = SPEC if step is InprocessStep.ENTERED else None
        report = InprocessReport(iteration=self.iteration, step=step, spec=spec)
        for index in range(self.size):
            self.say(index, report)

    def enter_all(self) -> None:
        """Let all enter; the leader holds a port by then."""
        self.port += 1
        self.say_all(InprocessStep.ENTERED)

    def restart(self) -> None:
        """Interrupt the iteration at one host, and let the next one begin."""
        interrupted = InprocessStep.INTERRUPTED
        report = InprocessReport(iteration=self.iteration, step=interrupted, interruptions=(FAULT,))
        self.say(self.size - 1, report)
        self.say_all(interrupted)
        self.iteration += 1
        self.enter_all()
        self.say_all(InprocessStep.RUNNING)

    def check(self) -> None:
        """Raise if the iteration does not run."""
        iterations = self.registry.runs[RUN].state.iterations
        assert iterations is not None
        assert (iterations.iteration, iterations.phase) == (
            self.iteration,
            IterationPhase.RUNNING,
        )


def timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1e3


def iterations(ranks: int) -> list[float]:
    """Return the milliseconds of whole iterations."""
    fleet = Fleet(ranks)
    samples = [timed(fleet.restart) for _ in range(SAMPLES)]
    fleet.check()
    return samples


def assignments(ranks: int) -> list[float]:
    """Return the milliseconds of all rules together, with a host in a hundred gone."""
    groups = [f"host-{worker // WORKERS_PER_HOST}" for worker in range(ranks)]
    gone = set(range(1, ranks, 100 * WORKERS_PER_HOST)) - {1} if ranks > WORKERS_PER_HOST else set()
    rules = (FILL_GAPS, EIGHTS, SHIFT_RANKS, RankRule(kind=RuleKind.ACTIVE_DIVISOR, count=4))
    work = partial(assign, list(range(ranks)), gone=gone, groups=groups, rules=rules)
    assert isinstance(work(), Ranking)
    return [timed(work) for _ in range(SAMPLES)]


def messages(ranks: int) -> list[float]:
    """Return the milliseconds of writing what all agents are told when an iteration begins."""
    fleet = Fleet(ranks)
    fleet.restart()
    assert len(fleet.told) == fleet.size

    def write() -> None:
        for effect in fleet.told:
            DIRECTIVE.write(effect.directive).SerializeToString()

    return [timed(write) for _ in range(SAMPLES)]


def beats(ranks: int, *, is_iterating: bool) -> list[float]:
    """Return the milliseconds of one heartbeat of every agent, with a report or without."""
    fleet = Fleet(ranks)

    def beat_all() -> None:
        report = InprocessReport(iteration=fleet.iteration, step=InprocessStep.RUNNING)
        for index in range(fleet.size):
            fleet.say(index, report if is_iterating else None)

    return [timed(beat_all) for _ in range(SAMPLES)]


COSTS = Costs(
    "ms",
    "ranks",
    {
        "one whole iteration": iterations,
        "assign ranks by four rules": assignments,
        "messages of a begin": messages,
        "heartbeats with a report": partial(beats, is_iterating=True),
        "heartbeats without": partial(beats, is_iterating=False),
    },
    SIZES,
)
QUESTIONS = COSTS.questions("iteration_run", "pure core of a run")

if __name__ == "__main__":
    COSTS.main(__doc__)
