"""A process that is no agent, and speaks the protocol with evil in mind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drumbeat.v1 import session_pb2
from tests.simulation.machines.coordinator import STRANGER
from tests.simulation.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.machines.network import End
    from tests.simulation.world import World


def schedule(world: World, random: Random) -> None:
    """Let strangers come now and then, and other coordinators take the journal."""
    clock = world.clock
    if world.plan.kind is not Kind.CHAOS or world.plan.several or random.random() < 0.7:
        return
    for _ in range(random.randint(1, 8)):
        instant = clock.now + random.uniform(0.0, world.plan.chaos_s)
        clock.at(instant, None, partial(intrude, world, random))
    if random.random() < 0.5:
        instant = clock.now + random.uniform(0.0, world.plan.chaos_s)
        clock.at(instant, None, partial(usurp, world))


def usurp(world: World) -> None:
    """Another coordinator takes the journal over, and leaves it to the next life of ours."""
    world.clock.note("head", "USURPED")
    world.head.disk.is_lost = True


def intrude(world: World, random: Random) -> None:
    """A process that is no agent opens sessions, and says what no agent says."""
    head, shadow = world.head, world.checker.shadow
    sessions = [
        host.agent.session
        for host in world.hosts
        if host.agent is not None and host.agent.session is not None and shadow is not None
        if host.agent.name in shadow.members
    ]
    if (process := head.machines[0].process) is None or not sessions:
        return
    link = head.network.connect(STRANGER, process)
    process.open(link)
    for pipe in (link.down, link.acks):
        pipe.into(process.actors[0], _ignore)
    hello = random.choice(sessions).hello()
    hello.fence.session_id = ""
    random.choice(LIES)(hello, random)
    world.clock.note("stranger", "says", hello)
    link.up.send(hello)
    beat = session_pb2.Beat(state=session_pb2.GROUP_STATE_SUCCEEDED)
    link.up.send(session_pb2.AgentReport(fence=hello.fence, beat=beat))
    world.clock.after(random.uniform(0.0, 5.0), None, lambda: link.leave(is_lossy=False))


def _ignore(_message: session_pb2.Directive | End) -> None:
    pass


def _other_spec(hello: session_pb2.AgentReport, _random: Random) -> None:
    hello.fence.incarnation = "stranger.1"
    hello.hello.run.spec.agents_max += 1


def _endless_round(hello: session_pb2.AgentReport, random: Random) -> None:
    hello.fence.incarnation = "stranger.2"
    hello.fence.round_id = random.choice([2**52, 2**62, 2**64 - 1])


def _other_identity(hello: session_pb2.AgentReport, _random: Random) -> None:
    hello.hello.host = "stranger"


def _no_hello(hello: session_pb2.AgentReport, _random: Random) -> None:
    hello.ClearField("hello")
    hello.beat.state = session_pb2.GROUP_STATE_FAILED


def _too_many_workers(hello: session_pb2.AgentReport, _random: Random) -> None:
    hello.fence.incarnation = "stranger.3"
    hello.hello.local_world_size = 2**32 - 1


LIES: list[Callable[[session_pb2.AgentReport, Random], None]] = [
    _other_spec,
    _endless_round,
    _other_identity,
    _no_hello,
    _too_many_workers,
]
