"""One world with several coordinators."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.journal import batches, layout
from drumbeat.coordinator.journal.etcd import journal
from tests.simulation import faults as agent_faults
from tests.simulation import steering
from tests.simulation.cluster import Cluster
from tests.simulation.failover import faults
from tests.simulation.failover.heads import Heads
from tests.simulation.plan import Kind, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumbeat.coordinator.core.registry.registry import Registry

T = TypeVar("T")

# An agent of several coordinators notices sooner that one is silent.
KEEPALIVE_S = (2.0, 4.0)
# After the last fault: until a lease is over that has just begun, and another one leads.
SETTLED_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What is there besides a world's agents."""

    coordinators: int
    ttl_s: float
    sloppiness: float
    is_cramped: bool  # batches take several transactions, and history is soon forgotten

    @staticmethod
    def draw(seed: int) -> FailoverPlan:
        """Return those of this seed."""
        random = Random(f"{seed}/failover")
        return FailoverPlan(
            coordinators=random.choice([2, 2, 3]),
            ttl_s=random.choice([2.0, 3.0, 3.0, 5.0]),
            sloppiness=random.choice([0.0, 0.0, 0.02, 0.1]),
            is_cramped=random.random() < 0.4,
        )


async def _at_once(work: Callable[..., T], *args: Any) -> T:
    """Do what takes no time here, where there are no threads."""
    return work(*args)


class FailoverCluster(Cluster):
    """Several coordinators, hosts, and a network between them."""

    head: Heads

    def __init__(self, seed: int) -> None:
        self.extra = FailoverPlan.draw(seed)
        plan = self.plan_of(seed)
        addresses = ",".join(f"c{number + 1}:1" for number in range(self.extra.coordinators))
        configs = [dataclasses.replace(each, coordinator=addresses) for each in plan.configs]
        super().__init__(dataclasses.replace(plan, configs=tuple(configs)))
        self.network.keepalive_s = KEEPALIVE_S
        self.is_broken = False

    def plan_of(self, seed: int) -> Plan:
        """Return the plan of this seed."""
        return Plan.draw(seed)

    def run(self) -> None:
        """Live the whole life of this world."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "asyncio", SimpleNamespace(to_thread=_at_once))
            if self.extra.is_cramped:
                patch.setattr(layout, "PART_BYTES_MAX", 300)
                patch.setattr(batches, "BYTES_MAX", 400)
                patch.setattr(batches, "OPERATIONS_MAX", 3)
                patch.setattr(journal, "COMPACT_WRITES", 7)
            self.live()

    def live(self) -> None:
        """Live it, all that takes no time here being so."""
        super().run()

    def make_head(self, make_registry: Callable[..., Registry]) -> Heads:
        """Return the coordinators."""
        extra = self.extra
        return Heads(
            self.clock,
            self.network,
            self.checker,
            policy=replace(self.plan.policy, has_others=True),
            make_registry=make_registry,
            count=extra.coordinators,
            ttl_s=extra.ttl_s,
            sloppiness=extra.sloppiness,
        )

    def schedule(self) -> None:
        """Put all faults on the clock."""
        if self.plan.kind is Kind.CHAOS:
            agent_faults.schedule(self, self.clock.random("faults"), agent_faults.AGENT_FAULTS)
            agent_faults.schedule_blackouts(self, self.clock.random("blackouts"))
        steering.schedule(self, self.clock.random("operator"))
        faults.schedule(self, self.clock.random("failover"))

    def heal_head(self) -> None:
        """Let coordinators and etcd be well again."""
        self.head.etcd.heal()
        self.head.start()
        self.head.resume()
        self.network.heal()
        for machine in self.head.machines:
            machine.disarm()

    def _heal(self) -> None:
        super()._heal()
        self._healed_at += SETTLED_S
