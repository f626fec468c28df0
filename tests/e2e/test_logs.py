"""`coordinator logs`: what workers write on any host, for as long as it is wanted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.processes import Process

pytestmark = pytest.mark.e2e

TRAIN = """
import itertools, os, pathlib, sys, time

rank, done = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
for number in itertools.count():
    print(f"line {number}", flush=True)
    if number % 50 == 0:
        print(f"error {number} \\x1b[2J{os.environ['SOME_TOKEN']}", file=sys.stderr, flush=True)
    if done.exists():
        break
    time.sleep(0.005)
sys.stdout.write(f"rank {rank} is done")
"""


def numbers(follower: Process, rank: int) -> list[int]:
    found = re.findall(rf"^\[rank{rank}\]: line (\d+)$", follower.stdout, re.MULTILINE)
    return [int(each) for each in found]


@pytest.mark.slow
def test_output_is_followed_through_a_coordinator_restart(cluster: Cluster) -> None:
    script, done = cluster.directory / "train.py", cluster.directory / "done"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator()
    # The output of one agent is in pipes, that of the other in files.
    agents = [
        cluster.agent(
            *("--nnodes", "2", "--nproc-per-node", "2", "--name", name, *options),
            *(str(script), str(done)),
            coordinator=coordinator,
            env={"SOME_TOKEN": "zebra-crossing"},
        )
        for name, options in (("gpu0", ()), ("gpu1", ("--redirects", "3")))
    ]
    agents[0].wait_for_line(r"line \d+$")
    argv = ("coordinator", "logs", "run", "--follow", "--tail", "5")
    follower = cluster.process("follower", *argv, "--coordinator", coordinator.address)
    for rank in range(4):
        follower.wait_for_line(rf"\[rank{rank}\]: line ")
    follower.wait_for_line(r"\[rank\d\]: error \d+ \\x1b\[2J\[value of SOME_TOKEN\]$")

    coordinator.kill()
    follower.wait_for_line(r"waiting for it$")
    coordinator.restart()
    follower.wait_for_line(r"coordinator: it is back$")
    for rank in range(4):
        last = numbers(follower, rank)[-1]
        follower.wait_for_line(rf"\[rank{rank}\]: line {last + 50}$")

    unknown = coordinator.operate("logs", "run", "--rank", "0,7")
    assert unknown.wait() == 2
    assert "--rank: 7 is given, allowed is 0 to 3, the ranks of round 0" in unknown.stderr

    asked = coordinator.operate("logs", "run", "--rank", "2", "--tail", "3", "-o", "json")
    assert asked.wait() == 0, asked.log()
    told = [json.loads(line) for line in asked.stdout.splitlines()]
    assert {each["rank"] for each in told} == {2}
    out = [each for each in told if each["stream"] == "stdout"]
    assert len(out) >= 3, told
    assert out[0].keys() == {"rank", "round_id", "stream", "name", "host", "line"}

    done.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert follower.wait() == 0, follower.log()
    for rank in range(4):
        seen = numbers(follower, rank)
        assert seen == list(range(seen[0], seen[0] + len(seen))), "no line twice, and none left out"
        assert f"[rank{rank}]: rank {rank} is done" in follower.stdout.splitlines()
    assert "no output" not in follower.stderr, "agents that come back are not named"
    ended = coordinator.operate("logs", "run")
    assert ended.wait() == 2
    assert "run run has ended, and its agents with it" in ended.stderr
