"""Worlds of one story each: many machines, or a leader and an agent, are lost at one moment."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.coordinator.core.policy import Policy
from tests.simulation import faults
from tests.simulation.plan import RUN, Kind, Plan
from tests.simulation.world import TICK_S, World

# However many machines are lost at once.
ROUNDS_MAX = 2
# Of each round: one push that the last one is over, one assignment, and little else.
PUSHES_PER_AGENT_MAX = 2.1
# After this every lease and every grace is over, and the others train.
SETTLED_S = 15.0

# How many agents train when the leader dies with one of them; and how long it has led for etcd.
TRAINING, TTL_S = 2, 3.0
# An agent that dies this long before the leader is not given up by then.
LEAD_S = 0.4
WITHIN_S = 60.0


def draw_blackout(seed: int) -> tuple[Plan, int]:
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
        Plan.draw(seed).in_peace(),
        kind=Kind.COORDINATOR,  # none of the faults of other worlds
        configs=tuple(AgentConfig(**common, nproc_per_node=1) for _ in range(hosts)),
        policy=Policy(),
        delay_max_s=random.choice([0.02, 0.3]),
    )
    return plan, lost


class Blackout(World):
    """A cluster that trains until machines lose power, and trains on."""

    def __init__(self, seed: int) -> None:
        plan, self._lost = draw_blackout(seed)
        super().__init__(plan)

    def live(self) -> None:
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
        seated = {incarnation.split(".")[0] for incarnation in shadow.seats}
        if seated.isdisjoint(host.name for host in lost) or self._random.random() < 0.3:
            return  # no worker elsewhere has lost a peer, or none notices
        first = self._random.uniform(0.0, 3.5)
        victims = [host for host in self.hosts if host not in lost]
        for host in self._random.sample(victims, k=self._random.randint(1, len(victims))):
            delay = first + self._random.uniform(0.0, 0.05)
            self.clock.after(delay, None, partial(faults.fail_workers, host, exit_code=1))

    def _expect(self, rounds: int, pushes: int) -> None:
        shadow = self.checker.shadow
        assert shadow is not None
        assert self.is_training, f"the others do not train: {self._state()}"
        assert rounds <= ROUNDS_MAX, f"{rounds} rounds for one loss"
        limit = PUSHES_PER_AGENT_MAX * ROUNDS_MAX * len(self.hosts)
        assert pushes <= limit, f"{pushes} pushes for one loss"
        assert shadow.restarts_used == 0, "a machine's death was charged"


def draw_deaths(seed: int) -> Plan:
    """Return a plan of three hosts, of which two train, and of nothing that disturbs them."""
    plan = Plan.draw(seed).with_several().in_peace()
    assert plan.several is not None
    config = replace(
        plan.configs[0],
        min_nodes=TRAINING,
        max_nodes=TRAINING,
        last_call=0.0,
        join_timeout=300.0,
        coordinator_grace=60.0,
    )
    return replace(
        plan,
        configs=(config,) * (TRAINING + 1),
        several=replace(plan.several, ttl_s=TTL_S, sloppiness=0.0),
        delay_max_s=0.05,
    )


class DeathsTogether(World):
    """The leader dies, and with it one of two agents for which a third one stands by."""

    replaced_after_s = 0.0  # when the next round began, counted from when the next leader led

    def __init__(self, seed: int) -> None:
        super().__init__(draw_deaths(seed))

    def live(self) -> None:
        """Kill the leader and an agent, and wait for the next round."""
        random = self.clock.random("deaths")
        for host in self.hosts:
            host.habits = self.plan.habits(is_over=True)
            host.start_agent()
        self.head.start()
        self._wait(lambda: self.is_training)
        self.clock.run(until=self.clock.now + random.uniform(5.0, 20.0))
        seats, leader = self.checker.rounds[0].seats, self.head.leader
        assert leader is not None
        victim = random.choice([host for host in self.hosts if f"{host.name}.1" in seats])
        is_silent, term = random.random() < 0.5, leader.term
        self.clock.after(random.uniform(0.0, LEAD_S + TTL_S), None, victim.crash_agent)
        self.clock.after(LEAD_S, None, partial(leader.crash, is_silent=is_silent))
        self._wait(lambda: self.head.life is not None and self.head.life.term > term)
        led_at = self.clock.now
        self._wait(lambda: len(self.checker.rounds) == 2)
        self.replaced_after_s = self.clock.now - led_at

    def _wait(self, is_so: Callable[[], bool]) -> None:
        until = self.clock.now + WITHIN_S
        while not is_so():
            assert self.clock.now < until, self._state()
            self.clock.run(until=self.clock.now + TICK_S)
