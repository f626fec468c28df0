"""What one seed means: a run's spec, its hosts, the habits of its workers, and the faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any

from agent.config import AgentConfig
from coordinator.model import Pace
from coordinator.policy import RunPolicy
from coordinator.registry import RegistryPolicy
from tests.simulation.processes import Habits

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = "run"


class Kind(StrEnum):
    """Which faults a world has."""

    CHAOS = "CHAOS"
    """All of them."""
    WORKERS = "WORKERS"
    """Only workers fail."""
    COORDINATOR = "COORDINATOR"
    """Only the coordinator does; no worker may notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world. Durations are virtual seconds."""

    seed: int
    kind: Kind
    configs: tuple[AgentConfig, ...]
    policy: RegistryPolicy
    delay_max_s: float
    chaos_s: float
    fails: float  # how likely a worker fails by itself
    finishes_early: float
    is_sick: bool  # processes ignore signals, hang in the kernel, leave children
    spawn_fails: float

    @staticmethod
    def draw(seed: int) -> Plan:
        """Return the world of this seed."""
        random = Random(f"{seed}/plan")
        kind = random.choices(list(Kind), weights=(7, 1, 2))[0]
        is_calm = kind is Kind.COORDINATOR
        return Plan(
            seed=seed,
            kind=kind,
            configs=_configs(random, kind),
            policy=_policy(random),
            delay_max_s=random.choice([0.02, 0.05]) if is_calm else random.choice([0.05, 0.3, 1.0]),
            chaos_s=random.uniform(15.0, 60.0),
            fails=0.0 if is_calm else random.choice([0.0, 0.02, 0.15]),
            finishes_early=0.0 if is_calm else random.choice([0.0, 0.1, 0.5]),
            is_sick=random.random() < 0.4,
            spawn_fails=0.0 if is_calm else random.choice([0.0, 0.0, 0.02]),
        )

    def habits(self, *, is_over: bool) -> Callable[[Random], Habits]:
        """Return what workers do by themselves; nothing bad once the faults are over."""

        def draw(random: Random) -> Habits:
            exits_after: float | None = None
            code = 0
            if not is_over and random.random() < self.fails:
                exits_after = random.choice([0.0, 0.001, 1.0]) + random.expovariate(0.2)
                code = random.choice([1, 2, 255, -6, -9, -11])
            elif not is_over and random.random() < self.finishes_early:
                exits_after = random.uniform(0.0, 20.0)
            if not self.is_sick:
                return Habits(exits_after_s=exits_after, exit_code=code)
            return Habits(
                exits_after_s=exits_after,
                exit_code=code,
                term_s=random.choice([None, 0.001, 0.01, 0.5, 4.0]),
                term_code=random.choice([None, None, 0, 1, 143]),
                kill_s=random.uniform(0, 9.0) if random.random() < 0.03 else 0.001,
                leaves_child_s=random.uniform(0, 5.0) if random.random() < 0.1 else None,
            )

        return draw


def _configs(random: Random, kind: Kind) -> tuple[AgentConfig, ...]:
    hosts = random.randint(2, 6)
    agents_max = hosts if kind is Kind.COORDINATOR else random.randint(1, hosts)
    agents_min = agents_max if kind is Kind.COORDINATOR else random.randint(1, agents_max)
    if kind is not Kind.COORDINATOR and random.random() < 0.3:
        agents_min = agents_max
    is_calm = kind is Kind.COORDINATOR
    restarts_max = random.choice([0, 1, 3, 20])
    common: dict[str, Any] = {
        "coordinator": "head:1",
        "run_id": RUN,
        "command": ("train.py",),
        "agents_min": agents_min,
        "agents_max": agents_max,
        "restarts_max": restarts_max,
        "join_timeout_s": 300.0 if is_calm else random.choice([10.0, 30.0, 60.0]),
        "last_call_s": random.choice([0.0, 1.0, 5.0]),
        "exit_barrier_timeout_s": None if is_calm else random.choice([None, None, 5.0, 20.0]),
        "coordinator_grace_s": 120.0 if is_calm else random.choice([3.0, 20.0, 60.0]),
        "shutdown_timeout_s": random.choice([0.0, 0.2, 2.0, 5.0]),
        "master_port": random.choice([0, 0, 0, 0, 29500]),
    }
    roles = random.choice([("trainer",), ("trainer", "reader")])
    return tuple(
        AgentConfig(
            **common,
            role=random.choice(roles),
            local_world_size=random.randint(1, 3),
        )
        for _ in range(hosts)
    )


def _policy(random: Random) -> RegistryPolicy:
    base = RegistryPolicy()
    pace = Pace(
        heartbeat_interval_s=random.choice([0.5, 1.0]),
        lease_s=random.choice([3.0, 5.0]),
        reconnect_delay_max_s=base.base_pace.reconnect_delay_max_s,
    )
    return RegistryPolicy(
        base_pace=pace,
        agents_at_base_pace=random.choice([3, 2_000]),
        run=RunPolicy(failures_kept_max=random.choice([3, 1_000])),
    )
