"""What readers of a world are told has an order; with a mistake in the product it has none."""

from contextlib import suppress

import pytest

from tests.simulation.checks import failover_mistakes
from tests.simulation.plan import Plan
from tests.simulation.world import World

SEEDS = 20


def world_of(seed: int) -> World:
    return World(Plan.draw(seed).with_several())


def test_readers_are_told_a_lot() -> None:
    world = world_of(7)
    world.run()
    assert world.histories.size > 100


@pytest.mark.slow
def test_readers_notice_two_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else notices them, and ends their world."""
    failover_mistakes.leads_beside_another(monkeypatch)
    for seed in range(SEEDS):
        world = world_of(seed)
        with suppress(Exception):
            world.run()
        if "who or what led" in world.histories.problem():
            return
    pytest.fail(f"the readers of {SEEDS} worlds noticed nothing")
