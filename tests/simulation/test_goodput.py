"""The account of a run against what the hosts of the simulation really did."""

from __future__ import annotations

import dataclasses
import os
from itertools import count, islice

import pytest

from coordinator.core.progress.goodput import SECOND, Part
from tests.simulation.clock import readable
from tests.simulation.goodput import LATE_S, make
from tests.simulation.plan import Kind, Plan

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "200")) // 10


def plans(number: int) -> list[Plan]:
    """Return worlds in which nothing but workers or the coordinator fails, with quick messages."""
    drawn = (Plan.draw(seed) for seed in count())
    fit = (plan for plan in drawn if plan.kind is not Kind.CHAOS and plan.conduct is None)
    return [
        dataclasses.replace(plan, delay_max_s=0.01, finishes_early=0.0)
        for plan in islice(fit, number)
    ]


@pytest.mark.parametrize("kind", [Kind.WORKERS, Kind.COORDINATOR])
def test_the_account_is_what_the_hosts_did(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for plan in plans(SEEDS):
        if plan.kind is not kind:
            continue
        with monkeypatch.context() as patch:
            cluster = make(patch, plan)
            cluster.run()
        shadow = cluster.checker.shadow
        assert shadow is not None
        account, expected = shadow.goodput, cluster.expected()
        account.check_invariants()
        borders = len(cluster.stretches) + len(cluster.away)
        late_s = LATE_S + 2 * plan.policy.base_pace.heartbeat_interval_s
        for part in Part:
            known = account.parts[part].run / SECOND if part in account.parts else 0.0
            is_equal = known == pytest.approx(expected[part], abs=late_s * borders)
            assert is_equal, (
                f"{readable(cluster.clock)}\n\nseed {plan.seed}: {part} is {known}, "
                f"really {expected[part]}: {cluster.stretches} {account.parts}"
            )
