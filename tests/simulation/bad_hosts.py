"""Worlds in which some hosts fail every round, checks of hosts flap, and most fail at once."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.coordinator.core.membership.exclusion import excluded_max
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import HostEvent, HostNoted, Record
from tests.simulation import faults
from tests.simulation.checks.checker import Listener
from tests.simulation.machines.processes import Habits
from tests.simulation.plan import RUN, Kind, Plan
from tests.simulation.world import World, problem

# A few of these worlds are large enough for two exclusions at once.
LARGE, HOSTS_LARGE = 0.03, 100
CHAOS_S, CHAOS_LARGE_S = 90.0, 15.0  # a large world has many events each second
BAD_FOR_S = 3.0  # after that long on average a worker of a bad host fails
SOUND = 0.2  # of these worlds have no bad host and lose none: only most fail at once
FLAPPING, UNHEALTHY = 0.3, 0.4  # of the hosts have health checks, which so often find something


def draw_bad_hosts(seed: int) -> tuple[Plan, int]:
    """Return the world of this seed, and how many of its hosts are bad."""
    random = Random(f"{seed}/bad hosts")
    hosts = HOSTS_LARGE if random.random() < LARGE else random.randint(2, 6)
    common: dict[str, Any] = {
        "coordinator": "head:1",
        "run_id": RUN,
        "program": Program("script", "train.py"),
        "min_nodes": random.randint(1, hosts),
        "max_nodes": hosts,
        "max_restarts": 10_000,
        "restart_delay_max": 0.0,
        "join_timeout": 300.0,
        "last_call": random.choice([0.0, 1.0]),
        "shutdown_timeout": 0.2,
        "exclude_after": random.randint(1, 3),
        "exclude_window": random.choice([20.0, 3600.0]),
        "exclude_for": random.choice([3.0, 30.0, 100.0]),
    }
    plan = replace(
        Plan.draw(seed).in_peace(),
        kind=Kind.WORKERS,
        configs=(AgentConfig(**common, nproc_per_node=1),) * hosts,
        policy=Policy(),
        delay_max_s=random.choice([0.02, 0.3]),
    )
    is_sound = random.random() < SOUND
    return plan, 0 if is_sound else random.randint(1, min(3, hosts))


class BadHosts(World, Listener):
    """A cluster that trains with bad hosts, until they are repaired."""

    def __init__(self, seed: int) -> None:
        plan, bad = draw_bad_hosts(seed)
        super().__init__(plan)
        self.bad = self._random.sample(self.hosts, k=bad)
        self._chaos_s = CHAOS_LARGE_S if len(self.hosts) == HOSTS_LARGE else CHAOS_S
        self.events = dict.fromkeys(HostEvent, 0)
        self.checker.listeners.append(self)

    def live(self) -> None:
        """Live the whole life of this world."""
        self.clock.note("world", "BAD", [host.name for host in self.bad])
        for host in self.hosts:
            host.habits = _fail if host in self.bad else self.plan.habits(is_over=True)
            host.is_checked = self._random.random() < FLAPPING
            host.problem = partial(problem, UNHEALTHY)
            self.clock.after(self._random.uniform(0.0, 1.0), None, host.start_agent)
        self.head.start()
        for _ in range(self._random.randint(0, 3)):
            at = self._random.uniform(0.0, self._chaos_s)
            self.clock.after(at, None, self._fail_most)
        crashes = (faults.crash_agent, faults.crash_agent) if self.bad else ()
        for fault in (faults.crash_head, *crashes):
            at = self._random.uniform(0.0, self._chaos_s)
            self.clock.after(at, None, partial(fault, self, self._random))
        self.clock.run(until=self.clock.now + self._chaos_s)
        assert self.bad or not self.events[HostEvent.EXCLUDED], "a cause elsewhere excluded a host"
        self._heal()
        self._calm(self._all_train, "train with all hosts again")
        assert not self._exclusions(), "a host is excluded for good"
        self._finish()
        self._calm(self._is_over, "end")
        self._expect_verdict()
        assert not self._exclusions(), "an exclusion outlives its run"

    def on_journaled(self, record: Record) -> None:
        """Compare what is on the disk with the limits."""
        most = excluded_max(len(self.hosts), self.plan.policy.exclude_max_percent)
        assert len(self._exclusions()) <= most, "more hosts are excluded than the cap allows"
        if isinstance(record, HostNoted):
            self.events[record.kind] += 1
            shadow = self.checker.shadow
            assert shadow is not None
            if record.kind is HostEvent.EXCLUDED:
                name = record.reason.split()[1]  # perhaps it is removed by the next record only
                others = sum(agent.host != name for agent in shadow.members.values())
                assert others >= shadow.spec.agents_min, "an exclusion went below the minimum"

    def _fail_most(self) -> None:
        shadow = self.checker.shadow
        if not self.is_training or shadow is None:
            return  # those that fail were not most of the hosts with workers
        seated = [h for h in self.hosts if h.agent is not None and h.agent.name in shadow.seats]
        failing = self._random.sample(seated, k=len(seated) // 2 + 1)
        self.clock.note("world", "MOST FAIL", [host.name for host in failing])
        for host in failing:
            faults.fail_workers(host, exit_code=70)

    def _exclusions(self) -> list[KeptDrain]:
        drains = self.head.disk.drains.values()
        return [drain for drain in drains if drain.until_s is not None and not drain.is_lifted]

    def _all_train(self) -> bool:
        shadow = self.checker.shadow
        seated = 0 if shadow is None or shadow.round is None else len(shadow.round.seats)
        return self.is_training and seated == len(self.hosts)


def _fail(random: Random) -> Habits:
    return Habits(exits_after_s=random.expovariate(1 / BAD_FOR_S), exit_code=1)
