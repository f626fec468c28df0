"""Commands of the documentation, run as they are written, on this machine alone.

``tests/unit/test_docs_commands.py`` reads all others.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster
from tests.support.fences import Block, blocks
from tests.support.processes import ROOT, Process
from tests.support.waiting import MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
TRAINING_S = 60_000 * MS
STEERING = ["note", "restart", "checkpoint", "drains", "drain", "undrain", "stop", "forget"]
"""The verbs of the section Steering, in an order in which each can be carried out."""
ENDLESS = """
import itertools, os, time
for step in itertools.count():
    time.sleep(0.1)
    if os.environ["RANK"] == "0":
        print("step", step, flush=True)
"""
"""Takes the place of the README's script where training goes on until it is stopped."""


def command(page: str, beginning: str) -> str:
    """Return the command of a page that begins so."""
    lines = [line for block in blocks() if block.page == page for line in block.commands()]
    (line,) = [line for line in lines if line.startswith(beginning)]
    return line


def first_script() -> Block:
    return next(block for block in blocks() if block.page == "README.md")


def rows(heading: str) -> list[str]:
    """Return the commands of the first table below a heading of docs/operating.md."""
    page = (ROOT / "docs/operating.md").read_text()
    section = page.split(f"# {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"(?m)^\| `(coordinator [^`]+)`", section)
    names = {"[RUN]": "exp1", "RUN": "exp1", "NAME": "gpu7", "TEXT": "why"}
    return [re.sub(r"\[RUN\]|RUN|NAME|TEXT", lambda name: names[name[0]], line) for line in lines]


def has_all_names(code: str) -> bool:
    undefined = [str(BIN / "ruff"), "check", "--isolated", "--quiet", "--select", "F821", "-"]
    checked = subprocess.run(undefined, check=False, input=code.encode(), capture_output=True)
    return checked.returncode == 0


class Reader:
    """Types commands, in a directory and an environment of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.directory = cluster.directory
        self._cluster = cluster
        self.env = {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.script = self.directory / "train.py"
        self.script.write_text(first_script().text)

    def start(self, line: str, *replaced: tuple[str, str]) -> Process:
        """Start a command, with other words in place of some."""
        for old, new in replaced:
            assert old in line, f"{old!r} is not in {line!r}"
            line = line.replace(old, new)
        text = f"cd {self.directory} && exec {line}"
        return self._cluster.command(line, "bash", "-c", text, env=self.env)

    def run(self, line: str, code: int = 0) -> str:
        """Run a command to its end; return its standard output."""
        process = self.start(line)
        assert process.wait() == code, process.log()
        return process.stdout


@pytest.fixture
def reader(cluster: Cluster) -> Reader:
    return Reader(cluster)


@pytest.mark.torch
def test_the_first_job_of_the_readme_survives_a_killed_worker(reader: Reader) -> None:
    agent = reader.start(command("README.md", "agent join --nproc-per-node 2"))
    agent.wait_for_line(r"^step 20$", TRAINING_S)
    children = psutil.Process(agent.pid).children(recursive=True)
    workers = [child for child in children if child.cmdline()[-1:] == ["train.py"]]
    assert len(workers) == 2
    workers[-1].kill()
    agent.wait_for_line(r"agent: warning: rank \d failed: SIGKILL; restarting, 1 of 3$")
    agent.wait_for_line(r"agent: round 1: 2 workers on 1 agent, \d+ ms later$")
    agent.wait_for_line(r"^step 40$", TRAINING_S)
    agent.send(signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT


def test_a_cluster_is_looked_at_and_steered_as_readme_and_operating_say(reader: Reader) -> None:
    reader.script.write_text(ENDLESS)
    ours = f"--host 127.0.0.1 --port 0 --http-port 0 --state-dir {reader.directory}/state"
    serve = command("README.md", "coordinator serve --host 0.0.0.0        #")
    coordinator = reader.start(serve, ("--host 0.0.0.0", ours))
    port = coordinator.wait_for_line(r"coordinator ready at \S+:(\d+)$")[1]
    reader.env["DRUMBEAT_COORDINATOR"] = f"127.0.0.1:{port}"

    join = command("README.md", "agent join --coordinator head:29400")
    address = ("head:29400", reader.env["DRUMBEAT_COORDINATOR"])
    agents = []
    for name in ("gpu7", "gpu8"):
        size = ("--nproc-per-node 8", f"--nproc-per-node 1 --name {name}")
        agents.append(reader.start(join, address, size))
        agents[0].wait_for_line("standing by")  # so that rank 0 is on the first
    agents[0].wait_for_line(r"^step \d+$", TRAINING_S)

    looking = [line for line in rows("Operating") if not line.startswith("coordinator watch")]
    looking += [command("README.md", f"coordinator {verb}") for verb in ("status", "why")]
    for line in looking:
        reader.run(line, 2 if " verdict " in line else 0)  # it has not ended, so it has no verdict
    assert len(list(reader.directory.glob("drumbeat-exp1-*.tar.gz"))) == 1
    followers = [
        reader.start("coordinator watch exp1"),
        reader.start(command("README.md", "coordinator logs")),
    ]
    followers[1].wait_for_line(r"^\[rank0\]: step \d+$")

    steering = {line.split()[1]: line for line in rows("Steering")}
    # A coordinator has to allow it, and it lasts: `test_rehearsal.py` does what its page says.
    del steering["rehearse"]
    assert sorted(steering) == sorted(STEERING)
    assert steering["drain"] == command("README.md", "coordinator drain").split("  ")[0]
    assert steering["stop"] == command("README.md", "coordinator stop")
    ends = {"drain": (agents[0], 0), "stop": (agents[1], 4)}
    for verb in STEERING:
        reader.run(steering[verb])
        if verb in ends:
            agent, code = ends[verb]
            assert agent.wait() == code, agent.log()
        if verb == "stop":  # one that looks once a second must not find the run forgotten
            assert [follower.wait() for follower in followers] == [0, 0]

    reader.run(command("docs/metrics.md", "coordinator token create"))
    reader.run(command("docs/security.md", "coordinator authority rotate"))
    reader.run(command("docs/security.md", "coordinator authority retire"))
    coordinator.terminate()
    assert coordinator.wait() == 0
    export = command("docs/operating.md", "coordinator journal export")
    exported = reader.start(export, ("/var/lib/drumbeat", f"{reader.directory}/state"))
    assert exported.wait() == 0, exported.log()


@pytest.mark.torch
def test_python_blocks_that_need_no_other_names_run(cluster: Cluster) -> None:
    """All but those that continue a program of the reader, or need an agent (the README's)."""
    ran = []
    for block in blocks():
        if block.language == "python" and block != first_script() and has_all_names(block.text):
            process = cluster.script(block.text)
            assert process.wait(TRAINING_S) == 0, f"{block}\n{process.log()}"
            ran.append(block.page)
    assert {"docs/errors.md", "docs/python-api.md", "docs/worker-sdk.md"} <= set(ran)
