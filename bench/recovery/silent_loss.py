"""What do many machines cost that fall silent in one moment, in the coordinator's core?

Pure code in virtual time: every agent beats at an instant of its own, some are never
heard again, and rounds and pushes are counted until the others run a round.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from bench.figures import OURS, OneOfEach, one_of_each
from bench.scale.core_cost import RUN, Fleet
from drumbeat.coordinator.core.effects import Direct
from drumbeat.coordinator.core.events import DeadlineReached
from drumbeat.coordinator.core.model import RunSpec
from drumbeat.model import Assignment, GroupState

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE, LOST = 10_000, 300
TRAINED_S, WATCHED_S = 3.0, 10.0


class Agents:
    """An elastic fleet that does what it is told, by the heartbeat after."""

    def __init__(self, size: int) -> None:
        self.fleet = Fleet(size)
        self.fleet.spec = RunSpec(agents_min=1, agents_max=size, last_call_s=0.0)
        self.pushes = self.rounds = 0
        self._states = [GroupState.IDLE] * size
        self._rounds = [-1] * size
        self._beats = [(index / size, index) for index in range(size)]
        for index in range(size):
            self._take(self.fleet.registry.handle(self.fleet.opened(index), now=0.0))

    def live(self, until: float, silent: frozenset[int] = frozenset()) -> None:
        """Let time pass; the silent ones say nothing."""
        fleet = self.fleet
        while self._beats[0][0] <= until:
            at, index = self._beats[0]
            due = fleet.registry.next_deadline()
            if due is not None and due <= at:
                fleet.now = max(fleet.now, due)
                self._take(fleet.registry.handle(DeadlineReached(), now=fleet.now))
                continue
            heapq.heapreplace(self._beats, (at + 1.0, index))
            fleet.now = max(fleet.now, at)
            if index not in silent:
                fleet.round_id = self._rounds[index]
                beat = fleet.beat_of(index, self._states[index])
                self._take(fleet.registry.handle(beat, now=fleet.now))

    def _take(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if not isinstance(effect, Direct):
                continue
            self.pushes += 1
            index = int(effect.session_id.partition("/")[0].removeprefix("node-"))
            match effect.state:
                case Assignment(round_id=round_id):
                    self._states[index], self._rounds[index] = GroupState.RUNNING, round_id
                    self.fleet.port = max(self.fleet.port, effect.master_port_spent + 1)
                case _:
                    self._states[index] = GroupState.IDLE


def silent_loss(_side: str) -> OneOfEach:
    """Return the rounds that the loss of these machines makes, and the pushes of an agent."""
    agents = Agents(SIZE)
    agents.live(TRAINED_S)
    state = agents.fleet.registry.runs[RUN].state
    before, agents.pushes = state.next_round_id, 0
    agents.live(TRAINED_S + WATCHED_S, frozenset(range(SIZE // 2, SIZE // 2 + LOST)))
    assert state.round is not None
    assert len(state.round.seats) == SIZE - LOST, "the others do not run a round"
    return {"rounds": state.next_round_id - before, "pushes": agents.pushes / SIZE}


OF = f"pure core, {SIZE:,} agents, {LOST} fall silent at once"
QUESTIONS = one_of_each(silent_loss).questions(
    "silent_loss",
    (("rounds", "rounds", f"{OF}: rounds"), ("pushes", "per agent", f"{OF}: pushes")),
    OURS,
)
