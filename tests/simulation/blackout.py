"""Worlds in which many machines lose power in one moment, and what that may cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.coordinator.core.policy import Policy
from tests.simulation import faults
from tests.simulation.cluster import Cluster
from tests.simulation.plan import RUN, Kind, Plan

# However many machines are lost at once.
ROUNDS_MAX = 2
# Of each round: one push that the last one is over, one assignment, and little else.
PUSHES_PER_AGENT_MAX = 2.1
# After this every lease and every grace is over, and the others train.
SETTLED_S = 15.0


def draw(seed: int) -> tuple[Plan, int]:
    """Return a calm world of this seed, and how many of its machines are lost."""
    random = Random(f"{seed}/blackout")
    hosts = random.choice([6, 12, 24])
    lost = random.randint(2, hosts // 2)
    has_standbys = random.random() < 0.4
    common: dict[str, Any] = {
        "coordinator": "head:1",
        "run_id": RUN,
        "program": Program("script", "train.py"),
        "min_nodes": hosts - lost if has_standbys else random.randint(1, hosts - lost),
        "max_nodes": hosts - lost if has_standbys else hosts,
        "max_restarts": random.choice([0, 1]),
        "join_timeout": 300.0,
        "last_call": 1.0,
        "shutdown_timeout": random.choice([0.2, 2.0]),
    }
    plan = replace(
        Plan.draw(seed),
        kind=Kind.COORDINATOR,  # none of the faults of other worlds
        configs=tuple(AgentConfig(**common, nproc_per_node=1) for _ in range(hosts)),
        policy=Policy(),
        delay_max_s=random.choice([0.02, 0.3]),
        is_sick=False,
        fails=0.0,
        finishes_early=0.0,
        spawn_fails=0.0,
        conduct=None,
    )
    return plan, lost


class Blackout(Cluster):
    """A cluster that trains until machines lose power, and trains on."""

    def __init__(self, seed: int) -> None:
        plan, self._lost = draw(seed)
        super().__init__(plan)

    def run(self) -> None:
        """Live the whole life of this world."""
        for host in self.hosts:
            host.habits = self.plan.habits(is_over=True)
            self.clock.after(self._random.uniform(0.0, 1.0), None, host.start_agent)
        self.head.start()
        self._calm(lambda: self.is_training, "train")
        self.clock.run(until=self.clock.now + self._random.uniform(1.0, 3.0))
        rounds, pushes = len(self.checker.rounds), self.checker.pushes
        self._black_out()
        self.clock.run(until=self.clock.now + SETTLED_S)
        self._expect(len(self.checker.rounds) - rounds, self.checker.pushes - pushes)
        self._finish()
        self._calm(self._is_over, "end")
        self._expect_verdict()

    def _black_out(self) -> None:
        """Cut machines off; perhaps workers elsewhere fail because of it, a while later."""
        lost = self._random.sample(self.hosts, k=self._lost)
        for host in lost:
            faults.lose_power(self, host, 10 * SETTLED_S)
        self.clock.note("world", "BLACKOUT", [host.name for host in lost])
        shadow = self.checker.shadow
        assert shadow is not None
        seated = {incarnation.split(".")[0] for incarnation in shadow.group_ranks()}
        if seated.isdisjoint(host.name for host in lost) or self._random.random() < 0.3:
            return  # no worker elsewhere has lost a peer, or none notices
        first = self._random.uniform(0.0, 3.5)
        victims = [host for host in self.hosts if host not in lost]
        for host in self._random.sample(victims, k=self._random.randint(1, len(victims))):
            delay = first + self._random.uniform(0.0, 0.05)
            self.clock.after(delay, None, partial(faults.fail_workers, host))

    def _expect(self, rounds: int, pushes: int) -> None:
        shadow = self.checker.shadow
        assert shadow is not None
        assert self.is_training, f"the others do not train: {self._state()}"
        assert rounds <= ROUNDS_MAX, f"{rounds} rounds for one loss"
        limit = PUSHES_PER_AGENT_MAX * ROUNDS_MAX * len(self.hosts)
        assert pushes <= limit, f"{pushes} pushes for one loss"
        assert shadow.restarts_used == 0, "a machine's death was charged"
