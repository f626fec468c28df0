"""What does an event cost in the coordinator's core, and does it grow with the agents?

Pure code only: no network, no journal, no clock in the core. Prints the median
microseconds of each kind of event at several sizes of a run, and how they grow
from the smallest size to the largest; a whole round is given per agent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.scale.by_size import Costs
from drumbeat.coordinator.core.effects import TellMore
from drumbeat.coordinator.core.events import (
    BeatReceived,
    DeadlineReached,
    Event,
    FailureReported,
    SessionClosed,
    SessionOpened,
    TurnCame,
)
from drumbeat.coordinator.core.model import AgentIdentity, Beat, FailureRecord, RunSpec, WorkerRanks
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.model import GroupState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drumbeat.coordinator.core.effects import Effect

RUN = "run"
SIZES = (10, 100, 1_000, 10_000)
SAMPLES = 2_000
ROUNDS = 5
LEADER_PORT = 20_000
# The pace stays as it is: its changes are rare, and linear on purpose. There is room for any size.
POLICY = Policy(agents_at_base_pace=10**9, agents_max=10**6, workers_max=10**7)


class Fleet:
    """``size`` agents in one run, and the registry they talk to."""

    def __init__(self, size: int, *, room: int = 0, run_id: str = RUN) -> None:
        # Not from 0 on, as no coordinator's clock is: a run waits until 0 for its first round.
        self.size, self.now, self.round_id, self.port = size, 1.0, 0, LEADER_PORT
        self.registry, self.run_id = Registry(POLICY), run_id
        self.spec = RunSpec(agents_min=size + room, agents_max=size + room, restarts_max=10**6)

    def name(self, index: int) -> str:
        """Return the name of an agent, its host and its incarnation."""
        return f"{self.run_id}-node-{index}"

    def opened(
        self, index: int, life: int = 0, state: GroupState = GroupState.IDLE
    ) -> SessionOpened:
        """Return the first message of an agent's session."""
        name = self.name(index)
        return SessionOpened(
            run_id=self.run_id,
            spec=self.spec,
            session_id=f"{name}/{life}",
            agent=AgentIdentity(
                incarnation=name, host=name, address=name, role="default", local_world_size=8
            ),
            beat=self.beat(state),
        )

    def beat(self, state: GroupState, **more: Any) -> Beat:
        """Return an agent's state in the present round; ``more`` as in ``Beat``."""
        return Beat(
            state=state,
            round_id=None if state is GroupState.IDLE else self.round_id,
            master_port=self.port,
            workers_alive=8,
            **more,
        )

    def beat_of(self, index: int, state: GroupState, **more: Any) -> BeatReceived:
        """Return a heartbeat."""
        name, beat = self.name(index), self.beat(state, **more)
        return BeatReceived(run_id=self.run_id, session_id=f"{name}/0", incarnation=name, beat=beat)

    def handle(self, event: Event) -> list[Effect]:
        """Deliver an event, and the turns that a large run asks for to tell its members."""
        effects = self.registry.handle(event, now=self.now)
        for effect in effects:  # with those of the turns
            if isinstance(effect, TellMore):
                turn = TurnCame(run_id=effect.run_id)
                effects += self.registry.handle(turn, now=self.now)
        return effects

    def join_all(self) -> None:
        """Let all agents join."""
        for index in range(self.size):
            self.handle(self.opened(index))

    def timed(self, events: Iterable[Event]) -> list[float]:
        """Return how long each event took, in microseconds."""
        clock, handle = time.perf_counter, self.handle
        samples = []
        for event in events:
            begun = clock()
            handle(event)
            samples.append((clock() - begun) * 1e6)
        return samples


def joins(size: int) -> list[float]:
    """Time the last joins of a run that gathers ``size`` agents and waits for one more."""
    fleet = Fleet(size, room=1)
    samples = fleet.timed([fleet.opened(index) for index in range(size)])
    return samples[-SAMPLES:]


def beats(size: int) -> list[float]:
    """Time heartbeats of a running round."""
    fleet = Fleet(size)
    fleet.join_all()
    return fleet.timed(
        [fleet.beat_of(index % size, GroupState.RUNNING) for index in range(SAMPLES)]
    )


def portless_beats(size: int) -> list[float]:
    """Time heartbeats while a round waits for its leader to reserve a port."""
    fleet = Fleet(size)
    fleet.port = 0
    fleet.join_all()
    return fleet.timed([fleet.beat_of(index % size, GroupState.IDLE) for index in range(SAMPLES)])


def successes(size: int) -> list[float]:
    """Time agents that succeed, all but the last, which ends the run."""
    fleet = Fleet(size)
    fleet.join_all()
    return fleet.timed(
        [fleet.beat_of(index, GroupState.SUCCEEDED) for index in range(min(SAMPLES, size - 1))]
    )


def records(size: int) -> list[float]:
    """Time failure records, far more than are kept."""
    fleet = Fleet(size)
    fleet.join_all()
    worker = WorkerRanks(rank=0, local_rank=0, group_rank=0, role_rank=0, role="default")
    events: list[Event] = [
        FailureReported(
            run_id=RUN,
            request_id=index,
            record=FailureRecord(
                incarnation=fleet.name(index % size),
                sequence=index // size + 1,
                round_id=0,
                host="node",
                worker=worker,
                age_s=(index * 7919 % 1000) / 1000,
            ),
        )
        for index in range(2 * SAMPLES)
    ]
    return fleet.timed(events)[SAMPLES:]


def reconnects(size: int) -> list[float]:
    """Time a broken stream and the session that follows, as one."""
    fleet = Fleet(size)
    fleet.join_all()
    events: list[Event] = []
    for sample in range(SAMPLES):
        index, life = sample % size, sample // size
        name = fleet.name(index)
        events.append(SessionClosed(run_id=RUN, session_id=f"{name}/{life}", incarnation=name))
        events.append(fleet.opened(index, life + 1, GroupState.RUNNING))
    samples = fleet.timed(events)
    return [sum(samples[at : at + 2]) for at in range(0, len(samples), 2)]


def returns_with_a_failure(size: int) -> list[float]:
    """Time agents that come back to a restarted coordinator while a failure is undecided."""
    fleet = Fleet(size)
    fleet.join_all()
    state = fleet.registry.runs[RUN].state
    fleet.registry = Registry(POLICY)
    fleet.registry.take_over(state, now=fleet.now)
    fleet.handle(fleet.opened(0, 1, GroupState.FAILED))
    last = min(size - 1, SAMPLES)
    return fleet.timed([fleet.opened(index, 1, GroupState.RUNNING) for index in range(1, last)])


def idle_deadlines(size: int) -> list[float]:
    """Time deadlines that find nothing to do because every lease was renewed."""
    fleet = Fleet(size)
    fleet.join_all()
    samples = []
    for _ in range(ROUNDS):
        fleet.now += 4.0
        for index in range(size):
            fleet.handle(fleet.beat_of(index, GroupState.RUNNING))
        samples.append(sum(fleet.timed([DeadlineReached()])) / size)
    return samples


def rounds(size: int) -> list[float]:
    """Time a failure that restarts every agent, in microseconds per agent."""
    fleet = Fleet(size)
    fleet.join_all()
    samples = []
    for _ in range(ROUNDS):
        fleet.port += 1
        for index in range(size):
            fleet.handle(fleet.beat_of(index, GroupState.RUNNING))
        samples.append(fleet.timed([fleet.beat_of(size // 2, GroupState.FAILED)])[0] / size)
        fleet.round_id += 1
    return samples


COSTS = Costs(
    "us",
    "agents",
    {
        "join": joins,
        "heartbeat": beats,
        "heartbeat, round waits for a port": portless_beats,
        "success": successes,
        "failure record": records,
        "session break and return": reconnects,
        "return, a failure undecided": returns_with_a_failure,
        "deadline, leases renewed (per agent)": idle_deadlines,
        "whole restart (per agent)": rounds,
    },
    SIZES,
)
QUESTIONS = COSTS.questions("core_cost", "pure core")

if __name__ == "__main__":
    COSTS.main(__doc__)
