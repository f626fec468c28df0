"""Agents that are killed at random instants: `python -m tests.support.agent_storm KILLS SEED`.

Each agent is forked from this process, which has imported all it needs and is a subreaper:
what an agent leaves becomes its child, so that the kernel itself says when nothing is left. Says
of each kill when it came and who was left; ends with 1 if anybody was.
"""

import os
import random
import select
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import drumbeat.agent.runtime.driver
import drumbeat.standalone  # noqa: F401 - the same
from drumbeat.agent.__main__ import main as run_agent
from drumbeat.agent.workers.supervisor.process_tree import become_subreaper, die_with
from drumbeat.command import logs  # noqa: F401 - the same
from tests.support.waiting import MS

MARK = "DRUMBEAT_TEST_STORM"
GONE_WITHIN_S = 10_000 * MS
"""How long what is left may take to end; milliseconds, where it ends at all."""

PATIENT = "setsid sleep 1000 & trap '' TERM; sleep 1000 & wait; wait"
FAILING = "setsid sleep 1000 & exit 1"


@dataclass(frozen=True)
class Stage:
    """When a kill comes: so many times the log says ``word``, then within ``span_s``."""

    name: str
    word: bytes
    count: int
    span_s: float
    worker: str = PATIENT
    is_stopped: bool = False
    """SIGTERM comes first."""


STAGES = (
    Stage("start", b"", 0, 200 * MS),
    Stage("round", b"round started", 1, 40 * MS),
    Stage("restart", b"worker failed", 1, 60 * MS, FAILING),
    Stage("second round", b"round started", 2, 40 * MS, FAILING),
    Stage("stop", b"round started", 1, 60 * MS, is_stopped=True),
)
OUTPUTS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("--stderr-capture", "off"),
    ("--redirects", "3"),
    ("--tee", "3", "--log-dir", "logs"),
)


def _fork_agent(stage: Stage, output: tuple[str, ...], *, is_terminal: bool) -> tuple[int, int]:
    """Return the pid of an agent, and a descriptor from which its log can be read."""
    ours, theirs = os.openpty() if is_terminal else os.pipe()
    storm_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(storm_pid)
        os.dup2(theirs, 2)
        os.closerange(3, max(ours, theirs) + 1)
        restarts = ("--max-restarts", "100", "--restart-delay-max", "0")
        options = ("--nproc-per-node", "2", *restarts, "--log-format", "json")
        command = ("--no-python", "/bin/sh", "-c", stage.worker)
        os._exit(run_agent(["join", "--standalone", *options, *output, *command]))
    os.close(theirs)
    return pid, ours


def _await_word(log: int, stage: Stage) -> None:
    """Return when the log has said what the stage waits for, or has ended."""
    text = b""
    while text.count(stage.word) < stage.count:
        if not select.select([log], [], [], GONE_WITHIN_S)[0]:
            raise SystemExit(f"{stage.name}: the log does not say {stage.word!r}: {text!r}")
        try:
            chunk = os.read(log, 65536)
        except OSError:  # how a terminal ends
            return
        if not chunk:
            return
        text += chunk


def _await_children() -> bool:
    """Return whether all children, the adopted ones too, have ended in time."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _marked(mark: str) -> list[psutil.Process]:
    """Return the processes of this machine that descend from an agent, whoever their parent."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _kill_once(rng: random.Random, number: int) -> bool:
    """Run one agent into its end; return whether it left nothing."""
    stage = STAGES[number % len(STAGES)]
    output, is_terminal = rng.choice(OUTPUTS), rng.random() < 0.2
    delay_s = rng.uniform(0, stage.span_s)
    mark = os.environ[MARK] = f"{os.getpid()}-{number}"
    pid, log = _fork_agent(stage, output, is_terminal=is_terminal)
    _await_word(log, stage)
    if stage.is_stopped:
        select.select([], [], [], rng.uniform(0, 100 * MS))  # for the workers to come up
        os.kill(pid, signal.SIGTERM)
    select.select([], [], [], delay_s)
    os.kill(pid, signal.SIGKILL)
    is_gone = _await_children()
    os.close(log)
    left = _marked(mark)
    what = " ".join(output) + (" on a terminal" if is_terminal else "")
    print(f"{stage.name} + {delay_s * 1000:.1f} ms, {what or 'captured'}: {len(left)} left")
    for process in left:
        print(f"    pid {process.pid}, {process.status()}: {process.cmdline()}")
        process.kill()
    _await_children()
    return is_gone and not left


def _left_after_the_next(folder: Path) -> list[Path]:
    """Return the private directories that are there when one more agent has come and gone."""
    pid, log = _fork_agent(Stage("last", b"", 0, 0, "exit 0"), (), is_terminal=False)
    _await_word(log, Stage("end", b"never said", 1, 0))
    os.waitpid(pid, 0)
    os.close(log)
    return list(folder.glob("drumbeat-*"))


def main(kills: int, seed: int) -> int:
    """Kill so many agents; return 0 if none of them left anything."""
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="drumbeat-storm-") as folder:
        os.environ["TMPDIR"] = folder
        os.environ.pop("XDG_RUNTIME_DIR", None)
        tempfile.tempdir = None
        os.chdir(folder)
        clean = sum(_kill_once(rng, number) for number in range(kills))
        left = _left_after_the_next(Path(folder))
        os.chdir(Path(folder).parent)
    print(f"{kills} kills, {kills - clean} left processes; then one more: {len(left)} directories")
    return 0 if clean == kills and not left else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
