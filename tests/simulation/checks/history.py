"""The decisions of a world as its readers see them, checked for an order that explains them.

A reader asks each coordinator of a world now and then how far the run is and who leads. One that
stands still answers when it goes on: such a call takes long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.chaos.decisions import Began, Leads, Progress, RunModel, TermModel
from tests.chaos.history import Model, Operation, contradiction
from tests.simulation.checks.checker import Listener
from tests.simulation.failover.process import Coordinator
from tests.simulation.plan import RUN

if TYPE_CHECKING:
    from drumbeat.model import Assignment
    from tests.simulation.machines.coordinator import Life
    from tests.simulation.machines.host import Agent
    from tests.simulation.world import World

ASKS_S = 0.7


class Histories(Listener):
    """What the readers of one world were answered, and which rounds its agents started."""

    def __init__(self, world: World) -> None:
        self._world, self._clock = world, world.clock
        self._runs: dict[int, list[Operation[Any]]] = defaultdict(list)
        self._terms: list[Operation[Any]] = []
        self._unanswered: dict[Any, float] = {}
        world.checker.listeners.append(self)
        self._clock.after(0.0, None, self._ask_again)

    def on_started(self, agent: Agent, assignment: Assignment) -> None:
        """An agent starts a round."""
        shadow = self._world.checker.shadow
        if shadow is not None:
            began = Began(assignment.round_id, assignment.restart_count)
            self._runs[shadow.generation].append(
                Operation(agent.name, -math.inf, self._clock.now, began)
            )

    def problem(self) -> str:
        """Return why there is no order of all answers; empty: there is one."""
        checked: list[tuple[str, Model[Any, Any], list[Operation[Any]]]] = [
            ("led", TermModel(), self._terms)
        ]
        checked += [("was decided", RunModel(), answers) for answers in self._runs.values()]
        for what, model, operations in checked:
            if (conflict := contradiction(model, operations)) is not None:
                return f"no order explains who or what {what}: {conflict}"
        return ""

    @property
    def size(self) -> int:
        """How many operations there are."""
        return len(self._terms) + sum(map(len, self._runs.values()))

    def _ask_again(self) -> None:
        self.ask()
        self._clock.after(ASKS_S, None, self._ask_again)

    def ask(self) -> None:
        """Ask all coordinators."""
        for machine in self._world.head.machines:
            life = getattr(machine.process, "life", machine.process)
            if life is None or not getattr(life, "is_serving", True) or life.actor.is_dead:
                continue
            called_at = self._unanswered.setdefault(life, self._clock.now)
            if any(actor.is_stalled for actor in machine.process.actors):
                continue
            del self._unanswered[life]
            if not isinstance(machine, Coordinator):
                self._answer(life, called_at)
            # A machine that was suspended cannot know how late it is.
            elif not machine.is_excused and _is_leading(machine):
                self._answer(life, called_at)
                leads = Leads(life.term, machine.address)
                self._terms.append(Operation("reader", called_at, self._clock.now, leads))

    def _answer(self, life: Life[Any], called_at: float) -> None:
        state = life.runs.find(RUN)
        if state is None:
            return
        progress = Progress(
            round_id=-1 if state.round is None else state.round.round_id,
            restarts=0 if state.round is None else state.round.restart_count,
            failures=state.failures_count,
            events=state.events_count,
            verdict="" if state.verdict is None else state.verdict.reason,
        )
        self._runs[state.generation].append(
            Operation("reader", called_at, self._clock.now, progress)
        )


def _is_leading(machine: Coordinator) -> bool:
    process = machine.process
    return process is not None and process.candidate.core.is_leading(now=machine.now)
