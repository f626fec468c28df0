"""Whole clusters in virtual time, a seed each; and a check that the checks can fail.

``pytest tests/simulation --seed N`` prints the life of one world,
``DRUMBEAT_SEEDS=N`` runs more of them than usual.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.simulation.blackout import Blackout
from tests.simulation.checks.broken import BLACKOUT_MISTAKES, MISTAKES
from tests.simulation.clock import readable
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "200"))
# A run of pytest shows its progress and can be told where to go on, so not all in one test.
SEEDS_PER_TEST = 25
# How many worlds a mistake may survive.
MISTAKE_SEEDS_MAX = 1_000

# Seeds that once failed, and what they found. The worlds change when a plan or a
# fault is drawn in another order; the unit tests named beside them do not.
REGRESSIONS = [
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
]


def world(seed: int) -> Cluster:
    """Return the world of this seed with all faults."""
    return Cluster(Plan.draw(seed))


def live(seed: int, make: Callable[[int], Cluster] = world, *, verbose: bool = False) -> None:
    """Live one world; a failure brings its story."""
    option = "--seed" if make is world else "--failover-seed"
    cluster = make(seed)
    try:
        cluster.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, its world is what explains it
        story = readable(cluster.clock)
        pytest.fail(
            f"{story}\n\nseed {seed}: {type(error).__name__}: {error}\n"
            f"replay: pytest tests/simulation {option} {seed}",
            pytrace=verbose,
        )
    if verbose:
        print(readable(cluster.clock))


@pytest.fixture
def the_seed(request: pytest.FixtureRequest) -> int | None:
    seed: int | None = request.config.getoption("--seed", default=None)
    return seed


def test_one_world(the_seed: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    if the_seed is None:
        pytest.skip("replays a world: --seed N")
    with capsys.disabled():
        live(the_seed, verbose=True)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_world_keeps_the_promises(first: int, the_seed: int | None) -> None:
    if the_seed is not None:
        pytest.skip("replays one world only")
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        live(seed)


@pytest.mark.parametrize("first", range(0, SEEDS // 4, SEEDS_PER_TEST))
def test_many_machines_lost_at_once_cost_two_rounds_at_most(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        live(seed, Blackout)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_worlds_that_once_failed(seed: int) -> None:
    live(seed)


def test_a_seed_is_one_world() -> None:
    """Otherwise a failure could not be replayed."""
    stories = []
    for _ in range(2):
        cluster = Cluster(Plan.draw(7))
        cluster.run()
        stories.append(readable(cluster.clock))
    assert stories[0] == stories[1]


@pytest.mark.soak
@pytest.mark.parametrize(
    "mistake", [*MISTAKES, *BLACKOUT_MISTAKES], ids=lambda mistake: mistake.__name__
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    make = Blackout if mistake in BLACKOUT_MISTAKES else world
    for seed in range(MISTAKE_SEEDS_MAX):
        try:
            make(seed).run()
        except (AssertionError, LookupError) as error:
            print(f"seed {seed}: {error}")
            return
        except Exception as error:
            if type(error).__name__ != "InvalidTransition":
                raise
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{MISTAKE_SEEDS_MAX} worlds did not mind")
