"""What one seed means: a run's spec, its hosts, the habits of its workers, and the faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from msgspec.structs import replace

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.coordinator.core.policy import Policy
from drumbeat.model import Pace
from drumbeat.worker.v1 import iteration_pb2
from tests.simulation.machines.processes import Habits
from tests.simulation.machines.wrapped import Conduct

RUN = "run"
# How many of the worlds have workers that restart in process.
WRAPPED = 0.4
# By what workers do by themselves, see `habits`.
RULES = (
    "exit=2:restart-free",
    "exit=255,100-120:fail",
    "signal=KILL:exclude",
    "signal=SEGV,ABRT:restart-free",
    "hang:restart",
    "error=ended by:restart-free",
    "oom:fail",
    "host=rack=b7:exclude",
)
# How many of those with an even number of hosts seat whole blocks.
BLOCKS = 0.3
# How many have a preflight. Its workers are like those of training, and name nobody.
PREFLIGHTS = 0.15
# How many have more than six hosts.
LARGE = 0.05


class Kind(StrEnum):
    """Which faults a world has."""

    CHAOS = "CHAOS"
    """All of them."""
    WORKERS = "WORKERS"
    """Only workers fail."""
    COORDINATOR = "COORDINATOR"
    """Only the coordinator does; no worker may notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Several coordinators, and etcd."""

    coordinators: int
    ttl_s: float
    sloppiness: float
    is_cramped: bool  # batches take several transactions, and history is soon forgotten

    @staticmethod
    def draw(seed: int) -> Several:
        """Return those of this seed."""
        random = Random(f"{seed}/failover")
        return Several(
            coordinators=random.choice([2, 2, 3]),
            ttl_s=random.choice([2.0, 3.0, 3.0, 5.0]),
            sloppiness=random.choice([0.0, 0.0, 0.02, 0.1]),
            is_cramped=random.random() < 0.4,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world. Durations are virtual seconds."""

    seed: int
    kind: Kind
    configs: tuple[AgentConfig, ...]
    policy: Policy
    delay_max_s: float
    chaos_s: float
    fails: float  # how likely a worker fails by itself
    finishes_early: float
    is_sick: bool  # processes ignore signals, hang in the kernel, leave children
    spawn_fails: float
    asks: float  # how likely the training of a host asks when to save
    conduct: Conduct | None  # of workers that restart in process, if they do
    several: Several | None = None  # None: one coordinator with a disk

    @staticmethod
    def draw(seed: int) -> Plan:
        """Return the world of this seed, with one coordinator."""
        random = Random(f"{seed}/plan")
        kind = random.choices(list(Kind), weights=(7, 1, 2))[0]
        is_calm = kind is Kind.COORDINATOR
        plan = Plan(
            seed=seed,
            kind=kind,
            configs=_placed(
                Random(f"{seed}/places"),
                _restarting(
                    Random(f"{seed}/restarts"),
                    _fleet(Random(f"{seed}/many"), _configs(random, kind), kind),
                    is_calm=is_calm,
                ),
            ),
            policy=replace(_policy(random), checkpoint_grace_s=_grace(Random(f"{seed}/grace"))),
            delay_max_s=random.choice([0.02, 0.05]) if is_calm else random.choice([0.05, 0.3, 1.0]),
            chaos_s=random.uniform(15.0, 60.0),
            fails=0.0 if is_calm else random.choice([0.0, 0.02, 0.15]),
            finishes_early=0.0 if is_calm else random.choice([0.0, 0.1, 0.5]),
            is_sick=random.random() < 0.4,
            spawn_fails=0.0 if is_calm else random.choice([0.0, 0.0, 0.02]),
            asks=Random(f"{seed}/asks").choice([0.0, 0.7, 1.0, 1.0]),
            conduct=_conduct(Random(f"{seed}/calls"), is_calm=is_calm),
        )
        # Workers of a preflight are no functions that are called again.
        return plan.without_preflight() if plan.conduct is not None else plan

    def without_preflight(self) -> Plan:
        """Return the same whose first round is one of training, as the truth about time has it."""
        configs = tuple(dataclasses.replace(config, preflight=None) for config in self.configs)
        return dataclasses.replace(self, configs=configs)

    def with_several(self) -> Plan:
        """Return the same with several coordinators."""
        several = Several.draw(self.seed)
        addresses = ",".join(f"c{number + 1}:1" for number in range(several.coordinators))
        return dataclasses.replace(
            self,
            several=several,
            policy=replace(self.policy, has_others=True),
            configs=tuple(dataclasses.replace(c, coordinator=addresses) for c in self.configs),
        )

    def in_peace(self) -> Plan:
        """Return the same with workers that do nothing bad by themselves."""
        return dataclasses.replace(
            self, is_sick=False, fails=0.0, finishes_early=0.0, spawn_fails=0.0, conduct=None
        )

    def habits(self, *, is_over: bool) -> Callable[[Random], Habits]:
        """Return what workers do by themselves; nothing bad once the faults are over."""

        def draw(random: Random) -> Habits:
            exits_after: float | None = None
            code = 0
            if not is_over and random.random() < self.fails:
                exits_after = random.choice([0.0, 0.001, 1.0]) + random.expovariate(0.2)
                code = random.choice([1, 2, 255, -6, -9, -11])
            elif self.conduct is not None:
                pass  # its functions return early
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
        "program": Program("script", "train.py"),
        "min_nodes": agents_min,
        "max_nodes": agents_max,
        "max_restarts": restarts_max,
        "join_timeout": 300.0 if is_calm else random.choice([10.0, 30.0, 60.0]),
        "last_call": random.choice([0.0, 1.0, 5.0]),
        "exit_barrier_timeout": None if is_calm else random.choice([None, None, 5.0, 20.0]),
        "coordinator_grace": 120.0 if is_calm else random.choice([3.0, 20.0, 60.0]),
        "shutdown_timeout": random.choice([0.0, 0.2, 2.0, 5.0]),
        "master_port": random.choice([0, 0, 0, 0, 29500]),
        # Without a draw: other worlds would be others.
        "straggler_report": (1.5, 5) if (hosts + restarts_max) % 2 else None,
    }
    roles = random.choice([("trainer",), ("trainer", "reader")])
    return tuple(
        AgentConfig(
            **common,
            role=random.choice(roles),
            nproc_per_node=random.randint(1, 3),
        )
        for _ in range(hosts)
    )


def _fleet(random: Random, configs: tuple[AgentConfig, ...], kind: Kind) -> tuple[AgentConfig, ...]:
    """Return the same hosts, or many more of them now and then.

    From a source of its own, so that the other worlds are what they were before.
    """
    if random.random() >= LARGE:
        return configs
    hosts = random.randint(7, 16)
    most = hosts if kind is Kind.COORDINATOR else random.randint(4, hosts)
    least = most if kind is Kind.COORDINATOR else random.randint(1, most)
    like = [configs[number % len(configs)] for number in range(hosts)]
    return tuple(dataclasses.replace(config, min_nodes=least, max_nodes=most) for config in like)


def _restarting(
    random: Random, configs: tuple[AgentConfig, ...], *, is_calm: bool
) -> tuple[AgentConfig, ...]:
    """Return the same hosts with delays, a limit and rules of restarts.

    From a source of its own, so that the other worlds are what they were before.
    """
    rules = random.sample(RULES, k=random.choice([0, 0, 1, 2, 3]))
    how: dict[str, Any] = {
        "restart_delay_max": random.choice([0.0, 0.0, 1.0, 3.0]),
        "restart_window": random.choice([None, None, 200.0]),
        "no_progress_limit": 0 if is_calm else random.choice([0, 0, 0, 2, 5]),
        "restart_rule": () if is_calm else tuple(rules),
        "free_restarts_max": random.choice([0, 2, 20]),
        "exclude_after": 0 if is_calm else random.choice([0, 1, 2]),
        "exclude_for": random.choice([2.0, 20.0]),
    }
    return tuple(dataclasses.replace(config, **how) for config in configs)


def _placed(random: Random, configs: tuple[AgentConfig, ...]) -> tuple[AgentConfig, ...]:
    """Return the same hosts in racks of some zones, perhaps in blocks of two.

    From a source of its own, so that the other worlds are what they were before.
    """
    how: dict[str, Any] = {"rank_order": random.choice([(), ("rack",), ("zone", "rack")])}
    if random.random() < BLOCKS and len(configs) % 2 == 0:
        least, most = configs[0].min_nodes, configs[0].max_nodes
        how |= {"block_label": "block", "block_size": 2}
        how |= {"min_nodes": least + least % 2, "max_nodes": most + most % 2}
    placed = tuple(
        dataclasses.replace(
            config,
            labels=(
                f"zone={random.randint(0, 1)}",
                f"rack={random.randint(0, 2)}",
                f"block={number // 2}",
            ),
            **how,
        )
        for number, config in enumerate(configs)
    )
    if random.random() < PREFLIGHTS:
        check: dict[str, Any] = {"preflight": "check", "preflight_timeout": 60.0}
        return tuple(dataclasses.replace(config, **check) for config in placed)
    return placed


def _conduct(random: Random, *, is_calm: bool) -> Conduct | None:
    """Return how workers restart in process, ``None`` if they do not.

    From a source of its own, so that the other worlds are what they were before.
    """
    if random.random() >= WRAPPED:
        return None
    conduct = Conduct(
        spec=_spec(random, is_calm=is_calm).SerializeToString(deterministic=True),
        calls=random.choice([1, 2, 4]),
        fails=random.choice([0.0, 0.05, 0.15, 0.4]),
        returns=random.choice([0.0, 0.3, 0.9, 1.0]),
        dawdles=random.choice([0.0, 0.05, 0.2]),
        dawdles_max_s=random.choice([1.0, 10.0, 30.0, 1e6]),
        is_grouped=random.random() < 0.5,
    )
    return conduct.well() if is_calm else conduct


def _spec(random: Random, *, is_calm: bool) -> iteration_pb2.InprocessSpec:
    spec = iteration_pb2.InprocessSpec()
    rules = [random.choice(["shift", "fill"])]
    rules += random.choice([[], [], ["active_max"], ["active_divisor"]])
    if not is_calm and random.random() < 0.3:
        rules.insert(0, "groups")
    for name in rules:
        rule = spec.rules.add()
        match name:
            case "groups":
                rule.groups.allowed = bytes([random.choice([0b1110, 0b1100, 0b0110])])
            case "active_max" | "active_divisor":
                setattr(rule, name, random.choice([1, 2] if is_calm else [1, 2, 2, 3]))
            case _:
                getattr(rule, name).SetInParent()
    if not is_calm:
        spec.world_size_min = random.choice([0, 1, 1, 3])
        spec.active_world_size_min = random.choice([0, 0, 1, 2])
        spec.iterations_max = random.choice([0, 0, 0, 4, 12])
    spec.last_call_wait.FromMilliseconds(random.choice([0, 500, 2000]))
    spec.barrier_timeout.FromSeconds(120 if is_calm else random.choice([4, 10, 25]))
    spec.completion_timeout.FromSeconds(120 if is_calm else random.choice([5, 10, 25]))
    return spec


def _grace(random: Random) -> float:
    return random.choice([0.0, 3.0, 30.0, 60.0])


def _policy(random: Random) -> Policy:
    base = Policy()
    pace = Pace(
        heartbeat_interval_s=random.choice([0.5, 1.0]),
        lease_s=random.choice([3.0, 5.0]),
        reconnect_delay_max_s=base.base_pace.reconnect_delay_max_s,
    )
    agents_at_base_pace = random.choice([3, 2_000])
    return Policy(
        base_pace=pace,
        agents_at_base_pace=agents_at_base_pace,
        told_per_turn=agents_at_base_pace,
        # With the shorter lease a few who are silent are many.
        behind_min=1 if pace.lease_s < base.base_pace.lease_s else base.behind_min,
        failures_kept_max=random.choice([3, 1_000]),
        allows_rehearsals=True,
    )
