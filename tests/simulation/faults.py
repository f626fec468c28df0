"""Faults at random instants. Each one is a few lines and ends by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.simulation.cluster import Cluster
    from tests.simulation.machines.host import Host

    Fault = Callable[[Cluster, Random], None]

SIGINT, SIGTERM = 2, 15


def schedule(cluster: Cluster, random: Random, all_faults: Sequence[Fault] | None = None) -> None:
    """Put this world's faults on its clock."""
    kind, clock = cluster.plan.kind, cluster.clock
    if kind is Kind.WORKERS:
        return
    faults = COORDINATOR_FAULTS if kind is Kind.COORDINATOR else [*(all_faults or ALL_FAULTS)]
    if cluster.plan.conduct is not None and kind is not Kind.COORDINATOR:
        faults = [*faults, stall_worker, stall_worker]
    chosen = random.sample(faults, k=random.randint(1, len(faults)))
    end = clock.now + cluster.plan.chaos_s
    instant = clock.now + random.uniform(0.0, 5.0)
    mean = random.choice([1.5, 4.0, 10.0])
    while instant < end:
        fault = random.choice(chosen)
        clock.at(instant, None, partial(fault, cluster, random))
        instant += random.expovariate(1 / mean)


def schedule_blackouts(cluster: Cluster, random: Random) -> None:
    """Let machines lose power now and then. From a source of its own, drawn last."""
    if cluster.plan.kind is not Kind.CHAOS or random.random() < 0.6:
        return
    instant = cluster.clock.now + random.uniform(0.0, 20.0)
    while instant < cluster.clock.now + cluster.plan.chaos_s:
        cluster.clock.at(instant, None, partial(black_out, cluster, random))
        instant += random.expovariate(1 / 15.0)


def schedule_outages(cluster: Cluster, random: Random) -> None:
    """Let the coordinator's disk be full now and then, and its core break once."""
    if cluster.plan.kind is Kind.WORKERS or random.random() < 0.6:
        return
    instant = cluster.clock.now + random.uniform(0.0, 20.0)
    while instant < cluster.clock.now + cluster.plan.chaos_s:
        duration = random.choice([0.3, 3.0, 20.0]) * random.random()
        cluster.clock.at(instant, None, partial(fill_disk, cluster, duration))
        instant += random.expovariate(1 / 15.0)
    if random.random() < 0.5:
        instant = cluster.clock.now + random.uniform(0.0, cluster.plan.chaos_s)
        cluster.clock.at(instant, None, partial(break_core, cluster))


def fill_disk(cluster: Cluster, duration: float) -> None:
    """The journal can't be written for a while."""
    if not cluster.is_healed:
        cluster.clock.note("head", "DISK FULL", f"{duration:.3f} s")
        cluster.head.disk.full_until = cluster.clock.now + duration


def break_core(cluster: Cluster) -> None:
    """The core of the run raises at its next event, with its state changed."""
    cluster.clock.note("head", "CORE BREAKS")
    cluster.head.is_break_due = True


def black_out(cluster: Cluster, random: Random) -> None:
    """Machines lose power in one moment, without a word; it comes back after a while."""
    for host in random.sample(cluster.hosts, k=random.randint(1, len(cluster.hosts))):
        lose_power(cluster, host, random.choice([2.0, 8.0, 30.0]) * random.random())


def lose_power(cluster: Cluster, host: Host, duration: float) -> None:
    """A machine is dead at once, and no stream breaks until it is back."""
    _part(cluster, host, duration)
    host.crash_agent()
    cluster.clock.after(duration + _boot_s(host), None, host.start_agent)


def _boot_s(host: Host) -> float:
    """Return how long a machine takes from power to its agent."""
    return host.clock.random(f"boot {host.name} {host.clock.now}").uniform(0.1, 5.0)


def _host(cluster: Cluster, random: Random) -> Host:
    return random.choice(cluster.hosts)


def cut_stream(cluster: Cluster, random: Random) -> None:
    """A connection breaks; what was in flight is lost."""
    host = _host(cluster, random)
    for link in cluster.network.links:
        if link.host == host.name and not link.is_cut:
            cluster.clock.note(host.name, "STREAM BREAKS")
            link.cut("connection reset")


def partition(cluster: Cluster, random: Random) -> None:
    """A host is cut off, silently, and comes back."""
    _part(cluster, _host(cluster, random), random.choice([0.2, 2.0, 8.0, 30.0]) * random.random())


def swizzle_clog(cluster: Cluster, random: Random) -> None:
    """Hosts are cut off one after the other, and come back in another order."""
    for host in random.sample(cluster.hosts, k=random.randint(1, len(cluster.hosts))):
        start, duration = random.uniform(0, 3), random.uniform(0.5, 12)
        cluster.clock.after(start, None, partial(_part, cluster, host, duration))


def _part(cluster: Cluster, host: Host, duration: float) -> None:
    if not cluster.is_healed:
        cluster.network.block(host.name)
        cluster.clock.after(duration, None, lambda: cluster.network.unblock(host.name))


def crash_agent(cluster: Cluster, random: Random) -> None:
    """An agent is killed; a new one is started there, or not."""
    host = _host(cluster, random)
    host.crash_agent()
    if random.random() < 0.7:
        cluster.clock.after(random.choice([0.1, 2.0, 10.0]), None, host.start_agent)


def start_agents(cluster: Cluster, random: Random) -> None:
    """An agent comes late, or back."""
    _host(cluster, random).start_agent()


def stall_agent(cluster: Cluster, random: Random) -> None:
    """An agent's process is stopped for a while; its workers go on."""
    agent = _host(cluster, random).agent
    if agent is not None:
        cluster.clock.stall(agent.actor)
        duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
        cluster.clock.after(duration, None, lambda: cluster.clock.resume(agent.actor, agent.random))


def signal_agent(cluster: Cluster, random: Random) -> None:
    """Somebody ends an agent, perhaps impatiently."""
    host = _host(cluster, random)
    host.signal_agent(random.choice([SIGINT, SIGTERM]))
    if random.random() < 0.3:
        cluster.clock.after(random.uniform(0, 3), None, lambda: host.signal_agent(SIGINT))


def kill_supervisor(cluster: Cluster, random: Random) -> None:
    """A supervisor dies, and all its workers with it."""
    agent = _host(cluster, random).agent
    if agent is not None:
        agent.kill_supervisor()


def break_records(cluster: Cluster, random: Random) -> None:
    """Acknowledgements of failure records are lost."""
    agent = _host(cluster, random).agent
    if agent is not None and agent.session is not None:
        agent.session.break_records()


def kill_worker(cluster: Cluster, random: Random) -> None:
    """A worker is killed."""
    agent = _host(cluster, random).agent
    supervisor = agent.supervisor if agent is not None else None
    if supervisor is not None:
        workers = [p for p in supervisor.processes if p.is_alive and p.local_rank is not None]
        if workers:
            supervisor.end(random.choice(workers), random.choice([1, -9, -11]))


def fail_workers(host: Host) -> None:
    """All workers of a host fail."""
    supervisor = host.agent.supervisor if host.agent is not None else None
    if supervisor is not None:
        for process in [p for p in supervisor.processes if p.is_alive]:
            supervisor.end(process, 1)


def stall_worker(cluster: Cluster, random: Random) -> None:
    """A worker that restarts in process is stopped for a while."""
    agent = _host(cluster, random).agent
    supervisor = agent.supervisor if agent is not None else None
    if supervisor is None:
        return
    programs = [p.program for p in supervisor.processes if p.is_alive and p.program is not None]
    if programs:
        program = random.choice(programs)
        cluster.clock.stall(program.actor)
        duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
        cluster.clock.after(
            duration, None, lambda: cluster.clock.resume(program.actor, program.random)
        )


def crash_head(cluster: Cluster, random: Random) -> None:
    """The coordinator dies and comes back from its journal."""
    cluster.head.crash(is_silent=random.random() < 0.3)
    cluster.clock.after(random.choice([0.01, 1.0, 10.0, 40.0]), None, cluster.head.start)


def stall_head(cluster: Cluster, random: Random) -> None:
    """The coordinator is stopped for a while."""
    cluster.head.stall()
    duration = random.choice([0.5, 4.0, 10.0, 30.0]) * random.random()
    cluster.clock.after(duration, None, cluster.head.resume)


def slow_disk(cluster: Cluster, random: Random) -> None:
    """The journal takes its time."""
    cluster.head.disk.slow_until = cluster.clock.now + random.uniform(0, 10)


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
ALL_FAULTS: list[Fault] = [*COORDINATOR_FAULTS, *AGENT_FAULTS]
