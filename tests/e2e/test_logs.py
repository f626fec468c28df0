"""`coordinator logs`: what workers write on any host, for as long as it is wanted."""

import json
import re
import stat
from pathlib import Path

import pytest

from tests.support.archives import unpacked
from tests.support.cluster import Cluster, Coordinator
from tests.support.processes import DEADLINE_S, Process
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.slow

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


def seen_last(follower: Process, rank: int, number: int) -> list[int]:
    return numbers(follower, rank)[-number:]


FAILS_ONCE = """
import os, sys

rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
print("padding\\n" * 8_000, end="")
print(f"2026-01-01 INFO attempt {attempt} begins")
print(f"2026-01-01 ERROR {os.environ['SOME_TOKEN']}", file=sys.stderr)
print("  no traceback", file=sys.stderr)
if attempt == "0" and rank == 3:
    raise SystemExit("no such shard")
print(f"rank {rank} is done")
"""


class Kept:
    """What a coordinator has kept of the run ``run``, whose logs are in a folder."""

    def __init__(self, coordinator: Coordinator, folder: Path) -> None:
        self._coordinator, self._folder = coordinator, folder

    def logs(self, *options: str) -> Process:
        asked = self._coordinator.operate("logs", "run", *options)
        assert asked.wait() == 0, asked.log()
        return asked

    def check(self) -> None:
        last = self.logs()
        for rank in range(4):
            assert f"[rank{rank}]: rank {rank} is done" in last.stdout
            assert f"[rank{rank}]: 2026-01-01 INFO attempt 1 begins" in last.stdout
        assert "zebra-crossing" not in last.stdout
        files = sorted(str(path) for path in self._folder.glob("*/attempt_1/*/stdout.log"))
        assert len(files) == 2
        for path in files:
            where = rf"rank \d on gpu1: all of its stdout is in {path} on \S+$"
            assert re.search(where, last.stderr, re.MULTILINE)
        assert "on gpu0: only the end of its output is kept, for it went to no file" in last.stderr
        failed = self.logs("--round", "0", "--rank", "3")
        assert "[rank3]: no such shard" in failed.stdout
        found = self.logs("--round", "0", "--rank", "3", "--grep", "SHARD").stdout
        assert found == "[rank3]: no such shard"

    def files(self) -> list[Path]:
        return list((self._coordinator.state_dir / "output").iterdir())


def test_the_end_of_output_outlives_agents_and_coordinator(cluster: Cluster) -> None:
    script, folder = cluster.directory / "train.py", cluster.directory / "logs"
    script.write_text(FAILS_ONCE)
    coordinator = cluster.own_coordinator()
    agents = [
        cluster.agent(
            *("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "--name", name),
            *(*options, str(script)),
            coordinator=coordinator,
            env={"SOME_TOKEN": "zebra-crossing"},
        )
        for name, options in (
            ("gpu0", ()),
            ("gpu1", ("--redirects", "3", "--log-dir", str(folder))),
        )
    ]
    assert [agent.wait() for agent in agents] == [0, 0]

    kept = Kept(coordinator, folder)
    kept.check()
    severe = kept.logs("--level", "error", "--timestamps", "--rank", "0")
    assert severe.stdout == (
        "-              [rank0]: 2026-01-01 ERROR [value of SOME_TOKEN]\n"
        "-              [rank0]:   no traceback"
    )
    told = [json.loads(line) for line in kept.logs("-o", "json").stdout.splitlines()]
    assert {of["path"].rpartition("/")[2] for of in told if "path" in of} == {
        "stdout.log",
        "stderr.log",
    }
    refused = coordinator.operate("logs", "run", "--round", "5")
    assert refused.wait() == 2
    assert "--round: 5 is given, allowed is a round whose output is kept: 0-1" in refused.stderr

    target = cluster.directory / "evidence.tar.gz"
    assert coordinator.operate("evidence", "run", "-o", str(target)).wait() == 0
    found = unpacked(target)
    assert "rank 3 is done\n" in found["logs/rank-3-stdout.txt"]
    assert "no such shard\n" in found["logs/round-0-rank-3-stderr.txt"]

    coordinator.kill()
    coordinator.restart()
    kept.check()
    assert [stat.S_IMODE(path.stat().st_mode) for path in kept.files()] == [0o600] * 2
    assert coordinator.operate("forget", "run").wait() == 0
    wait_until_sync(lambda: not kept.files(), DEADLINE_S)


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
    out = [each for each in told if each["stream"] == "stdout" and "path" not in each]
    assert len(out) >= 3, told
    assert out[0].keys() == {"rank", "round_id", "stream", "name", "host", "line", "age_s"}

    status = json.loads(coordinator.operate("status", "run", "-o", "json").stdout)
    places = {agent["name"]: agent["log_dir"] for agent in status["agents"]}
    assert places["gpu0"] is None
    assert re.search(r"/run_\w+/attempt_0$", places["gpu1"])

    done.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert follower.wait() == 0, follower.log()
    for rank in range(4):
        seen = numbers(follower, rank)
        assert seen == list(range(seen[0], seen[0] + len(seen))), "no line twice, and none left out"
        assert f"[rank{rank}]: rank {rank} is done" in follower.stdout.splitlines()
    assert "no output" not in follower.stderr, "agents that come back are not named"
    ended = coordinator.operate("logs", "run", "--rank", "0,3")
    assert ended.wait() == 0, ended.log()
    for rank in (0, 3):
        assert numbers(ended, rank) == seen_last(follower, rank, 19)
        assert f"[rank{rank}]: rank {rank} is done" in ended.stdout.splitlines()
