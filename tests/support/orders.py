"""How many orders of events a property test of a machine draws, and how."""

import os

from hypothesis import HealthCheck, Phase, settings

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "0"))
FEW = int(os.environ.get("DRUMBEAT_ORDERS", "0"))
# How many worlds the simulation lives if nothing is said. With fewer, less is tried of everything.
USUAL_WORLDS = 200
IS_LONG = SEEDS > USUAL_WORLDS


def at_most(usual: int) -> int:
    """Return how many of ``usual`` cases to try: a part, if there are fewer worlds than usual.

    ``DRUMBEAT_ORDERS`` sets how many at most.
    """
    part = max(1, usual * SEEDS // USUAL_WORLDS) if 0 < SEEDS < USUAL_WORLDS else usual
    return min(part, FEW) if FEW else part


def orders(usual: int, *, steps: int) -> settings:
    """Return settings for ``usual`` orders of up to ``steps`` events, the same ones each time.

    ``DRUMBEAT_SEEDS`` sets another number of them; more than usual are drawn at random.
    With ``DRUMBEAT_ORDERS`` there are that many of the usual ones, and a failing one is not shrunk.
    """
    return settings(
        max_examples=SEEDS if IS_LONG else at_most(usual),
        stateful_step_count=steps,
        derandomize=not IS_LONG,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([] if FEW else [Phase.shrink])],
    )
