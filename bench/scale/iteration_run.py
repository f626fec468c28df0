"""What does a restart in process cost a whole run, and does it grow with the ranks?

As ``iteration_core``, but through the registry and the run, with an agent for
each 8 ranks: every beat of theirs, what is journaled, and what each of them is told.
Pure code: no network and no journal. Prints median milliseconds of one whole iteration,
from the fault of a worker until the beats that say that the next one runs.
"""

from __future__ import annotations

import gc
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from bench.scale import by_size
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import BeatReceived, SessionOpened
from drumbeat.coordinator.core.inprocess.records import (
    InprocessReport,
    InprocessSpec,
    IterationPhase,
)
from drumbeat.coordinator.core.model import AgentIdentity, Beat, RunSpec
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.inprocess import InprocessStep, Interruption, InterruptionKind
from drumbeat.model import GroupState
from drumbeat.wire import DIRECTIVE

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = "run"
SIZES = (8, 1_000, 16_000)
WORKERS_PER_HOST = 8
SAMPLES = 5
SPEC = InprocessSpec()
FAULT = Interruption(local_rank=3, kind=InterruptionKind.EXCEPTION, message="ValueError: no")


class Fleet:
    """Agents of one run in a round whose workers restart in process."""

    def __init__(self, ranks: int) -> None:
        self.names = [f"node-{index}" for index in range(ranks // WORKERS_PER_HOST)]
        self.port, self.iteration = 20_000, 0
        self.registry = Registry(Policy(agents_at_base_pace=10**9))
        spec = RunSpec(agents_min=len(self.names), agents_max=len(self.names))
        for name in self.names:
            self.registry.handle(
                SessionOpened(
                    run_id=RUN,
                    spec=spec,
                    session_id=name,
                    agent=AgentIdentity(
                        incarnation=name,
                        host=name,
                        address=name,
                        role="default",
                        local_world_size=WORKERS_PER_HOST,
                    ),
                    beat=Beat(state=GroupState.IDLE, master_port=self.port),
                ),
                now=0.0,
            )
        self.told: list[fx.Instruct] = []
        self.enter_all()
        self.say_all(InprocessStep.RUNNING)

    def say(self, name: str, report: InprocessReport | None) -> None:
        """Deliver one agent's beat."""
        event = BeatReceived(
            run_id=RUN,
            session_id=name,
            incarnation=name,
            beat=Beat(
                state=GroupState.RUNNING,
                round_id=0,
                master_port=self.port,
                workers_alive=WORKERS_PER_HOST,
                inprocess=report,
            ),
        )
        effects = self.registry.handle(event, now=0.0)
        if len(effects) > 1:
            self.told = [effect for effect in effects if isinstance(effect, fx.Instruct)]

    def say_all(self, step: InprocessStep) -> None:
        """Let all agents say the same."""
        spec = SPEC if step is InprocessStep.ENTERED else None
        report = InprocessReport(iteration=self.iteration, step=step, spec=spec)
        for name in self.names:
            self.say(name, report)

    def enter_all(self) -> None:
        """Let all enter; the leader holds a port by then."""
        self.port += 1
        self.say_all(InprocessStep.ENTERED)

    def restart(self) -> None:
        """Interrupt the iteration at one host, and let the next one begin."""
        interrupted = InprocessStep.INTERRUPTED
        report = InprocessReport(iteration=self.iteration, step=interrupted, interruptions=(FAULT,))
        self.say(self.names[-1], report)
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


def messages(ranks: int) -> list[float]:
    """Return the milliseconds of writing what all agents are told when an iteration begins."""
    fleet = Fleet(ranks)
    fleet.restart()
    assert len(fleet.told) == len(fleet.names)

    def write() -> None:
        for effect in fleet.told:
            DIRECTIVE.write(effect.directive).SerializeToString()

    return [timed(write) for _ in range(SAMPLES)]


def beats(ranks: int, *, is_iterating: bool) -> list[float]:
    """Return the milliseconds of one heartbeat of every agent, with a report or without."""
    fleet = Fleet(ranks)

    def beat_all() -> None:
        report = InprocessReport(iteration=fleet.iteration, step=InprocessStep.RUNNING)
        for name in fleet.names:
            fleet.say(name, report if is_iterating else None)

    return [timed(beat_all) for _ in range(SAMPLES)]


MEASURES: dict[str, Callable[[int], list[float]]] = {
    "one whole iteration": iterations,
    "messages of a begin": messages,
    "heartbeats with a report": partial(beats, is_iterating=True),
    "heartbeats without": partial(beats, is_iterating=False),
}


def median_ms(name: str, ranks: int) -> float:
    """Return what one part costs at one number of ranks, in milliseconds."""
    gc.collect()
    return statistics.median(MEASURES[name](ranks))


QUESTIONS = by_size.questions("iteration_run", "pure core of a run", MEASURES, SIZES, median_ms)

if __name__ == "__main__":
    by_size.main(__doc__, MEASURES, SIZES, median_ms)
