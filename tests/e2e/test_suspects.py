"""Workers that accuse hosts: by a call, and by an exception; with real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("shared_coordinator")]

TRAIN = """
import worker_sdk

class WrongSum(ValueError):
    drumbeat_suspect_rank = 0

@worker_sdk.record
def main():
    worker_sdk.suspect_host("checksum differs")
    worker_sdk.suspect_host(None, rank=-1)
    raise WrongSum("5 instead of 4")

main()
"""


@pytest.mark.slow
def test_a_call_and_an_exception_accuse_a_host(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    coordinator = cluster.coordinator()
    agent = cluster.agent(
        "--max-restarts", "1", str(tmp_path / "train.py"), coordinator=coordinator
    )
    assert agent.wait() == 1, agent.log()
    assert "allowed is None or a rank from 0" in agent.log()
    told = [event.reason for event in coordinator.run(cluster.run_id).history]
    accused = [reason for reason in told if " accuses rank 0 on " in reason]
    assert accused, told
    assert any(reason.endswith(": checksum differs") for reason in accused), accused


def test_without_an_agent_an_accusation_does_nothing() -> None:
    code = "import worker_sdk; worker_sdk.suspect_host('x', rank='y'); print('went on')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "went on\n"
