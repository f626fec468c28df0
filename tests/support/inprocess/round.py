"""A round whose workers restart in process, without a run around it.

Time is a number, ports are numbers, and hosts say what a test makes them say.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec

from drumbeat.coordinator.core.inprocess.iterations import Iterations
from drumbeat.coordinator.core.inprocess.records import (
    InprocessReport,
    InprocessSpec,
    IterationBegan,
    IterationCompleted,
    IterationRecord,
    IterationState,
)
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.phases.rendezvous import GiveUp, Wait
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
)
from tests.support.world import an_agent

Decision = IterationRecord | GiveUp | Wait
KINDS: dict[str, type[IterationRecord]] = {
    kind.__name__: kind for kind in get_args(IterationRecord)
}
SPEC = InprocessSpec()
START = 1000.0

ENTERED, RUNNING = InprocessStep.ENTERED, InprocessStep.RUNNING
INTERRUPTED, COMPLETED = InprocessStep.INTERRUPTED, InprocessStep.COMPLETED


def a_round(*sizes: int, round_id: int = 0) -> Round:
    """Return a round of hosts a, b, ... with so many workers each."""
    agents = [
        an_agent(name, local_world_size=n) for name, n in zip("abcdefgh", sizes, strict=False)
    ]
    return Round(
        round_id=round_id,
        seats=assign_seats(agents),
        world_size=sum(sizes),
        restart_count=0,
        master_addr="10.a",
        master_port=20_000,
        reason="",
    )


def a_fault(
    local_rank: int = 0, kind: InterruptionKind = InterruptionKind.EXCEPTION, message: str = "oh"
) -> Interruption:
    """Return what went wrong with a worker."""
    return Interruption(local_rank=local_rank, kind=kind, message=message)


class IterationStory:
    """One round's iterations, their journal, and the clock."""

    def __init__(
        self,
        *sizes: int,
        spec: InprocessSpec = SPEC,
        watch: Callable[[Decision], None] | None = None,
    ) -> None:
        self.round, self.spec, self.now = a_round(*sizes), spec, START
        self.state = IterationState(round_id=self.round.round_id, world_size=self.round.world_size)
        self.iterations = Iterations(self.state, self.round, now=self.now)
        self.journal: list[IterationRecord] = []
        self.lost: set[str] = set()
        self.port = 30_000
        self.is_portless = False
        self.watch = watch
        self.give_up: GiveUp | None = None
        self.latest: Decision | None = None

    @property
    def names(self) -> list[str]:
        return [seat.agent.host for seat in self.round.seats.values()]

    # Events; each returns the decisions that took effect.

    def report(
        self, name: str, iteration: int, step: InprocessStep, **fields: Any
    ) -> list[Decision]:
        """Let a host report; with ``ENTERED`` it brings the spec unless one is given."""
        if step is ENTERED:
            fields.setdefault("spec", self.spec)
        return self.deliver(name, InprocessReport(iteration=iteration, step=step, **fields))

    def deliver(self, name: str, report: InprocessReport) -> list[Decision]:
        self.iterations.reported(f"{name}.1", report, now=self.now)
        return self.settle()

    def all_report(self, iteration: int, step: InprocessStep) -> list[Decision]:
        """Let all hosts that are not lost report the same."""
        done: list[Decision] = []
        for name in self.names:
            if name not in self.lost:
                done += self.report(name, iteration, step)
        return done

    def lose(self, name: str, why: str = "its lease is over") -> list[Decision]:
        self.lost.add(name)
        self.iterations.agent_lost(f"{name}.1", why)
        return self.settle()

    def advance(self, seconds: float) -> list[Decision]:
        """Let time pass, and every deadline in it be met."""
        done, end = [], self.now + seconds
        while (due := self.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            done += self.settle()
        self.now = end
        return done + self.settle()

    def restart(self) -> list[Decision]:
        """Kill the coordinator; what it knows now is what the journal says."""
        state = IterationState(round_id=self.round.round_id, world_size=self.round.world_size)
        for record in self.journal:
            state.apply(json_round_trip(record))
        assert state == self.state, "memory is not the fold of the journal"
        self.state = state
        lost = [f"{name}.1" for name in sorted(self.lost)]
        self.iterations = Iterations(self.state, self.round, lost=lost, now=self.now)
        return self.settle()

    def settle(self) -> list[Decision]:
        """Do all that follows, as a run would, and return what was decided."""
        done: list[Decision] = []
        while True:
            decision = self.latest = self.iterations.decide(self.address, now=self.now)
            self.iterations.check_invariants()
            if decision is None or isinstance(decision, GiveUp | Wait):
                if isinstance(decision, GiveUp) and decision != self.give_up:
                    self.give_up = decision
                    done.append(decision)
                return done
            self.state.apply(decision)
            self.journal.append(decision)
            self.iterations.noted(decision, now=self.now)
            self.iterations.check_invariants()
            done.append(decision)
            if self.watch is not None:
                self.watch(decision)

    def address(self, leader: str) -> tuple[str, int] | Wait:
        if self.is_portless:
            reason = f"waiting for a free port of {leader}"
            return Wait(reason=reason, agents_wanted=0, until=None)
        self.port += 1
        return self.round.seats[leader].agent.address, self.port

    def deadline(self) -> float | None:
        """Return when there is more to decide if nothing happens."""
        return self.latest.until if isinstance(self.latest, Wait) else None

    # What is seen.

    @property
    def wait(self) -> Wait:
        """What is waited for."""
        assert isinstance(self.latest, Wait), self.latest
        return self.latest

    def directive(self, name: str) -> InprocessDirective | None:
        return self.iterations.roster.directive_for(f"{name}.1", self.state)

    def begin(self, name: str) -> IterationBegin:
        """Return what a host was told when the iteration began."""
        directive = self.directive(name)
        assert directive is not None
        assert isinstance(directive.kind, IterationBegin)
        return directive.kind

    def ranks(self) -> dict[str, list[tuple[int, int | None]]]:
        """Return (rank, active rank) of each host's workers that take part."""
        return {
            name: [(seat.rank, seat.active_rank) for seat in self.begin(name).seats]
            for name in self.names
        }


def json_round_trip(record: IterationRecord) -> IterationRecord:
    """Return a record as it is read back from JSON."""
    kind = KINDS[type(record).__name__]
    return msgspec.json.decode(msgspec.json.encode(record), type=kind)


def only(decisions: Sequence[Decision]) -> Decision:
    """Return the one decision there was."""
    (decision,) = decisions
    return decision


ERROR = a_fault(message="ValueError: no loss\nmore lines")
KILLED = a_fault(kind=InterruptionKind.TERMINATED, message="SIGKILL")


def a_running_story(*sizes: int, spec: InprocessSpec = SPEC) -> IterationStory:
    """Return a story in which iteration 0 runs."""
    story = IterationStory(*sizes, spec=spec)
    assert isinstance(story.all_report(0, ENTERED)[-1], IterationBegan)
    return story


def an_interrupted_story(*sizes: int, spec: InprocessSpec = SPEC) -> IterationStory:
    """Return a story in which iteration 0 was interrupted by the first worker of host b."""
    story = a_running_story(*sizes, spec=spec)
    story.report("b", 0, INTERRUPTED, interruptions=(ERROR,))
    return story


def completed(story: IterationStory, iteration: int = 0) -> IterationCompleted:
    """Return the decision that an iteration is complete."""
    return IterationCompleted(round_id=0, iteration=iteration, at_s=story.now)


def given_up(decisions: list[Decision]) -> str:
    """Return why the round was given up, the only decision there was."""
    decision = only(decisions)
    assert isinstance(decision, GiveUp)
    return decision.reason
