"""Faults at random instants. Each one is a few lines and ends by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import front_ends
from tests.simulation.failover import faults as failover
from tests.simulation.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.simulation.machines.host import Host
    from tests.simulation.world import World

    Fault = Callable[[World, Random], None]

SIGINT, SIGTERM = 2, 15


def schedule(world: World) -> None:
    """Put this world's faults on its clock. Each kind has a source of randomness of its own."""
    plan, random = world.plan, world.clock.random
    if plan.several is not None:
        calm = plan.kind is Kind.COORDINATOR
        _scatter(world, random("failover"), failover.CALM_FAULTS if calm else failover.ALL_FAULTS)
    faults = COORDINATOR_FAULTS if plan.several is None else []
    if plan.kind is Kind.CHAOS:
        stalls = [] if plan.conduct is None else [stall_worker, stall_worker]
        faults = [*faults, *AGENT_FAULTS, *stalls]
        _schedule_blackouts(world, random("blackouts"))
    if plan.kind is not Kind.WORKERS and faults:
        _scatter(world, random("faults"), faults)
        if plan.several is None:
            _schedule_outages(world, random("outages"))
    if plan.kind is not Kind.WORKERS:
        front_ends.schedule(world, random("front ends"))


def _scatter(world: World, random: Random, faults: Sequence[Fault]) -> None:
    """Let some of these happen at random instants."""
    clock = world.clock
    chosen = random.sample(faults, k=random.randint(1, len(faults)))
    end = clock.now + world.plan.chaos_s
    instant = clock.now + random.uniform(0.0, 5.0)
    mean = random.choice([1.5, 4.0, 10.0])
    while instant < end:
        clock.at(instant, None, partial(random.choice(chosen), world, random))
        instant += random.expovariate(1 / mean)


def _schedule_blackouts(world: World, random: Random) -> None:
    """Let machines lose power now and then. From a source of its own, drawn last."""
    if random.random() < 0.6:
        return
    for instant in world.instants(random, mean_s=15.0):
        world.clock.at(instant, None, partial(black_out, world, random))


def _schedule_outages(world: World, random: Random) -> None:
    """Let the coordinator's disk be full now and then, and its core break once."""
    if random.random() < 0.6:
        return
    for instant in world.instants(random, mean_s=15.0):
        duration = random.choice([0.3, 3.0, 20.0]) * random.random()
        world.clock.at(instant, None, partial(fill_disk, world, duration))
    if random.random() < 0.5:
        instant = world.clock.now + random.uniform(0.0, world.plan.chaos_s)
        world.clock.at(instant, None, partial(break_core, world))


def fill_disk(world: World, duration: float) -> None:
    """The journal can't be written for a while."""
    if not world.is_healed:
        world.clock.note("head", "DISK FULL", f"{duration:.3f} s")
        world.head.disk.full_until = world.clock.now + duration


def break_core(world: World) -> None:
    """The core of the run raises at its next event, with its state changed."""
    world.clock.note("head", "CORE BREAKS")
    world.head.machine.is_break_due = True


def black_out(world: World, random: Random) -> None:
    """Machines lose power in one moment, without a word; it comes back after a while."""
    for host in random.sample(world.hosts, k=random.randint(1, len(world.hosts))):
        lose_power(world, host, random.choice([2.0, 8.0, 30.0]) * random.random())


def lose_power(world: World, host: Host, duration: float) -> None:
    """A machine is dead at once, and no stream breaks until it is back."""
    _part(world, host, duration)
    host.crash_agent()
    world.clock.after(duration + _boot_s(host), None, host.start_agent)


def _boot_s(host: Host) -> float:
    """Return how long a machine takes from power to its agent."""
    return host.clock.random(f"boot {host.name} {host.clock.now}").uniform(0.1, 5.0)


def _host(world: World, random: Random) -> Host:
    return random.choice(world.hosts)


def cut_stream(world: World, random: Random) -> None:
    """A connection breaks; what was in flight is lost."""
    host = _host(world, random)
    for link in world.network.links:
        if link.host == host.name and not link.is_cut:
            world.clock.note(host.name, "STREAM BREAKS")
            link.cut("connection reset")


def partition(world: World, random: Random) -> None:
    """A host is cut off, silently, and comes back."""
    _part(world, _host(world, random), random.choice([0.2, 2.0, 8.0, 30.0]) * random.random())


def swizzle_clog(world: World, random: Random) -> None:
    """Hosts are cut off one after the other, and come back in another order."""
    for host in random.sample(world.hosts, k=random.randint(1, len(world.hosts))):
        start, duration = random.uniform(0, 3), random.uniform(0.5, 12)
        world.clock.after(start, None, partial(_part, world, host, duration))


def _part(world: World, host: Host, duration: float) -> None:
    if not world.is_healed:
        world.network.block(host.name)
        world.clock.after(duration, None, lambda: world.network.unblock(host.name))


def crash_agent(world: World, random: Random) -> None:
    """An agent is killed; a new one is started there, or not."""
    host = _host(world, random)
    host.crash_agent()
    if random.random() < 0.7:
        world.clock.after(random.choice([0.1, 2.0, 10.0]), None, host.start_agent)


def start_agents(world: World, random: Random) -> None:
    """An agent comes late, or back."""
    _host(world, random).start_agent()


def stall_agent(world: World, random: Random) -> None:
    """An agent's process is stopped for a while; its workers go on."""
    agent = _host(world, random).agent
    if agent is not None:
        world.clock.stall(agent.actor)
        duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
        world.clock.after(duration, None, lambda: world.clock.resume(agent.actor, agent.random))


def signal_agent(world: World, random: Random) -> None:
    """Somebody ends an agent, perhaps impatiently."""
    host = _host(world, random)
    host.signal_agent(random.choice([SIGINT, SIGTERM]))
    if random.random() < 0.3:
        world.clock.after(random.uniform(0, 3), None, lambda: host.signal_agent(SIGINT))


def kill_supervisor(world: World, random: Random) -> None:
    """A supervisor dies, and all its workers with it."""
    agent = _host(world, random).agent
    if agent is not None:
        agent.kill_supervisor()


def break_records(world: World, random: Random) -> None:
    """Acknowledgements of failure records are lost."""
    agent = _host(world, random).agent
    if agent is not None and agent.session is not None:
        agent.session.break_records()


def kill_worker(world: World, random: Random) -> None:
    """A worker is killed."""
    agent = _host(world, random).agent
    supervisor = agent.supervisor if agent is not None else None
    if supervisor is not None:
        workers = [p for p in supervisor.processes if p.is_alive and p.local_rank is not None]
        if workers:
            supervisor.end(random.choice(workers), random.choice([1, -9, -11]))


def fail_workers(host: Host, exit_code: int) -> None:
    """All workers of a host fail."""
    supervisor = host.agent.supervisor if host.agent is not None else None
    if supervisor is not None:
        for process in [p for p in supervisor.processes if p.is_alive]:
            supervisor.end(process, exit_code)


def stall_worker(world: World, random: Random) -> None:
    """A worker that restarts in process is stopped for a while."""
    agent = _host(world, random).agent
    supervisor = agent.supervisor if agent is not None else None
    if supervisor is None:
        return
    programs = [p.program for p in supervisor.processes if p.is_alive and p.program is not None]
    if programs:
        program = random.choice(programs)
        world.clock.stall(program.actor)
        duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
        world.clock.after(duration, None, lambda: world.clock.resume(program.actor, program.random))


def crash_head(world: World, random: Random) -> None:
    """The coordinator dies and comes back from its journal."""
    failover.kill_machine(world, random, world.head.machine)


def stall_head(world: World, random: Random) -> None:
    """The coordinator is stopped for a while."""
    world.head.machine.stall()
    duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
    world.clock.after(duration, None, world.head.machine.resume)


def slow_disk(world: World, random: Random) -> None:
    """The journal takes its time."""
    world.head.disk.slow_until = world.clock.now + random.uniform(0, 10)


COORDINATOR_FAULTS: list[Fault] = [crash_head, stall_head, slow_disk]
AGENT_FAULTS: list[Fault] = [
    cut_stream,
    partition,
    swizzle_clog,
    crash_agent,
    start_agents,
    stall_agent,
    signal_agent,
    kill_supervisor,
    break_records,
    kill_worker,
]
