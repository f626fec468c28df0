"""Faults of coordinators and of etcd at random instants, and at the worst ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.simulation.failover.process import Coordinator
    from tests.simulation.machines.coordinator import Machine
    from tests.simulation.world import World

    Fault = Callable[[World, Random], None]

# Which of the next requests a trap is set at.
TRAP_CALLS_MAX = 6


def _any(world: World, random: Random) -> Coordinator:
    machines: Sequence[Coordinator] = world.head.machines
    return random.choice(machines)


def _victim(world: World, random: Random) -> Coordinator:
    """Return the leader as a rule."""
    leader: Coordinator | None = world.head.leader
    return leader if leader is not None and random.random() < 0.8 else _any(world, random)


def _a_while(random: Random) -> float:
    return random.choice([0.5, 2.0, 4.0, 10.0, 30.0]) * random.random()


def kill(world: World, random: Random) -> None:
    """A coordinator dies, and is started again."""
    kill_machine(world, random, _victim(world, random))


def kill_machine(world: World, random: Random, machine: Machine[Any]) -> None:
    """A coordinator's process dies, and is started again."""
    machine.crash(is_silent=random.random() < 0.3)
    world.clock.after(random.choice([0.01, 1.0, 10.0, 40.0]), None, machine.start)


def stall(world: World, random: Random) -> None:
    """A coordinator is stopped for a while."""
    _stall(world, random, _victim(world, random))


def _stall(world: World, random: Random, machine: Coordinator) -> None:
    machine.stall(is_suspended=random.random() < 0.3)
    world.clock.after(_a_while(random), None, machine.resume)


def cut_from_etcd(world: World, random: Random) -> None:
    """A coordinator does not reach etcd for a while."""
    _cut_from_etcd(world, random, _victim(world, random))


def _cut_from_etcd(world: World, random: Random, machine: Coordinator) -> None:
    world.head.etcd.cut(machine.name)
    world.clock.after(_a_while(random), None, partial(world.head.etcd.join, machine.name))


def cut_from_agents(world: World, random: Random) -> None:
    """A coordinator does not reach agents for a while, some or all; perhaps etcd neither."""
    machine = _victim(world, random)
    hosts = random.sample(world.hosts, k=random.randint(1, len(world.hosts)))
    ends = [machine.name] if random.random() < 0.5 else [f"{h.name} {machine.name}" for h in hosts]
    duration = _a_while(random)
    for end in ends:
        world.network.block(end)
        world.clock.after(duration, None, partial(world.network.unblock, end))
    if random.random() < 0.4:
        _cut_from_etcd(world, random, machine)


def lose_majority(world: World, random: Random) -> None:
    """Etcd answers nothing for a while."""
    world.head.etcd.lose_majority()
    world.clock.after(_a_while(random), None, world.head.etcd.elect)


def slow_etcd(world: World, random: Random) -> None:
    """Etcd takes its time."""
    world.head.etcd.slow_until = world.clock.now + random.uniform(0.0, 10.0)


def hand_over(world: World, random: Random) -> None:
    """An operator has another one lead; perhaps the process ends a little later."""
    machine = _victim(world, random)
    process = machine.process
    if process is None:
        return
    world.clock.hand(process.actor, "operator", process.step_down)
    if random.random() < 0.5:
        delay = random.choice([0.05, 0.5, 4.0]) * random.random()
        world.clock.after(delay, None, partial(kill_machine, world, random, machine))


def trap(world: World, random: Random) -> None:
    """Something happens between deciding and writing, or between writing and telling."""
    machine = _victim(world, random)
    act = random.choice([_stall, _stall, kill_machine, _cut_from_etcd])
    where = random.choice(["send", "answer"])
    calls = random.randint(0, TRAP_CALLS_MAX)
    machine.set_trap(where, calls, partial(act, world, random, machine))


def break_core(world: World, random: Random) -> None:
    """The core of the run raises at its next event, with its state changed; it may do so once."""
    if not world.is_broken:
        world.is_broken = _victim(world, random).is_break_due = True


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
