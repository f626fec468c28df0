"""A host that is told that it will go away: all ranks save at one step, the others go on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import ROOT
from tests.support.waiting import MS, wait_until_sync

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

SCRIPT = str(ROOT / "tests" / "support" / "workers" / "saving.py")
START_S = 60_000 * MS


def test_ranks_save_at_one_step_before_a_host_goes_away(cluster: Cluster) -> None:
    directory = cluster.directory / "saved"
    directory.mkdir()
    coordinator = cluster.coordinator()
    options = (
        *("--nnodes", "2:3", "--last-call", "30s", "--run-id", "r"),
        *("--preemption-signal", "SIGTERM", "--preemption-grace", "20s"),
    )
    agents = [
        cluster.agent(*options, SCRIPT, str(directory), "1000000", coordinator=coordinator)
        for _ in range(3)
    ]

    def steps(round_id: int, ranks: int) -> bool:
        files = [directory / f"done-{round_id}-{rank}" for rank in range(ranks)]
        return all(file.exists() and len(file.read_text().split()) > 5 for file in files)

    wait_until_sync(lambda: steps(0, 3), START_S)
    leaver = agents[1]
    os.kill(leaver.pid, signal.SIGTERM)
    assert leaver.wait() == 128 + signal.SIGTERM
    saved = sorted(file.name.split("-") for file in directory.glob("saved-*"))
    assert [(rank, kind) for _, rank, _, kind in saved] == [
        (rank, "preemption") for rank in "012"
    ], saved
    assert len({step for _, _, step, _ in saved}) == 1, saved
    wait_until_sync(lambda: steps(1, 2), START_S)
    assert (directory / "done-1-0").read_text().split()[0] == str(int(saved[0][2]) + 1)
    (directory / "stop").touch()
    others = [agents[0], agents[2]]
    assert [agent.wait() for agent in others] == [0, 0]
    assert coordinator.run("r").restart_count == 0
