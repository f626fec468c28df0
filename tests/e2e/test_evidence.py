"""Evidence of real runs: asked for by an operator, and written when a run fails or hangs."""

import json
from pathlib import Path

import pytest

from drumbeat.access.token import Role
from tests.support.archives import archives_in, unpacked
from tests.support.cluster import Cluster, Coordinator
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.timeout(180)

SECRETS = ("zebra-crossing-1", "zebra-crossing-2", "zebra-crossing-3", "zebra-crossing-4")
TRAIN = """
import os, pathlib, sys, time, worker_sdk

done = pathlib.Path(sys.argv[1])
print("args", sys.argv[2:], os.environ["SOME_TOKEN"], flush=True)
print("password=zebra-crossing-4 https://me:zebra-crossing-3@host/x", file=sys.stderr, flush=True)
step = 0
while not done.exists():
    worker_sdk.heartbeat(step=step)
    print(f"step {step}", flush=True)
    step += 1
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    raise ValueError(f"no such shard, {os.environ['SOME_TOKEN']}")
time.sleep(600)
"""


def kept_in(cluster: Cluster, *options: str) -> tuple[Coordinator, Path]:
    directory = cluster.directory / "kept"
    return cluster.coordinator("--evidence-dir", str(directory), *options), directory


def check_secrets(found: dict[str, str]) -> None:
    for name, text in found.items():
        assert [secret for secret in SECRETS if secret in text] == [], name


@pytest.mark.slow
def test_a_run_has_evidence_while_it_lives_and_by_itself_when_it_fails(cluster: Cluster) -> None:
    coordinator, kept = kept_in(cluster)
    script, done = cluster.directory / "train.py", cluster.directory / "done"
    script.write_text(TRAIN)
    agent = cluster.agent(
        *("--nproc-per-node", "2", "--max-restarts", "0", str(script), str(done)),
        *("--api-key", SECRETS[1], "--url", f"https://host/?access_token={SECRETS[2]}"),
        coordinator=coordinator,
        env={"SOME_TOKEN": SECRETS[0]},
    )
    agent.wait_for_line("step 3$")
    target = cluster.directory / "live.tar.gz"
    refused = cluster.private_file("join", coordinator.create_token().text())
    asked = coordinator.operate("evidence", "run", "-o", str(target), "--token-file", refused)
    assert asked.wait() == 2
    assert "needs the role admin or view" in asked.stderr
    assert not target.exists()
    viewer = cluster.private_file("view", coordinator.create_token(Role.VIEW).text())
    asked = coordinator.operate("evidence", "run", "-o", str(target), "--token-file", viewer)
    assert asked.wait() == 0, asked.log()
    found = unpacked(target)
    assert "2 ranks (0 on " in found["stacks.txt"]
    assert "step 2\n" in found["logs/rank-0-stdout.txt"]
    assert "[value of api-key]" in found["logs/rank-0-stdout.txt"]
    check_secrets(found)

    done.touch()
    assert agent.wait() == 1
    wait_until_sync(lambda: archives_in(kept), DEADLINE_S)
    (path,) = archives_in(kept)
    found = unpacked(path)
    (cause,) = json.loads(found["report.json"])["root_causes"]
    assert cause["rank"] == 1
    assert "no such shard" in cause["message"]
    assert "line 14, in <module>" in found["report.txt"]
    check_secrets(found)
    assert json.loads(found["status.json"])["phase"] == "ended"


@pytest.mark.slow
def test_a_hang_has_evidence_by_itself_with_its_stacks(cluster: Cluster) -> None:
    coordinator, kept = kept_in(cluster)
    way = "deadlock_in_scope"
    cluster.agent("-m", "tests.support.workers.ways_to_hang", way, "1.0", coordinator=coordinator)
    wait_until_sync(lambda: len(archives_in(kept)) == 2, DEADLINE_S)
    hung, failed = map(unpacked, archives_in(kept))
    assert "the run hangs" in hung["README.txt"]
    assert way in hung["hang.txt"]
    assert way in failed["report.txt"]
