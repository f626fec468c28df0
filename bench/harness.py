"""What the benchmarks share: processes, arrivals of workers, paired runs, statistics, tables."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
import psutil

from bench.ways import ROOT, TREES, Access, Measure, Way
from drumbeat.access.client import Credentials, credentials
from drumbeat.access.problem import AccessProblem
from drumbeat.coordinator.access.calls import call_channel
from drumbeat.coordinator.errors import CommandFailed
from drumbeat.v1 import control_pb2, control_pb2_grpc

RESULTS = ROOT / "bench" / "results"
WORKER_SLEEPS = str(ROOT / "bench" / "workers" / "sleeps.py")
WORKER_WRITES = str(ROOT / "bench" / "workers" / "writes.py")
LOOPBACK = "127.0.0.1"
# Longest any single step of a benchmark may take; far above what it should.
STEP_S = 60.0
# Processes start from compiled code, as a user's do, wherever Python is told to write none.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
READY = re.compile(r"coordinator ready at \S+:(\d+)")
VERSIONS_OF = ("torch", "grpcio", "protobuf", "click", "msgspec", "psutil", "structlog")

# What may stand beside ours: how its column is called, and how the two are compared.
OTHERS = {
    "cold": ("without --preload", "without / with"),
    "insecure": ("with --insecure", "drumbeat / --insecure"),
    "before": ("before", "drumbeat / before"),
    "torchrun": ("torchrun", "torchrun / drumbeat"),
}


class BenchmarkError(Exception):
    """A measurement could not be carried through."""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to measure on both sides."""

    name: str
    text: str
    unit: str
    ours: Measure
    """Returns one value, or None if what is measured did not happen."""
    torchrun: Measure | None = None
    """The same; None if torchrun has nothing to compare with."""
    never: str = "never"
    """What to write where it did not happen."""
    rival: str = "torchrun"
    """Whom the other side stands for."""
    repeats: int = 1
    insecure: Measure | None = None
    """Ours without encryption and authentication; None where there is none anyway."""
    before: Measure | None = None
    """Ours as in the tree of another commit."""
    cold: Measure | None = None
    """Ours without ``--preload``; None where there is none anyway."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker that told us it is there."""

    process: psutil.Process
    rank: int
    world_size: int
    at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class Scene:
    """The processes of one measurement. All of them end with it, on every path."""

    way: Way = Way.DEFAULT
    directory: Path = field(init=False)
    worker: tuple[str, ...] = field(init=False)
    """Command line of a worker that tells us of its arrival."""
    arrivals: list[Arrival] = field(default_factory=list)
    _processes: list[psutil.Process] = field(default_factory=list)
    _sockets: list[socket.socket] = field(default_factory=list)
    _listener: socket.socket = field(init=False)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        temporary = tempfile.TemporaryDirectory(
            prefix="drumbeat-bench-", ignore_cleanup_errors=True
        )
        self.directory = Path(self._stack.enter_context(temporary))
        self._listener = self._stack.enter_context(socket.create_server((LOOPBACK, 0)))
        self.worker = (WORKER_SLEEPS, LOOPBACK, str(self._listener.getsockname()[1]))
        return self

    def __exit__(self, *_: object) -> None:
        running = {arrival.process for arrival in self.arrivals} | set(self._processes)
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                running.update(process.children(recursive=True))
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._processes, timeout=STEP_S)
        for connection in self._sockets:
            connection.close()
        self._stack.close()

    def run(self, command: Sequence[str], name: str, **more: Any) -> psutil.Popen:
        """Start a command; its output goes to a file called ``name``."""
        given = {"cwd": self.way.tree, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = psutil.Popen(command, **{**given, "stdout": log, "stderr": log, **more})
        self._processes.append(process)
        return process

    def start(self, *arguments: str, name: str) -> psutil.Popen:
        """Start ``python -m <arguments>``; its output goes to a file called ``name``."""
        return self.run(self.way.command(*arguments), name)

    def start_coordinator(
        self, port: int = 0, *options: str, module: str = "coordinator"
    ) -> tuple[psutil.Popen, int]:
        """Start our coordinator, or what stands for it; return it and its port when it is ready."""
        command = self.way.command(module, "serve", "--port", str(port))
        command += ["--state-dir", str(self.directory / "state"), *self.way.options, *options]
        process = self.run(command, "coordinator", stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if ready := READY.search(line):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                if not self._token.exists():  # agents join as if they were on hosts of their own
                    self._token.touch(0o600)
                    self._token.write_text(self.new_token(int(ready[1]), control_pb2.ROLE_JOIN))
                return process, int(ready[1])
        raise BenchmarkError(f"the coordinator ended before it was ready\n{self.log_ends()}")

    def new_token(self, port: int, role: control_pb2.Role.ValueType) -> str:
        """Return a token; empty if none is asked for."""
        if self.way is not Way.DEFAULT:
            return ""
        request = control_pb2.CreateTokenRequest(role=role)
        return str(self.call(port, "CreateToken", request).text)

    def call(self, port: int, method: str, request: Any) -> Any:
        """Ask a coordinator for something, as the user of this host."""
        with call_channel(self.access, f"{LOOPBACK}:{port}", use_proxy=False) as (channel, caller):
            stub = control_pb2_grpc.ControlServiceStub(channel)
            return getattr(stub, method)(request, timeout=STEP_S, metadata=caller)

    @property
    def _token(self) -> Path:
        return self.directory / "token"

    @property
    def access(self) -> Access:
        """How the user of this host calls the coordinator."""
        return Access() if self.way is Way.DEFAULT else Access(insecure=True)

    def credentials(self, port: int) -> Credentials:
        """Return what agents of other hosts connect with."""
        is_secure = self.way is Way.DEFAULT
        access = Access(token_file=str(self._token)) if is_secure else self.access
        return credentials(access, f"{LOOPBACK}:{port}")

    def start_ours(
        self, name: str, port: int, nnodes: str = "1", *, workers: int = 2, preload: str = ""
    ) -> psutil.Popen:
        """Start one of our agents."""
        token = ("--token-file", str(self._token)) if self.way is Way.DEFAULT else ()
        options = ("--preload", preload) if preload else ()
        return self.start(
            *("agent", "join", "--coordinator", f"{LOOPBACK}:{port}", "--run-id", "bench"),
            *("--nnodes", nnodes, "--nproc-per-node", str(workers), "--max-restarts", "3"),
            *(*token, *self.way.options, *options, *self.worker),
            name=name,
        )

    def start_torchrun(self, name: str, port: int, nnodes: str) -> psutil.Popen:
        """Start one agent of torchrun with two workers."""
        return self.start(
            *("torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-id", "bench"),
            *("--rdzv-endpoint", f"{LOOPBACK}:{port}"),
            *("--nnodes", nnodes, "--nproc-per-node", "2", "--max-restarts", "3"),
            *self.worker,
            name=name,
        )

    def next_arrival(self, deadline: float) -> Arrival | None:
        """Return the next worker that reports in, or None at ``deadline`` (monotonic)."""
        self._listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return None
        at = time.monotonic()
        connection.settimeout(STEP_S)
        self._sockets.append(connection)
        with connection.makefile() as lines:
            facts = json.loads(lines.readline())
        process = psutil.Process(facts.pop("pid"))
        self.arrivals.append(Arrival(process=process, at=at, **facts))
        return self.arrivals[-1]

    def wait_for_ranks(self, world_size: int, timeout_s: float = STEP_S) -> list[Arrival] | None:
        """Return the newest worker of every rank, or None if not all came in time."""
        deadline = time.monotonic() + timeout_s
        by_rank: dict[int, Arrival] = {}
        while len(by_rank) < world_size:
            arrival = self.next_arrival(deadline)
            if arrival is None:
                return None
            if arrival.world_size == world_size:
                by_rank[arrival.rank] = arrival
        return [by_rank[rank] for rank in range(world_size)]

    def require_ranks(self, world_size: int) -> list[Arrival]:
        """Do the same where a measurement cannot go on without.

        Raises:
            BenchmarkError: Not all workers came; with the end of every log.
        """
        arrivals = self.wait_for_ranks(world_size)
        if arrivals is None:
            raise BenchmarkError(f"{world_size} workers did not come up\n{self.log_ends()}")
        return arrivals

    def log_ends(self) -> str:
        """Return the last lines of every process, for an error message."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in logs)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_until_listening(port: int) -> None:
    """Return when a server listens on ``port``.

    Raises:
        BenchmarkError: None did for ``STEP_S``.
    """
    deadline = time.monotonic() + STEP_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port)).close()
            return
        time.sleep(0.01)
    raise BenchmarkError(f"nothing listens on port {port}")


def memory_mb(processes: Sequence[psutil.Process]) -> float:
    """Return the memory of ``processes`` in MB: PSS where the system tells it, else RSS."""
    total = 0
    for process in processes:
        full = process.memory_full_info()
        total += getattr(full, "pss", 0) or full.rss
    return total / 1e6


def summarise(values: Sequence[float | None]) -> dict[str, Any]:
    """Return count, median and percentiles; None stands for "did not happen"."""
    happened = sorted(value for value in values if value is not None)
    if not happened:
        return {"n": len(values), "never": len(values), "values": list(values)}
    cuts = statistics.quantiles(happened, n=10, method="inclusive") if happened[1:] else happened
    return {
        "n": len(values),
        "never": len(values) - len(happened),
        "median": statistics.median(happened),
        "p10": cuts[0],
        "p90": cuts[-1],
        "min": happened[0],
        "max": happened[-1],
        "values": list(values),
    }


def ask(question: Question, sides: Sequence[str], repeats: int | None) -> dict[str, Any]:
    """Measure all sides in turn, A B A B, so that a change of load meets all."""
    values: dict[str, list[float | None]] = {}
    for number in range(repeats or question.repeats):
        for side in sides:
            measure: Measure | None = getattr(question, side)
            if measure is not None:
                value = measure()
                values.setdefault(side, []).append(value)
                print(f"{question.name} {number + 1} {side}: {value}", file=sys.stderr, flush=True)
    answer: dict[str, Any] = {side: summarise(found) for side, found in values.items()}
    medians = {side: found.get("median") for side, found in answer.items()}
    ratios: dict[str, float] = {}
    for side, (_, compared) in OTHERS.items():
        ours, other = medians.get("ours"), medians.get(side)
        if ours and other:
            ratios[side] = ours / other if compared.startswith("drumbeat") else other / ours
    return {
        "name": question.name,
        "text": question.text,
        "unit": question.unit,
        "never": question.never,
        "rival": question.rival,
        "ratios": ratios,
        **answer,
    }


def table(answers: Sequence[dict[str, Any]]) -> str:
    """Render ``answers`` as Markdown; a rival that is not torchrun is named."""
    others = [side for side in OTHERS if side == "torchrun" or any(side in a for a in answers)]

    def rival(answer: dict[str, Any], side: str) -> str:
        text, name = cell(answer, side), answer.get("rival", "torchrun")
        return f"{name}: {text}" if side == "torchrun" and name != side and text != "-" else text

    def cell(answer: dict[str, Any], side: str) -> str:
        found = answer.get(side)
        if found is None:
            return "-"
        if "median" not in found:
            return str(answer["never"])
        spread = f" ({found['p10']:.3g} to {found['p90']:.3g})" if found["n"] > 1 else ""
        missed = f", {found['never']} of {found['n']} {answer['never']}" if found["never"] else ""
        return f"{found['median']:.3g} {answer['unit']}{spread}{missed}"

    def ratio(answer: dict[str, Any], side: str) -> str:
        return f"{answer['ratios'][side]:.3g}" if side in answer["ratios"] else "-"

    heads = ["question", "n", "drumbeat", *(head for side in others for head in OTHERS[side])]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for answer in answers:
        if "error" in answer:
            empty = " |" * 2 * len(others)
            lines.append(f"| {answer['text']} | - | failed, see above |{empty}")
            continue
        n = max(answer.get(side, {}).get("n", 0) for side in ("ours", *others))
        cells = [answer["text"], str(n), cell(answer, "ours")]
        for side in others:
            cells += [rival(answer, side), ratio(answer, side)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def circumstances() -> dict[str, Any]:
    """Return on what the figures were measured."""
    versions = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load": os.getloadavg(),
        "versions": versions,
    }


def _sides(side: str, before: Path | None) -> list[str]:
    """Return what is measured; ours is measured in each way."""
    if side == "torchrun":
        return [side]
    if before is not None:
        TREES[Way.BEFORE] = before.resolve()
    ways = [str(way) for way in Way if way is not Way.BEFORE or before is not None]
    ways.append("cold")
    return [*ways, "torchrun"] if side == "both" else ways


def main(questions: Sequence[Question]) -> int:
    """Ask ``questions``, print the table, keep it with all figures; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="questions whose names start with this")
    parser.add_argument("--side", choices=["both", "ours", "torchrun"], default="both")
    parser.add_argument("--before", type=Path, help="tree of another commit, with its .venv")
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    sides = _sides(arguments.side, arguments.before)
    began = circumstances()
    answers: list[dict[str, Any]] = []
    for question in questions:
        is_asked = question.name.startswith(arguments.only)
        if not is_asked or (sides == ["torchrun"] and question.torchrun is None):
            continue
        try:
            answers.append(ask(question, sides, arguments.repeats))
        except (
            BenchmarkError,
            AccessProblem,
            CommandFailed,
            OSError,
            grpc.RpcError,
            psutil.Error,
        ) as error:
            print(f"{question.name}: {error}", file=sys.stderr)
            answers.append({"name": question.name, "text": question.text, "error": str(error)})
    RESULTS.mkdir(parents=True, exist_ok=True)
    stem = RESULTS / time.strftime("%Y%m%d-%H%M%S")
    figures = {**began, "questions": answers}
    stem.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in began["versions"].items())
    text = (
        f"{table(answers)}\n\nMedians (10th to 90th percentile), {began['cpus']} CPUs; {versions}."
    )
    stem.with_suffix(".md").write_text(text + "\n")
    print(text)
    return 1 if any("error" in answer for answer in answers) else 0
