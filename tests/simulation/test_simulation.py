"""Worlds in virtual time, a seed each; and a check that the checks can fail.

``pytest tests/simulation --world several --seed N`` prints the life of one world,
``DRUMBEAT_SEEDS=N`` runs more of them than usual.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from drumbeat.coordinator.core.run.records import HostEvent
from drumbeat.coordinator.observe.goodput.stretches import Cause, Part
from tests.simulation.bad_hosts import BadHosts
from tests.simulation.checks.failover_mistakes import FAILOVER_MISTAKES
from tests.simulation.checks.mistakes import (
    ACCOUNT_MISTAKES,
    BAD_HOST_MISTAKES,
    BLACKOUT_MISTAKES,
    MISTAKES,
)
from tests.simulation.clock import readable
from tests.simulation.goodput.world import AccountedWorld
from tests.simulation.plan import Plan
from tests.simulation.special import Blackout, DeathsTogether
from tests.simulation.world import TICK_S, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.checks.mistakes import Mistake

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "200"))
# Longer worlds have fewer seeds, but not in a long run, which lives them all.
HALF = SEEDS if SEEDS > 200 else SEEDS // 2
# A run of pytest shows its progress and can be told where to go on, so not all in one test.
SEEDS_PER_TEST = 25
# How many worlds a mistake may survive.
MISTAKE_SEEDS_MAX = 1_000

# Seeds that once failed, and what they found. The worlds change when a plan or a fault is drawn
# in another order; the unit tests of what they found do not.
ALONE_REGRESSIONS = [
    10,  # an agent that had lost its coordinator for good spun until its workers were gone
    55,  # a supervisor with processes in the kernel's hands was told to start a round
    376,  # a stalled coordinator read an old hello late and fenced a live agent
    396,  # the same, and the round waited for the fenced agent for ever
    559,  # workers died with their supervisor amid an entry, and nobody decided on it
    789,  # a leader's time to reserve a port was that of the leader before it
    871,  # the same at the very first iteration, in a round of one host
    1298,  # the same after a completed one, while the coordinator was away
    2035,  # a stalled coordinator failed a run whose port report waited to be read
    2507,  # an agent given up after its success came back and started the same round again
    2770,  # a drained agent that left as the run ended stayed one that is to leave
]
SEVERAL_REGRESSIONS = [
    321,  # a leader that stood still gave up agents that were asking another one meanwhile
    376,  # the same, of a front end that stood still
    1278,  # the same, amid an iteration
    1533,  # the same, and a round ended
    5787,  # a lifted drain was a batch later than the round that began by it
    20224,  # agents asked the next leader too briefly, and it gave them up for that
    22225,  # the same, while the one before stood still
    42303,  # agents did not ask one again that had stood still, as long as others held them
    73172,  # a leader that stood still between two looks at an empty journal took it for broken
    75007,  # a campaign that arrived once more, amid a hand-over, made a term that it did not know
    72084,  # a hello that waited to be read ended the grace of an agent that was held elsewhere
    72806,  # a leader stood still while no deadline was due, and gave up agents held elsewhere
    73070,  # a run broke amid a drain, and the drained agent never heard that it was
    71196,  # a record behind one that broke its run was acknowledged, and that one was lost
    104356,  # the wait for a free port was over though its agent could be told nothing
    405870,  # the last host in a second call was lost, and the run succeeded all the same
    49048,  # a deadline stayed due once workers had died with their supervisor amid a goodbye
]
ACCOUNT_REGRESSIONS = [
    56,  # a host that never came back to a new coordinator had hung from the first second
    70,  # what interrupted an iteration for good was no cause of the round that followed
    339,  # what most hosts of a round failed alike in was charged to one of them
    521,  # a drained agent was told to leave by a core that broke, and never again
    966,  # a hello that had waited outside seemed to be the quickest
    1349,  # a rank that had ended was waited for, though it had told a heartbeat
]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Worlds of one kind: so many seeds of them, and those seeds that once failed."""

    make: Callable[[int], World]
    seeds: int
    regressions: Sequence[int] = ()
    mistakes: Sequence[Mistake] = ()
    expect: Callable[[list[Any]], None] = lambda _worlds: None
    """What holds of the first worlds together, or they would prove nothing."""


def expect_many_leaders(worlds: list[World]) -> None:
    """Coordinators take over, and some write too late."""
    watchers = [world.head.watcher for world in worlds]
    assert sum(watcher.takeovers for watcher in watchers) > 2 * len(worlds)
    assert sum(watcher.refused for watcher in watchers) > 1


def expect_exclusions(worlds: list[BadHosts]) -> None:
    """Hosts are excluded, kept for a limit, and let in again."""
    for kind in (HostEvent.EXCLUDED, HostEvent.NOT_EXCLUDED, HostEvent.READMITTED):
        assert sum(world.events[kind] for world in worlds) > 5, kind


def expect_every_cause(worlds: list[AccountedWorld]) -> None:
    """Accounts have every part and cause, and many borders are compared with the truth."""
    pieces = [piece for world in worlds for piece in world.account.pieces]
    assert {piece.part for piece in pieces} == set(Part) - {Part.UNKNOWN}
    # Rehearsals are rare in these worlds, and have tests of their own.
    assert {piece.cause for piece in pieces} | {Cause.REHEARSED} == {None, *Cause}
    assert sum(world.compared for world in worlds) > 100


SUITES = {
    "alone": Suite(
        make=lambda seed: World(Plan.draw(seed)),
        seeds=SEEDS,
        mistakes=MISTAKES,
        regressions=ALONE_REGRESSIONS,
    ),
    # Many machines lost at once cost two rounds at most.
    "blackout": Suite(make=Blackout, seeds=SEEDS // 4, mistakes=BLACKOUT_MISTAKES),
    # Hosts are excluded for failed rounds, for a while and within limits.
    "bad-hosts": Suite(
        make=BadHosts,
        seeds=SEEDS // 8,
        mistakes=BAD_HOST_MISTAKES,
        expect=expect_exclusions,
    ),
    "several": Suite(
        make=lambda seed: World(Plan.draw(seed).with_several()),
        seeds=HALF,
        mistakes=FAILOVER_MISTAKES,
        expect=expect_many_leaders,
        regressions=SEVERAL_REGRESSIONS,
    ),
    # The account of the run is what was heard and decided.
    "account": Suite(
        make=lambda seed: AccountedWorld(Plan.draw(seed).without_preflight()),
        seeds=HALF - HALF // 5,
        mistakes=ACCOUNT_MISTAKES,
        expect=expect_every_cause,
        regressions=ACCOUNT_REGRESSIONS,
    ),
    "account-of-several": Suite(
        make=lambda seed: AccountedWorld(Plan.draw(seed).without_preflight().with_several()),
        seeds=HALF // 5,
        regressions=[52],  # a leader counted as away while it noted that a host was healthy again
    ),
}


def live(kind: str, seed: int, *, verbose: bool = False) -> World:
    """Live one world; a failure brings its story."""
    world = SUITES[kind].make(seed)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, its world is what explains it
        pytest.fail(
            f"{readable(world.clock)}\n\nseed {seed}: {type(error).__name__}: {error}\n"
            f"replay: pytest tests/simulation --world {kind} --seed {seed}",
            pytrace=verbose,
        )
    if verbose:
        print(readable(world.clock))
    return world


def test_one_world(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    seed = request.config.getoption("--seed")
    if seed is None:
        pytest.skip("replays a world: --seed N")
    with capsys.disabled():
        live(request.config.getoption("--world"), seed, verbose=True)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (kind, first)
        for kind, suite in SUITES.items()
        for first in range(0, suite.seeds, SEEDS_PER_TEST)
    ],
)
def test_every_world_keeps_the_promises(kind: str, first: int) -> None:
    suite, worlds = SUITES[kind], []
    for seed in range(first, min(first + SEEDS_PER_TEST, suite.seeds)):
        worlds.append(live(kind, seed))
        worlds[-1].clock.trace.clear()  # it is long
    if first == 0 and len(worlds) == SEEDS_PER_TEST:
        suite.expect(worlds)


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, suite in SUITES.items() for seed in suite.regressions]
)
def test_worlds_that_once_failed(kind: str, seed: int) -> None:
    live(kind, seed)


@pytest.mark.parametrize("kind", ["alone", "several"])
def test_a_seed_is_one_world(kind: str) -> None:
    """Otherwise a failure could not be replayed."""
    stories = [readable(live(kind, 7).clock) for _ in range(2)]
    assert stories[0] == stories[1]


def test_an_agent_that_dies_with_the_leader_is_replaced_soon() -> None:
    """Within the wait for the next agent after one, and two seconds for the first to come back."""
    for seed in range(20):
        world = DeathsTogether(seed)
        world.run()
        policy = world.plan.policy
        bound_s = policy.rejoin_s(policy.base_pace) + 2.0
        assert world.replaced_after_s <= bound_s + TICK_S, f"seed {seed}"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "mistake"),
    [(kind, mistake) for kind, suite in SUITES.items() for mistake in suite.mistakes],
)
def test_a_mistake_is_found(kind: str, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    for seed in range(MISTAKE_SEEDS_MAX):
        try:
            SUITES[kind].make(seed).run()
        except Exception as error:
            is_found = isinstance(error, (AssertionError, LookupError))
            if not is_found and type(error).__name__ != "InvalidTransition":
                raise
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{MISTAKE_SEEDS_MAX} worlds did not mind")
