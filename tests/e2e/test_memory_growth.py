"""Ranks whose memory grows are named, and no others, whatever shape the others' memory has."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

# Four shapes of memory, each of four workers with a size, a period and a phase of its own.
TRAIN = """
import os, random, time

import worker_sdk

rank = int(os.environ["RANK"])
chosen = random.Random(int(os.environ["DRUMBEAT_TEST_SEED"]) * 100 + rank)
size, period, phase = chosen.randint(30, 80), chosen.uniform(5, 15), chosen.uniform(0, 15)
began, step, kept = time.monotonic(), 0, []


def megabytes(since):
    match rank % 4:
        case 0:  # grows by 30 to 80 MB a minute
            return int(size * since / 60)
        case 1:  # steady, with a little noise
            return size + chosen.randint(0, 4)
        case 2:  # a cache that fills and is dropped
            return int(size * ((since + phase) % period) / period)
        case 3:  # loads once, and loads more later
            return size * ((since > phase) + (since > phase + 40))


while time.monotonic() < began + 200:
    wanted = megabytes(time.monotonic() - began)
    del kept[wanted:]
    while len(kept) < wanted:
        kept.append(b"x" * (1 << 20))
    worker_sdk.heartbeat(step := step + 1)
    time.sleep(0.2)
"""
SEEDS = range(int(os.environ.get("DRUMBEAT_GROWTHS", "2")))
GROWING = {0, 4, 8, 12}


@pytest.mark.parametrize("seed", SEEDS)
def test_growing_ranks_are_named_and_no_others(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator()
    agent = cluster.agent(
        "--nproc-per-node", "16", str(script),
        coordinator=coordinator, env={"DRUMBEAT_TEST_SEED": str(seed)},
    )  # fmt: skip
    began, named = time.monotonic(), set[int]()
    while time.monotonic() < began + 180:
        status = cluster.process(
            "status", "coordinator", "status", cluster.run_id, "-o", "json",
            "--coordinator", coordinator.address,
        )  # fmt: skip
        assert status.wait() == 0
        growing = {rank["rank"] for rank in json.loads(status.stdout)["memory_growth"]}
        assert growing <= GROWING, f"after {time.monotonic() - began:.0f} s"
        if growing - named:
            print(f"seed {seed}: {sorted(growing)} after {time.monotonic() - began:.0f} s")
        named |= growing
        time.sleep(1)
    agent.terminate()
    assert named == GROWING
