"""Worlds with several coordinators, a seed each; and a check that the checks can fail.

``pytest tests/simulation --failover-seed N`` prints the life of one world,
``DRUMBEAT_SEEDS=N`` runs more of them than usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.clock import readable
from tests.simulation.cluster import TICK_S
from tests.simulation.failover.deaths import DeathsTogether
from tests.simulation.failover.mistakes import MISTAKES
from tests.simulation.failover.world import FailoverCluster
from tests.simulation.test_simulation import MISTAKE_SEEDS_MAX, SEEDS, SEEDS_PER_TEST, live

if TYPE_CHECKING:
    from collections.abc import Callable

# Each of these worlds is as long as two of the others.
FAILOVER_SEEDS = SEEDS if SEEDS > 200 else SEEDS // 2

# Seeds that once failed, and what they found.
REGRESSIONS = [
    321,  # a leader that stood still gave up agents that were asking another one meanwhile
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


def test_one_world(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    seed = request.config.getoption("--failover-seed")
    if seed is None:
        pytest.skip("replays a world: --failover-seed N")
    with capsys.disabled():
        live(seed, FailoverCluster, verbose=True)


@pytest.mark.parametrize("first", range(0, FAILOVER_SEEDS, SEEDS_PER_TEST))
def test_every_world_keeps_the_promises(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, FAILOVER_SEEDS)):
        live(seed, FailoverCluster)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_worlds_that_once_failed(seed: int) -> None:
    live(seed, FailoverCluster)


def test_an_agent_that_dies_with_the_leader_is_replaced_soon() -> None:
    """Within the wait for the next agent after one, and two seconds for the first to come back."""
    for seed in range(20):
        cluster = DeathsTogether(seed)
        cluster.run()
        policy = cluster.plan.policy
        bound_s = policy.rejoin_s(policy.base_pace) + 2.0
        assert cluster.replaced_after_s <= bound_s + TICK_S, f"seed {seed}"


def test_a_seed_is_one_world() -> None:
    stories = []
    for _ in range(2):
        cluster = FailoverCluster(7)
        cluster.run()
        stories.append(readable(cluster.clock))
    assert stories[0] == stories[1]


def test_worlds_have_many_leaders_and_some_write_too_late() -> None:
    """Else they would prove nothing."""
    takeovers = refused = 0
    for seed in range(10):
        cluster = FailoverCluster(seed)
        cluster.run()
        takeovers += cluster.head.watcher.takeovers
        refused += cluster.head.watcher.refused
    assert takeovers > 20
    assert refused > 1


@pytest.mark.soak
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    for seed in range(MISTAKE_SEEDS_MAX):
        try:
            FailoverCluster(seed).run()
        except (AssertionError, LookupError) as error:
            print(f"seed {seed}: {error}")
            return
        except Exception as error:
            if type(error).__name__ != "InvalidTransition":
                raise
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{MISTAKE_SEEDS_MAX} worlds did not mind")
