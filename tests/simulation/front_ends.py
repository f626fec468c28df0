"""Front ends of a coordinator: each holds the streams of some hosts, stands still, and dies.

As `drumbeat.coordinator.frontends.server` does: the coordinator asks each of them for a sign of
life, counts the time without one in no silence of agents, and at last gives the front end up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drumbeat.coordinator.core.events import Deafened, OutageEnded
from drumbeat.coordinator.frontends.messages import SIGNS_PER_SILENCE
from drumbeat.coordinator.frontends.server import is_deaf
from drumbeat.coordinator.shell.transport.connections import KEEPALIVE_AFTER, KEEPALIVE_WITHIN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random
    from typing import Any

    from tests.simulation.machines.coordinator import Life
    from tests.simulation.machines.network import Link
    from tests.simulation.world import World

WORLDS = 0.4
"""How many of the worlds have any."""
SHARE = 0.5
"""Of the streams that a front end holds."""
SIGNS_MAX = SIGNS_PER_SILENCE + 1


def schedule(world: World, random: Random) -> None:
    """Let front ends stand still now and then, for good or not."""
    if random.random() >= WORLDS:
        return
    for instant in world.instants(random, mean_s=12.0):
        world.clock.at(instant, None, partial(_stand_still, world, random))


def _stand_still(world: World, random: Random) -> None:
    """One front end does nothing from now on, until it goes on or is given up."""
    life = world.head.life
    if world.is_healed or life is None:
        return
    clock, machine = world.clock, life.machine
    links = [link for link in world.network.links if link.ends[1] == machine.name]
    held = [link for link in links if not link.is_cut and random.random() < SHARE]
    for link in held:
        link.stand_still(is_still=True)
    clock.note(machine.name, "FRONT END STANDS STILL", " ".join(link.name for link in held))
    lease_s = world.plan.policy.base_pace.lease_s
    interval_s = (KEEPALIVE_AFTER + KEEPALIVE_WITHIN) * lease_s / SIGNS_PER_SILENCE
    # The first sign that it misses comes within an interval. It may die at once.
    sign_in_s = random.uniform(0.0, interval_s)
    signs = random.choice([0, 1, 3, SIGNS_MAX, SIGNS_MAX])
    for unanswered in range(1, min(signs, SIGNS_PER_SILENCE)):
        if is_deaf(unanswered):
            at = clock.now + sign_in_s + unanswered * interval_s
            clock.at(at, None, partial(_submit, life, Deafened(seconds=interval_s)))
    until = clock.now + sign_in_s + (signs - 1) * interval_s if signs else clock.now
    clock.at(until, None, partial(_end, life, held, is_lost=signs in (0, SIGNS_MAX)))


def _end(life: Life[Any], links: Sequence[Link], *, is_lost: bool) -> None:
    """Have it go on, or all its streams break in one moment."""
    if is_lost:
        _submit(life, OutageEnded(has_cut_off=True))
    for link in links:
        if is_lost and not link.is_cut:
            link.cut("its front end died")
        link.stand_still(is_still=False)


def _submit(life: Life[Any], event: Deafened | OutageEnded) -> None:
    def submit() -> None:
        life.turns.submit(event, now=life.clock.now)

    life.clock.hand(life.actor, "front ends", submit)
