"""Train on two agents, kill one worker in the middle, and see what it costs.

Starts a coordinator and two agents with two workers each, all on this machine,
runs ``train_ddp.py`` on them and kills the worker of rank 3 with SIGKILL
halfway. Then the same with ``--preload``, which lets workers start with everything
imported. Exits with 0 if both came through: accuracy above 95 %, exactly one
restart, both agents content.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "train_ddp.py"
EPOCHS = 60
KILL_AFTER_EPOCH = EPOCHS // 2
VICTIM_RANK = 3
PRELOADED = "torch,sklearn.datasets"
ACCURACY_MIN = 0.95
DEADLINE_S = 180.0
STOP_S = 15.0

READY = re.compile(r"coordinator ready at (\S+)")
FIRST_STEP = re.compile(r"rank 0: first step, epoch (\d+), restart (\d+)")
EPOCH_DONE = re.compile(r"rank 0: epoch (\d+)/")
ACCURACY = re.compile(r"rank 0: test accuracy ([\d.]+)")


class DemoError(Exception):
    """The demonstration could not be carried through."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a process wrote, and when it arrived here."""

    source: str
    text: str | None
    """None: the process closed its output."""
    at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class Stage:
    """The processes of the demonstration and the lines they write, in order of arrival."""

    deadline: float
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    lines: queue.Queue[Line] = field(default_factory=queue.Queue)

    def start(self, name: str, *arguments: str) -> None:
        """Start ``drumbeat <arguments>`` and read what it writes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "drumbeat", *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.processes[name] = process
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            self.lines.put(Line(name, text.rstrip("\n"), time.monotonic()))
        self.lines.put(Line(name, None, time.monotonic()))

    def next_line(self) -> Line:
        """Return the next line of any process, shown to the user."""
        try:
            line = self.lines.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            raise DemoError(f"not finished within {DEADLINE_S:g} s") from None
        if line.text is not None:
            print(f"[{line.source}] {line.text}", flush=True)
        return line

    def stop(self) -> None:
        """End whatever still runs, the latest first."""
        for name in reversed(self.processes):
            process = self.processes[name]
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                print(f"[{name}] did not end within {STOP_S:g} s of SIGTERM: killed", flush=True)
                process.kill()
                process.wait()


@dataclass(slots=True)
class Outcome:
    """What was seen of the training."""

    killed_at: float | None = None
    resumed_at: float | None = None
    restart_count: int = 0
    accuracy: float = 0.0
    exit_codes: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the training came through as it should."""
        return (
            self.accuracy > ACCURACY_MIN
            and self.resumed_at is not None
            and self.restart_count == 1
            and set(self.exit_codes.values()) == {0}
        )

    def table(self) -> str:
        """Render as text."""
        lost = "-"
        if self.killed_at is not None and self.resumed_at is not None:
            lost = f"{self.resumed_at - self.killed_at:.2f} s, from the kill to the next step"
        rows = {
            "test accuracy": f"{self.accuracy:.2%}",
            "restarts": str(self.restart_count),
            "time lost": lost,
            **{f"exit code of {name}": str(code) for name, code in self.exit_codes.items()},
            "result": "good" if self.is_good else "NOT GOOD",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def find_worker(
    agents: list[subprocess.Popen[str]], rank: int, script: Path = SCRIPT
) -> psutil.Process:
    """Return the process of ``rank`` below one of ``agents``; -1 stands for any rank."""
    for agent in agents:
        for process in psutil.Process(agent.pid).children(recursive=True):
            # A process may end between being listed and being looked at.
            with contextlib.suppress(psutil.NoSuchProcess):
                is_training = any(script.name in argument for argument in process.cmdline())
                its_rank = process.environ().get("RANK")
                if is_training and (its_rank == str(rank) or (rank == -1 and its_rank)):
                    return process
    raise DemoError(f"no worker of rank {rank} found")


def start_coordinator(stage: Stage, directory: Path) -> str:
    """Start the coordinator and return its address."""
    stage.start("coordinator", "coordinator", "serve", "--port", "0", "--state-dir", str(directory))
    while (text := stage.next_line().text) is not None:
        if ready := READY.search(text):
            return ready[1]
    raise DemoError("the coordinator ended before it was ready")


def start_agents(stage: Stage, address: str, directory: Path, preload: str) -> list[str]:
    """Start both agents and return their names."""
    names = ["agent 0", "agent 1"]
    options = ("--preload", preload) if preload else ()
    for name in names:
        stage.start(
            name,
            *("agent", "join", "--coordinator", address, "--run-id", "demo"),
            *("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", *options),
            *(str(SCRIPT), "--epochs", str(EPOCHS), "--checkpoint-dir", str(directory)),
        )
    return names


def watch(stage: Stage, agents: list[str]) -> Outcome:
    """Follow the training until both agents ended, and kill a worker on the way."""
    outcome = Outcome()
    running = set(agents)
    while running:
        line = stage.next_line()
        if line.text is None:
            if line.source not in running:
                raise DemoError(f"the {line.source} ended early")
            running.remove(line.source)
            outcome.exit_codes[line.source] = stage.processes[line.source].wait(STOP_S)
        elif first := FIRST_STEP.search(line.text):
            outcome.restart_count = int(first[2])
            if outcome.killed_at is not None and outcome.resumed_at is None:
                outcome.resumed_at = line.at
        elif done := EPOCH_DONE.search(line.text):
            if int(done[1]) >= KILL_AFTER_EPOCH and outcome.killed_at is None:
                victim = find_worker([stage.processes[name] for name in agents], VICTIM_RANK)
                victim.kill()
                outcome.killed_at = time.monotonic()
                print(f"[demo] killed rank {VICTIM_RANK} (pid {victim.pid})", flush=True)
        elif accuracy := ACCURACY.search(line.text):
            outcome.accuracy = float(accuracy[1])
    return outcome


def train(preload: str) -> Outcome:
    """Train once, with a worker killed in the middle."""
    stage = Stage(deadline=time.monotonic() + DEADLINE_S)
    with tempfile.TemporaryDirectory(prefix="drumbeat-demo-") as directory:
        try:
            address = start_coordinator(stage, Path(directory) / "state")
            agents = start_agents(stage, address, Path(directory) / "checkpoints", preload)
            return watch(stage, agents)
        finally:
            stage.stop()


def main() -> int:
    # So that `finally` runs however the demonstration is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcomes = {}
    for title, preload in {"as it is": "", f"with --preload {PRELOADED}": PRELOADED}.items():
        print(f"[demo] training {title}", flush=True)
        try:
            outcomes[title] = train(preload)
        except DemoError as error:
            print(f"[demo] {error}", file=sys.stderr)
            return 1
    for title, outcome in outcomes.items():
        print(f"\n{title}\n{outcome.table()}")
    return 0 if all(outcome.is_good for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
