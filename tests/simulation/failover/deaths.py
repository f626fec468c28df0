"""The leader dies, and with it one of two agents for which a third one stands by."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.cluster import TICK_S
from tests.simulation.failover.world import FailoverCluster
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE, TTL_S = 2, 3.0
# An agent that dies this long before the leader is not given up by then.
LEAD_S = 0.4
WITHIN_S = 60.0


class DeathsTogether(FailoverCluster):
    """Nothing else happens in this world."""

    replaced_after_s = 0.0  # when the next round began, counted from when the next leader led

    def plan_of(self, seed: int) -> Plan:
        """Return a plan of three hosts, of which two train, and of nothing that disturbs them."""
        self.extra = dataclasses.replace(self.extra, ttl_s=TTL_S, sloppiness=0.0)
        plan = Plan.draw(seed)
        config = dataclasses.replace(
            plan.configs[0],
            min_nodes=SIZE,
            max_nodes=SIZE,
            last_call=0.0,
            join_timeout=300.0,
            coordinator_grace=60.0,
        )
        return dataclasses.replace(
            plan,
            configs=(config,) * (SIZE + 1),
            fails=0.0,
            finishes_early=0.0,
            spawn_fails=0.0,
            is_sick=False,
            conduct=None,
            delay_max_s=0.05,
        )

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
