"""What does a restart in process cost in the coordinator's core, and does it grow with the ranks?

Pure code only: no network, no journal, no clock in the core. One iteration is entered,
begun, interrupted by a worker that ends, and entered again by those that are left; all
that hosts report and all they are told is counted. Prints median milliseconds of the
whole and of its parts at several numbers of ranks, 8 per host.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING

from bench.scale import by_size
from drumbeat.coordinator.core.inprocess.iterations import Iterations
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
    IterationState,
)
from drumbeat.coordinator.core.model import AgentIdentity, Round
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.phases.rendezvous import GiveUp, Wait
from drumbeat.inprocess import InprocessStep, Interruption, InterruptionKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = (8, 1_000, 16_000)
WORKERS_PER_HOST = 8
SAMPLES = 9
# Groups of 8 workers may stay.
EIGHTS = RankRule(kind=RuleKind.GROUPS, allowed=b"\0\1")
SPEC = InprocessSpec(rules=(EIGHTS, SHIFT_RANKS, RankRule(kind=RuleKind.ACTIVE_DIVISOR, count=2)))

Results = dict[str, dict[int, float]]


class Fleet:
    """Hosts of one round, and the core that they restart with."""

    def __init__(self, ranks: int) -> None:
        agents = [
            AgentIdentity(
                incarnation=f"node-{index}/1",
                host=f"node-{index}",
                address=f"node-{index}",
                role="default",
                local_world_size=WORKERS_PER_HOST,
            )
            for index in range(ranks // WORKERS_PER_HOST)
        ]
        current = Round(
            round_id=0,
            seats=assign_seats(agents),
            world_size=len(agents) * WORKERS_PER_HOST,
            restart_count=0,
            master_addr="node-0",
            master_port=20_000,
            reason="",
        )
        self.now, self.port, self.incarnations = 0.0, 20_000, list(current.seats)
        self.state = IterationState(round_id=0, world_size=current.world_size)
        self.iterations = Iterations(self.state, current, now=0.0)

    def report(self, incarnation: str, report: InprocessReport) -> None:
        """Deliver a report, do what follows, and tell all agents if anything did."""
        self.iterations.reported(incarnation, report, now=self.now)
        is_news = False
        while True:
            record = self.iterations.decide(self.address, now=self.now)
            if record is None or isinstance(record, GiveUp | Wait):
                break
            self.state.apply(record)
            self.iterations.noted(record, now=self.now)
            is_news = True
        if is_news:
            for told in self.incarnations:
                self.iterations.roster.directive_for(told, self.state)

    def address(self, _leader: str) -> tuple[str, int]:
        """Return another port for each iteration."""
        self.port += 1
        return "node-0", self.port

    def enter(self, iteration: int, gone: Sequence[Interruption] = ()) -> None:
        """Let every host enter; some workers of the last one may be gone."""
        last = self.incarnations[-1]
        entered = InprocessReport(iteration=iteration, step=InprocessStep.ENTERED, spec=SPEC)
        for incarnation in self.incarnations[:-1]:
            self.report(incarnation, entered)
        self.report(
            last,
            InprocessReport(
                iteration=iteration, step=InprocessStep.ENTERED, spec=SPEC, terminated=tuple(gone)
            ),
        )


def interruption(local_rank: int = 0) -> Interruption:
    return Interruption(
        local_rank=local_rank, kind=InterruptionKind.TERMINATED, message="killed by SIGKILL"
    )


def timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1e3


def parts(ranks: int) -> dict[str, float]:
    """Return the milliseconds of each part of one restart."""
    fleet = Fleet(ranks)
    found = {"enter and begin": timed(lambda: fleet.enter(0))}
    assert fleet.state.active_world_size == fleet.state.world_size
    first, fault = fleet.incarnations[-1], interruption()
    stopped = InprocessReport(
        iteration=0,
        step=InprocessStep.INTERRUPTED,
        interruptions=(fault,),
        terminated=(fault,),
    )
    found["interrupt"] = timed(lambda: fleet.report(first, stopped))
    cleaning = InprocessReport(iteration=0, step=InprocessStep.INTERRUPTED)

    def clean() -> None:
        for incarnation in fleet.incarnations[:-1]:
            fleet.report(incarnation, cleaning)

    found["hear that all clean up"] = timed(clean)
    found["enter again and begin without one"] = timed(lambda: fleet.enter(1, [fault]))
    assert fleet.state.iteration == 1, "it did not begin again"
    found["whole restart"] = sum(found.values())
    return found


def assignment(ranks: int) -> float:
    """Return the milliseconds of all rules together, with a host in a hundred gone."""
    groups = [f"host-{worker // WORKERS_PER_HOST}" for worker in range(ranks)]
    gone = set(range(1, ranks, 100 * WORKERS_PER_HOST)) - {1} if ranks > WORKERS_PER_HOST else set()
    rules = (FILL_GAPS, EIGHTS, SHIFT_RANKS, RankRule(kind=RuleKind.ACTIVE_DIVISOR, count=4))
    order = list(range(ranks))
    result: list[object] = []
    spent = timed(lambda: result.append(assign(order, gone=gone, groups=groups, rules=rules)))
    assert isinstance(result[0], Ranking)
    return spent


MEASURES = (
    "assign ranks by four rules",
    "enter and begin",
    "interrupt",
    "hear that all clean up",
    "enter again and begin without one",
    "whole restart",
)


def median_ms(name: str, ranks: int) -> float:
    """Return what one part costs at one number of ranks, in milliseconds."""
    gc.collect()
    samples = [
        assignment(ranks) if name == MEASURES[0] else parts(ranks)[name] for _ in range(SAMPLES)
    ]
    return statistics.median(samples)


QUESTIONS = by_size.questions("iteration_core", "pure core", MEASURES, SIZES, median_ms)

if __name__ == "__main__":
    by_size.main(__doc__, MEASURES, SIZES, median_ms)
