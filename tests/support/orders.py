"""How many orders of events a property test of a machine draws, and how."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "0"))
FEW = int(os.environ.get("DRUMBEAT_ORDERS", "0"))


def orders(usual: int, *, steps: int) -> settings:
    """Return settings for ``usual`` orders of up to ``steps`` events, the same ones each time.

    ``DRUMBEAT_SEEDS`` sets another number of them, which are then drawn at random.
    With ``DRUMBEAT_ORDERS`` there are that many of the usual ones, and a failing one is not shrunk.
    """
    return settings(
        max_examples=SEEDS or FEW or usual,
        stateful_step_count=steps,
        derandomize=not SEEDS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([] if FEW else [Phase.shrink])],
    )
