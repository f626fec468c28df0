"""A script written for torch's file timers runs unmodified, and nothing overflows."""

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SETUP = """
import os
import time
import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
"""
ENABLED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
OPTIONS = ("--standalone", "--nproc-per-node", "2")

BUSY = """
for step in range(3000):
    with timer.expires(after=60):
        pass
print("no overflow", flush=True)
"""

STUCK = """
def wait_here():
    with timer.expires(after=1, scope="the step"):
        time.sleep(600)

if os.environ["RANK"] == "1":
    wait_here()
time.sleep(600)
"""


def script(cluster: Cluster, text: str) -> str:
    path = cluster.directory / "train.py"
    path.write_text(SETUP + text)
    return str(path)


@pytest.mark.slow
def test_thousands_of_timers_do_not_overflow(cluster: Cluster) -> None:
    agent = cluster.agent(*OPTIONS, script(cluster, BUSY), env=ENABLED)
    assert agent.wait(120) == 0, agent.log()
    assert agent.stdout.count("no overflow") == 2


@pytest.mark.slow
def test_an_expired_timer_ends_its_worker(cluster: Cluster) -> None:
    agent = cluster.agent(*OPTIONS, script(cluster, STUCK), env=ENABLED)
    assert agent.wait(120) == 1
    assert "rank 1 on" in agent.stderr
    assert "timer 'the step'" in agent.stderr
    assert "SIGKILL" in agent.stderr, "the signal that torch's client names"
