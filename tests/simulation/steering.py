"""What an operator wants of the run at random instants, each until it is answered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from drumbeat.agent.core.events import SignalReceived
from drumbeat.coordinator.core.events import (
    CheckpointAsked,
    DrainAsked,
    RehearsalAsked,
    RestartAsked,
    StopAsked,
)
from drumbeat.coordinator.core.rehearsal.model import RehearsalPlan
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.model import FaultKind
from tests.simulation.plan import RUN, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from drumbeat.coordinator.core import effects as fx
    from tests.simulation.machines.coordinator import Life
    from tests.simulation.world import World

    Wish = Callable[[World, Random], None]

AGAIN_S = 2.0
SIGTERM = 15
_Wanted = CheckpointAsked | DrainAsked | RehearsalAsked | RestartAsked | StopAsked


def schedule(world: World, random: Random) -> None:
    """Put an operator's wishes on the clock of some worlds. From a source of its own."""
    if world.plan.kind is Kind.COORDINATOR or random.random() < 0.5:
        return
    wishes = random.sample(WISHES, k=random.randint(1, len(WISHES)))
    if random.random() < 0.1:
        instant = world.clock.now + random.uniform(5.0, world.plan.chaos_s)
        stop = partial(ask, world, StopAsked, grace_s=_grace(random))
        world.clock.at(instant, None, stop)
    instant = world.clock.now + random.uniform(0.0, 10.0)
    while instant < world.clock.now + world.plan.chaos_s:
        world.clock.at(instant, None, partial(random.choice(wishes), world, random))
        instant += random.expovariate(1 / 8.0)
    faults = world.clock.random("rehearsals")
    if faults.random() < 0.5:
        instant = world.clock.now + faults.uniform(0.0, world.plan.chaos_s / 2)
        world.clock.at(instant, None, partial(rehearse, world, faults))
    saves = world.clock.random("saves")
    for _ in range(saves.choice([0, 0, 1, 3])):
        instant = world.clock.now + saves.uniform(0.0, world.plan.chaos_s)
        world.clock.at(instant, None, partial(save, world, saves))


def ask(world: World, kind: type[_Wanted], **fields: Any) -> None:
    """Ask for something, until there is an answer."""
    clock, head = world.clock, world.head
    head.asked += 1
    common = {"run_id": RUN, "caller": "op", "call_id": f"call {head.asked}"}
    is_answered = False

    def answered(_answer: fx.Answer) -> None:
        nonlocal is_answered
        is_answered = True

    def attempt() -> None:
        if is_answered:
            return
        if (life := head.life) is not None:
            event = kind(request_id=life.expect(answered), **(common | fields))
            clock.note("operator", "ASKS", event)
            clock.hand(life.actor, "operator", partial(_submit, life, event))
        clock.after(AGAIN_S, None, attempt)

    attempt()


def _submit(life: Life[Any], event: _Wanted) -> None:
    try:
        life.turns.submit(event, now=life.clock.now)
    except CoordinatorError as error:
        life.clock.note("operator", "IS REFUSED", error)


def lift_all(world: World) -> None:
    """Let all hosts in again that were ever drained."""
    for host in world.hosts:
        ask(world, DrainAsked, name=host.name, run_id="", is_lifted=True)


def _grace(random: Random) -> float | None:
    return random.choice([None, None, 0.0, 1.0, 10.0])


def drain(world: World, random: Random) -> None:
    """Take a host out of the run, and let it in again after a while."""
    if world.is_healed:
        return
    name = random.choice(world.hosts).name
    ask(world, DrainAsked, name=name, run_id="", grace_s=_grace(random))
    lift = partial(ask, world, DrainAsked, name=name, run_id="", is_lifted=True)
    world.clock.after(random.choice([0.5, 5.0, 20.0]) * random.random(), None, lift)


def restart(world: World, random: Random) -> None:
    """Have another round."""
    if not world.is_healed:
        ask(world, RestartAsked, grace_s=_grace(random))


def save(world: World, random: Random) -> None:
    """Have training save, and go on."""
    if not world.is_healed:
        ask(world, CheckpointAsked, grace_s=_grace(random))


def rehearse(world: World, random: Random) -> None:
    """Have faults injected, some of them soon after one another."""
    kinds = [kind for kind in FaultKind if kind is not FaultKind.OTHER]
    plan = RehearsalPlan(
        kinds=tuple(random.sample(kinds, k=random.randint(1, len(kinds)))),
        every_s=random.choice([1.0, 4.0, 10.0]),
        at_most=random.randint(1, 6),
        pause_s=random.choice([0.3, 4.0, 20.0]),
        seed=random.randrange(2**32),
        is_first_now=random.random() < 0.3,
        may_overlap=random.random() < 0.2,
    )
    if not world.is_healed:
        ask(world, RehearsalAsked, plan=plan)


def end_rehearsal(world: World) -> None:
    """Have no further fault injected."""
    ask(world, RehearsalAsked)


def preempt(world: World, random: Random) -> None:
    """A host is told that it will go away; its agent is started elsewhere, so to say."""
    host = random.choice(world.hosts)
    if world.is_healed or (agent := host.agent) is None:
        return
    event = SignalReceived(signum=SIGTERM, is_preemption=True)
    world.clock.hand(agent.actor, "signal", lambda: agent.submit(event))
    world.clock.after(random.choice([0.1, 5.0, 40.0]), None, host.start_agent)


WISHES: list[Wish] = [drain, drain, restart, preempt]
