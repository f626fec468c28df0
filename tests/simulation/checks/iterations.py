"""What must hold of restarts in process, checked against the journal and what workers do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drumbeat.coordinator.core.inprocess.records import (
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
    IterationPhase,
)
from drumbeat.inprocess import InterruptionKind, IterationBegin, IterationComplete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumbeat.agent.core import effects as agent_fx
    from drumbeat.agent.core.model import WorkerStep
    from drumbeat.coordinator.core.inprocess.records import IterationRecord, IterationState
    from drumbeat.coordinator.core.model import Round
    from tests.simulation.checks.checker import Listener
    from tests.simulation.machines.wrapped import Program

WorkerId = tuple[str, int, int]
"""Incarnation, round, local rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An iteration as it was journaled; workers by rank."""

    order: tuple[WorkerId, ...]
    active_world_size: int
    master: tuple[str, int]


@dataclass(slots=True)
class Deeds:
    """What one worker has done."""

    entered: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    has_left: bool = False
    has_exited: bool = False
    """It left having failed at nothing."""


def worker_id(program: Program) -> WorkerId:
    """Return who a program is."""
    return program.process.owner, program.process.round_id, program.local_rank


class IterationChecker:
    """Watches the iterations of all rounds. Raises ``AssertionError`` for a broken promise."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self.begun: dict[tuple[int, int], Begun] = {}
        self.completed: set[tuple[int, int]] = set()
        self.interrupted: set[tuple[int, int]] = set()
        self._deeds: dict[WorkerId, Deeds] = {}
        self._sent_away: set[WorkerId] = set()

    def deeds(self, worker: WorkerId) -> Deeds:
        """Return what a worker has done so far."""
        return self._deeds.setdefault(worker, Deeds())

    # The coordinator.

    def on_journaled(self, record: IterationRecord, state: IterationState, current: Round) -> None:
        """A record is on the disk, and folded."""
        key = record.round_id, record.iteration
        assert record.round_id == current.round_id, "an iteration of another round"
        match record:
            case IterationBegan():
                self._on_began(key, record, state, current)
            case IterationInterrupted():
                assert key not in self.completed, f"{key} was completed, and is interrupted"
                self.interrupted.add(key)
            case IterationCompleted():
                begun = self.begun[key]
                is_over = all(self.deeds(worker).has_left for worker in begun.order)
                is_broken = key in self.interrupted and not is_over
                assert not is_broken, f"{key} was interrupted, and is completed"
                for worker in begun.order[: begun.active_world_size]:
                    deeds = self.deeds(worker)
                    is_done = deeds.has_exited or record.iteration in deeds.completed
                    assert is_done, f"{key} is complete, but not at {worker}"
                self.completed.add(key)

    def _on_began(
        self,
        key: tuple[int, int],
        record: IterationBegan,
        state: IterationState,
        current: Round,
    ) -> None:
        assert key not in self.interrupted, f"iteration {key} begins after it was interrupted"
        named = [
            (incarnation, current.round_id, local_rank)
            for incarnation, seat in current.seats.items()
            for local_rank in range(seat.agent.local_world_size)
        ]
        order = tuple(named[worker] for worker in state.order)
        assert len(set(order)) == len(order) > 0, "no permutation"
        assert 0 < state.active_world_size <= len(order), "active ones"
        earlier = [i for of_round, i in self.begun if of_round == key[0]]
        if earlier:
            before = self.begun[key[0], max(earlier)]
            assert set(order) <= set(before.order), f"{key}: who was gone takes part again"
        for worker in order:
            assert key[1] in self.deeds(worker).entered, f"{key} begins before {worker} entered"
        master = record.master_addr, record.master_port
        self.begun[key] = Begun(
            order=order, active_world_size=state.active_world_size, master=master
        )

    def on_success(self, state: IterationState | None) -> frozenset[WorkerId] | None:
        """The run succeeds; return whose end counts, ``None`` if everybody's does."""
        if state is None or state.phase is IterationPhase.NONE:
            return None
        key = state.round_id, state.iteration
        assert state.phase is IterationPhase.COMPLETED, f"success, but {key} is {state.phase}"
        return frozenset(self.begun[key].order)

    # Agents.

    def on_order(self, incarnation: str, effect: agent_fx.WorkerOrder) -> None:
        """An agent tells a worker what to do."""
        worker = incarnation, effect.worker.round_id, effect.worker.local_rank
        key = effect.worker.round_id, effect.iteration
        match effect.kind:
            case IterationBegin():
                assert worker not in self._sent_away, f"{worker} was sent away and begins {key}"
                assert worker in self.begun[key].order, f"{worker} has no rank in {key}"
            case IterationComplete():
                assert key in self.completed, f"nobody completed {key}"
            case _:
                pass

    def on_sent_away(self, incarnation: str, effect: agent_fx.SignalWorkers) -> None:
        """An agent ends a worker that takes no part any more."""
        if effect.local_rank is not None:
            self._sent_away.add((incarnation, effect.round_id, effect.local_rank))

    # Workers.

    def on_step(self, program: Program, step: WorkerStep) -> None:
        """A worker says something."""
        deeds = self.deeds(worker_id(program))
        assert not deeds.has_left, "a worker that has left speaks"
        match step.kind:
            case "entered":
                deeds.entered.add(step.iteration)
            case "completed":
                deeds.completed.add(step.iteration)
            case "terminated":
                deeds.has_left = True
                assert step.interruption is not None, "it says why"
                deeds.has_exited = step.interruption.kind is InterruptionKind.EXITED
            case _:
                pass

    def on_begun(self, program: Program, begin: IterationBegin) -> None:
        """A worker is about to call the function, or to stand by."""
        worker, iteration = worker_id(program), program.iteration
        key = worker[1], iteration
        journaled = self.begun[key]
        deeds = self.deeds(worker)
        assert iteration not in deeds.begun, f"{worker} begins {key} twice"
        assert not deeds.has_left, f"{worker} has left and begins {key}"
        deeds.begun.add(iteration)
        active = journaled.active_world_size
        rank = journaled.order.index(worker)
        told = (
            begin.seats[0].rank,
            begin.world_size,
            begin.seats[0].active_rank,
            begin.active_world_size,
            (begin.master_addr, begin.master_port),
        )
        assert told == (
            rank,
            len(journaled.order),
            rank if rank < active else None,
            active,
            journaled.master,
        ), f"{worker} begins another {key} than the journal's: {told}"
        for listener in self._listeners:
            listener.on_begun(program, begin)

    def on_completed(self, program: Program) -> None:
        """A function has returned."""
        assert program.iteration in self.deeds(worker_id(program)).begun, "returns from nowhere"

    def on_interrupted(self, program: Program) -> None:
        """A worker is told that its iteration can't go on."""
        of_round, iteration = program.process.round_id, program.iteration
        assert any(r == of_round and i >= iteration for r, i in self.interrupted), (
            f"nobody interrupted iteration {iteration} of round {of_round}"
        )

    def on_all_completed(self, program: Program) -> None:
        """A worker's call of the wrapper returns."""
        key = program.process.round_id, program.iteration
        assert key in self.completed, f"nobody completed {key}"
