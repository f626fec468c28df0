"""Faults of coordinators and of etcd at random instants, and at the worst ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.failover.coordinator import Coordinator
    from tests.simulation.failover.world import FailoverCluster

    Fault = Callable[[FailoverCluster, Random], None]

# Which of the next requests a trap is set at.
TRAP_CALLS_MAX = 6


def schedule(cluster: FailoverCluster, random: Random) -> None:
    """Put this world's faults on its clock."""
    faults = CALM_FAULTS if cluster.plan.kind is Kind.COORDINATOR else ALL_FAULTS
    chosen = random.sample(faults, k=random.randint(1, len(faults)))
    clock = cluster.clock
    end = clock.now + cluster.plan.chaos_s
    instant = clock.now + random.uniform(0.0, 5.0)
    mean = random.choice([1.5, 4.0, 10.0])
    while instant < end:
        clock.at(instant, None, partial(_strike, cluster, random.choice(chosen), random))
        instant += random.expovariate(1 / mean)


def _strike(cluster: FailoverCluster, fault: Fault, random: Random) -> None:
    if not cluster.is_healed:
        fault(cluster, random)


def _any(cluster: FailoverCluster, random: Random) -> Coordinator:
    return random.choice(cluster.head.machines)


def _victim(cluster: FailoverCluster, random: Random) -> Coordinator:
    """Return the leader as a rule."""
    leader = cluster.head.leader
    return leader if leader is not None and random.random() < 0.8 else _any(cluster, random)


def _a_while(random: Random) -> float:
    return random.choice([0.5, 2.0, 4.0, 10.0, 30.0]) * random.random()


def kill(cluster: FailoverCluster, random: Random) -> None:
    """A coordinator dies, and is started again."""
    _kill(cluster, random, _victim(cluster, random))


def _kill(cluster: FailoverCluster, random: Random, machine: Coordinator) -> None:
    machine.crash(is_silent=random.random() < 0.3)
    cluster.clock.after(random.choice([0.01, 1.0, 10.0, 40.0]), None, machine.start)


def stall(cluster: FailoverCluster, random: Random) -> None:
    """A coordinator is stopped for a while."""
    _stall(cluster, random, _victim(cluster, random))


def _stall(cluster: FailoverCluster, random: Random, machine: Coordinator) -> None:
    machine.stall(is_suspended=random.random() < 0.3)
    cluster.clock.after(_a_while(random), None, machine.resume)


def cut_from_etcd(cluster: FailoverCluster, random: Random) -> None:
    """A coordinator does not reach etcd for a while."""
    _cut_from_etcd(cluster, random, _victim(cluster, random))


def _cut_from_etcd(cluster: FailoverCluster, random: Random, machine: Coordinator) -> None:
    cluster.head.etcd.cut(machine.name)
    cluster.clock.after(_a_while(random), None, partial(cluster.head.etcd.join, machine.name))


def cut_from_agents(cluster: FailoverCluster, random: Random) -> None:
    """A coordinator does not reach agents for a while, some or all; perhaps etcd neither."""
    machine = _victim(cluster, random)
    hosts = random.sample(cluster.hosts, k=random.randint(1, len(cluster.hosts)))
    ends = [machine.name] if random.random() < 0.5 else [f"{h.name} {machine.name}" for h in hosts]
    duration = _a_while(random)
    for end in ends:
        cluster.network.block(end)
        cluster.clock.after(duration, None, partial(cluster.network.unblock, end))
    if random.random() < 0.4:
        _cut_from_etcd(cluster, random, machine)


def lose_majority(cluster: FailoverCluster, random: Random) -> None:
    """Etcd answers nothing for a while."""
    cluster.head.etcd.lose_majority()
    cluster.clock.after(_a_while(random), None, cluster.head.etcd.elect)


def slow_etcd(cluster: FailoverCluster, random: Random) -> None:
    """Etcd takes its time."""
    cluster.head.etcd.slow_until = cluster.clock.now + random.uniform(0.0, 10.0)


def hand_over(cluster: FailoverCluster, random: Random) -> None:
    """An operator has another one lead; perhaps the process ends a little later."""
    machine = _victim(cluster, random)
    process = machine.process
    if process is None:
        return
    cluster.clock.hand(process.actor, "operator", process.step_down)
    if random.random() < 0.5:
        delay = random.choice([0.05, 0.5, 4.0]) * random.random()
        cluster.clock.after(delay, None, partial(_kill, cluster, random, machine))


def trap(cluster: FailoverCluster, random: Random) -> None:
    """Something happens between deciding and writing, or between writing and telling."""
    machine = _victim(cluster, random)
    act = random.choice([_stall, _stall, _kill, _cut_from_etcd])
    where = random.choice(["send", "answer"])
    calls = random.randint(0, TRAP_CALLS_MAX)
    machine.set_trap(where, calls, partial(act, cluster, random, machine))


def break_core(cluster: FailoverCluster, random: Random) -> None:
    """The core of the run raises at its next event, with its state changed; it may do so once."""
    if not cluster.is_broken:
        cluster.is_broken = _victim(cluster, random).is_break_due = True


CALM_FAULTS: list[Fault] = [
    kill,
    stall,
    cut_from_etcd,
    lose_majority,
    slow_etcd,
    hand_over,
    trap,
    trap,
]
ALL_FAULTS: list[Fault] = [*CALM_FAULTS, cut_from_agents, break_core]
