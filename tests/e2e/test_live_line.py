"""``agent join`` on a terminal: one live line, which leaves the workers' output as it is."""

import os
import re
import signal
import sys

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE_S
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until_sync

TRAIN = """
import sys, time
import worker_sdk

for step in range(1, 101):
    time.sleep(0.02)
    worker_sdk.heartbeat(step, total_steps=int(sys.argv[1]))
    if step % 10 == 0:
        sys.stdout.write(f"loss {step}\\n")  # at once: an unbuffered print is several writes
        sys.stderr.write(f"warning {step}\\n")
"""
STEPS = r"round 0: 1 agent, step \d+ of 100, [0-9.]+ steps/s, \d+ (s|ms) left"
JOIN = [sys.executable, "-m", "drumbeat.agent", "join"]


def environment(cluster: Cluster) -> dict[str, str]:
    env = {key: value for key, value in cluster.environment().items() if key != "CI"}
    return {**env, "TERM": "xterm"}


@pytest.mark.slow
def test_training_is_shown_below_the_output_of_workers_which_stays_whole(cluster: Cluster) -> None:
    script = cluster.directory / "train.py"
    script.write_text(TRAIN)
    with Terminal(columns=72) as terminal:
        agent = terminal.start([*JOIN, str(script), "100"], environment(cluster))
        assert agent.wait(DEADLINE_S) == 0
    frames, lines = terminal.frames(), terminal.lines()
    assert any(re.fullmatch(STEPS, frame) for frame in frames), frames
    assert all(len(frame) < 72 or "agent:" in frame for frame in frames)
    for stream in ("loss", "warning"):
        wanted = [f"{stream} {step}" for step in range(10, 101, 10)]
        assert [line for line in lines if line.startswith(stream)] == wanted
    assert "run succeeded" in lines[-2]
    assert lines[-1] == ""
    assert b"\x1b[?25" not in terminal.output  # the cursor is left alone


def test_the_wait_for_others_is_shown_with_the_time_that_is_left(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    script = cluster.directory / "train.py"
    script.touch()
    joined = ("--coordinator", coordinator.address, "--run-id", "run", "--nnodes", "2")
    with Terminal() as terminal:
        agent = terminal.start([*JOIN, *joined, str(script)], environment(cluster))

        def is_shown() -> bool:
            return any(re.search(r"1 of 2 agents, waiting for 1, up to", f) for f in frames())

        frames = terminal.frames
        wait_until_sync(is_shown, DEADLINE_S, describe=lambda: str(terminal.output))
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait(DEADLINE_S)
    assert b"\x1b[?25" not in terminal.output
