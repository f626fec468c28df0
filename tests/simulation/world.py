"""One world from its seed to its end: chaos, then calm, then success; checked all the way."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.journal import batches, layout
from drumbeat.coordinator.journal.etcd import journal
from drumbeat.model import GroupState
from tests.simulation import faults, steering, strangers
from tests.simulation.checks.checker import Checker
from tests.simulation.checks.history import Histories
from tests.simulation.clock import Clock
from tests.simulation.failover.coordinators import ElectedCoordinators
from tests.simulation.machines.coordinator import LoneCoordinator
from tests.simulation.machines.host import Agent, Host
from tests.simulation.machines.network import KEEPALIVE_FAILOVER_S, KEEPALIVE_S, Network
from tests.simulation.plan import Kind, Plan

T = TypeVar("T")

# Virtual seconds within which a healed world has to do what it should: the
# longest waits of a plan one after the other, and some room.
CALM_S = 240.0
TICK_S = 0.25
# After the last fault: until a lease is over that has just begun, and another coordinator leads.
SETTLED_S = 15.0


async def _at_once(work: Callable[..., T], *args: Any) -> T:
    """Do what takes no time here, where there are no threads."""
    return work(*args)


class World:
    """One coordinator with a disk, or several with etcd; hosts, and a network between them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = Clock(plan.seed)
        keepalive_s = KEEPALIVE_S if plan.several is None else KEEPALIVE_FAILOVER_S
        self.network = Network(self.clock, delay_max_s=plan.delay_max_s, keepalive_s=keepalive_s)
        self.checker = Checker()
        make_head: Any = LoneCoordinator if plan.several is None else ElectedCoordinators
        self.head = make_head(self.clock, self.network, self.checker, plan)
        self.hosts = [
            Host(f"h{number}", config, head=self.head, checker=self.checker)
            for number, config in enumerate(plan.configs)
        ]
        self.histories = Histories(self)
        self.is_healed = False
        self.is_finishing = False
        self.is_broken = False  # a core has raised, which it may do once
        self._healed_at = 0.0
        self._random = self.clock.random("cluster")

    def run(self) -> None:
        """Live the whole life of this world."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "asyncio", SimpleNamespace(to_thread=_at_once))
            if self.plan.several is not None and self.plan.several.is_cramped:
                patch.setattr(layout, "PART_BYTES_MAX", 300)
                patch.setattr(batches, "BYTES_MAX", 400)
                patch.setattr(batches, "OPERATIONS_MAX", 3)
                patch.setattr(journal, "COMPACT_WRITES", 7)
            self.live()
            assert not (problem := self.histories.problem()), problem

    def live(self) -> None:
        """Live it, all that takes no time here being so."""
        self.clock.note("world", "PLAN", self.plan)
        for host in self.hosts:
            host.habits = self.plan.habits(is_over=False)
            host.conduct = self.plan.conduct
            host.asks = self.clock.random(f"{host.name} asks").random() < self.plan.asks
            host.fails_to_spawn = lambda random: random.random() < self.plan.spawn_fails
            if self.plan.kind is not Kind.COORDINATOR:  # there no round may end
                random = self.clock.random(f"{host.name} checks")
                host.is_checked, share = random.random() < 0.4, random.choice([0.0, 0.3, 0.9])
                host.problem = partial(problem, share)
            is_late = self.plan.kind is Kind.CHAOS and self._random.random() < 0.2
            delay = self._random.uniform(0.0, 20.0 if is_late else 1.0)
            self.clock.after(delay, None, host.start_agent)
        self.head.start()
        faults.schedule(self)
        strangers.schedule(self, self.clock.random("strangers"))
        steering.schedule(self, self.clock.random("operator"))
        self.clock.run(until=self.clock.now + self.plan.chaos_s)
        self._heal()
        self._calm(lambda: self.checker.is_ended or self.is_training, "train on")
        self._calm(self._is_reported, "have every record")
        if self.plan.kind is Kind.COORDINATOR:
            self._expect_unharmed()
        self._finish()
        self._calm(self._is_over, "end")
        self._expect_verdict()

    # Phases.

    def instants(self, random: Random, *, mean_s: float) -> Iterator[float]:
        """Yield when something happens now and then, as long as there are faults."""
        end = self.clock.now + self.plan.chaos_s
        instant = self.clock.now + random.uniform(0.0, 20.0)
        while instant < end:
            yield instant
            instant += random.expovariate(1 / mean_s)

    def _heal(self) -> None:
        self.clock.note("world", "HEALS")
        self.is_healed = True
        self.head.heal()
        self.network.heal()
        for host in self.hosts:
            if host.agent is not None:
                self.clock.resume(host.agent.actor, host.agent.random)
            host.habits = self.plan.habits(is_over=True)
            host.conduct = self.plan.conduct.well() if self.plan.conduct is not None else None
            host.fails_to_spawn = lambda _random: False
            host.problem = partial(problem, 0.0)
        self._healed_at = self.clock.now + (SETTLED_S if self.plan.several else 0.0)
        if self.plan.kind is not Kind.COORDINATOR:
            steering.lift_all(self)
            steering.end_rehearsal(self)

    def _calm(self, is_done: Callable[[], bool], what: str) -> None:
        """Run until it is done; agents that have ended are started again while the run lives."""
        deadline = self.clock.now + CALM_S
        while not is_done():
            assert self.clock.now < deadline, f"the cluster does not {what}: {self._state()}"
            self.checker.expect_no_notice_after(self._healed_at, now=self.clock.now)
            if not self.checker.is_ended:
                for host in self.hosts:
                    host.start_agent()
            self.clock.run(until=self.clock.now + TICK_S)

    def _finish(self) -> None:
        """Tell all workers, and all that follow, to end well."""
        self.clock.note("world", "FINISHES")
        self.is_finishing = True
        for host in self.hosts:
            host.finish_workers()

    @property
    def is_training(self) -> bool:
        """Whether every participant holds the workers of the current round."""
        shadow = self.checker.shadow
        if shadow is None or shadow.phase is not Phase.RUNNING or shadow.round is None:
            return False
        agents = {agent.name: agent for agent in self._agents()}
        for incarnation in shadow.round.seats:
            if incarnation in shadow.succeeded or incarnation in shadow.excused:
                continue  # done or given up, and perhaps gone already
            agent = agents.get(incarnation)
            beat = agent.core.workers.beat(0) if agent is not None else None
            if beat is None or beat.round_id != shadow.round.round_id:
                return False
            if beat.state not in {GroupState.RUNNING, GroupState.SUCCEEDED}:
                return False
        return True

    def _agents(self) -> list[Agent]:
        return [host.agent for host in self.hosts if host.agent is not None]

    def _is_reported(self) -> bool:
        return self.checker.is_ended or not self.checker.uncounted(self._agents())

    def _is_over(self) -> bool:
        return self.checker.is_ended and not self._agents()

    def _expect_unharmed(self) -> None:
        checker = self.checker
        workers = sum(config.nproc_per_node for config in self.plan.configs)
        assert len(checker.rounds) == 1, "the coordinator's faults ended a round"
        assert checker.spawned == workers, "the coordinator's faults restarted workers"
        assert checker.stops == 0, "the coordinator's faults stopped workers"
        assert not checker.iterations.interrupted, "the coordinator's faults interrupted workers"

    def _expect_verdict(self) -> None:
        shadow = self.checker.shadow
        assert shadow is not None
        assert shadow.verdict is not None
        if self.plan.kind is Kind.COORDINATOR:
            assert shadow.verdict.is_success, shadow.verdict.reason

    def _state(self) -> str:
        shadow = self.checker.shadow
        run = f"{shadow.phase}, {shadow.reason}" if shadow is not None else "no run"
        agents = ", ".join(
            f"{agent.name} {agent.core.workers.state} of {agent.core.workers.beat(0).round_id}"
            for agent in self._agents()
        )
        return f"run: {run}; agents: {agents or 'none'}"


def problem(share: float, random: Random) -> str:
    """Return what a check finds; in this share of cases something is wrong."""
    return "no fabric" if random.random() < share else ""
