"""Real coordinators, agents and workers for a test, and nothing left of them afterwards.

``Cluster`` owns the processes: leave its context and all are gone, whatever happened. Tests steer
workers over ``WorkerServer``: a worker connects as its first act, and its connection closes when
it ends, so that both are seen at once and nothing has to be slept for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
import psutil

from drumbeat.v1 import run_pb2, run_pb2_grpc, session_pb2
from tests.support.waiting import MS, wait_until_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
WORKER_SCRIPT = ROOT / "tests" / "support" / "workers" / "steered.py"
LOOPBACK = "127.0.0.1"

DEADLINE_S = 40_000 * MS
"""Far longer than anything here takes; only a failing test waits for it."""

LOG_CHARACTERS_SHOWN = 6000

# What a test may be run under, and what must not reach the processes it starts.
_CONTRACT = re.compile(
    r"DRUMBEAT_.*|TORCHELASTIC_.*|TORCH_NCCL_.*|MASTER_.*|.*RANK|.*WORLD_SIZE|ROLE_.*"
    r"|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|XDG_STATE_HOME"
)
_MARK = "CLUSTER_OF_TEST"
"""Variable that every process below a cluster inherits, so that strays are found."""

_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a process wrote."""

    stream: str
    """``out`` or ``err``."""
    text: str


class Process:
    """A command of ours, with all it wrote."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = ROOT,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.lines: list[Line] = []
        self._change = threading.Condition()
        self._streams_open = 2
        self._popen = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self.pid = self._popen.pid
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), name=f"{name} {stream}")
            for stream in ("out", "err")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: str) -> None:
        pipe = self._popen.stdout if stream == "out" else self._popen.stderr
        assert pipe is not None, "started with pipes"
        for text in pipe:
            with self._change:
                self.lines.append(Line(stream, text.rstrip("\n")))
                self._change.notify_all()
        with self._change:
            self._streams_open -= 1
            self._change.notify_all()

    # What it wrote.

    @property
    def stdout(self) -> str:
        """All of its standard output so far."""
        return self._text("out")

    @property
    def stderr(self) -> str:
        """All of its standard error so far."""
        return self._text("err")

    def _text(self, stream: str) -> str:
        with self._change:
            return "\n".join(line.text for line in self.lines if line.stream == stream)

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the JSON lines of its log so far."""
        found = []
        for line in self.stderr.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    found.append(entry)
        return found

    def wait_for_line(
        self, pattern: str, timeout_s: float = DEADLINE_S, *, count: int = 1
    ) -> re.Match[str]:
        """Return the match of the ``count``-th line, of either stream, that matches anywhere."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while True:
                matches = (re.search(pattern, line.text) for line in self.lines)
                found = list(itertools.islice((m for m in matches if m), count))
                if len(found) == count:
                    return found[-1]
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._streams_open:
                    break
                self._change.wait(left_s)
        raise AssertionError(f"{self.name} wrote no line with {pattern!r}\n{self.log()}")

    def log(self) -> str:
        """Return what it was and what it wrote, for a failure message."""
        with self._change:
            text = "\n".join(f"  {line.stream}: {line.text}" for line in self.lines)
        code = self._popen.poll()
        state = "running" if code is None else f"ended with {code}"
        shown = text if len(text) <= LOG_CHARACTERS_SHOWN else f"  …{text[-LOG_CHARACTERS_SHOWN:]}"
        return f"--- {self.name}, pid {self.pid}, {state}: {' '.join(self.argv[1:])}\n{shown}"

    # Its life.

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Return its exit code (the negated number for a signal) once it has ended."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {timeout_s:g} s\n{self.log()}"
            ) from None
        # Its last lines too, unless somebody it left behind holds its pipes.
        with self._change:
            self._change.wait_for(lambda: not self._streams_open, 2000 * MS)
        return code

    def send(self, signum: int) -> None:
        """Send a signal."""
        self._popen.send_signal(signum)

    def kill(self) -> None:
        """End it with SIGKILL, and return when it has ended."""
        self._popen.kill()
        self._popen.wait(DEADLINE_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send(signal.SIGTERM)

    def stop(self) -> None:
        """Freeze it with SIGSTOP, as a machine that hangs."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def close(self) -> None:
        """End it; the readers end with the last process that holds its pipes."""
        if self.is_running:
            self.cont()
            self._popen.kill()
        self._popen.wait()

    def join_readers(self) -> None:
        """Return when everything it wrote was read."""
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._popen.stdout, self._popen.stderr):
            assert pipe is not None, "started with pipes"
            pipe.close()


class Coordinator:
    """``coordinator serve`` on a fixed port and state directory, over any number of lives."""

    def __init__(self, cluster: Cluster, name: str, *options: str) -> None:
        self.name = name
        self.options = options
        self.state_dir = cluster.directory / name
        self.port = 0
        self._cluster = cluster
        self.process = self._start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of its present life."""
        return self.process.pid

    def _start(self) -> Process:
        process = self._cluster.process(
            self.name,
            *("coordinator", "serve", "--port", str(self.port)),
            *("--state-dir", str(self.state_dir), *self.options),
        )
        ready = process.wait_for_line(r"coordinator ready at \S+:(\d+)$")
        self.port = int(ready[1])
        return process

    def restart(self) -> None:
        """Start another life on the same port and state directory; the last one has ended."""
        assert not self.process.is_running, "end it first"
        self.process = self._start()

    def kill(self) -> None:
        """End it with SIGKILL, and return when it has ended."""
        self.process.kill()

    def terminate(self) -> int:
        """End it with SIGTERM; return its exit code."""
        self.process.terminate()
        return self.process.wait()

    def run(self, run_id: str) -> run_pb2.Run:
        """Ask for a run. Raises ``grpc.RpcError``, e.g. NOT_FOUND."""
        with grpc.insecure_channel(self.address) as channel:
            stub = run_pb2_grpc.RunServiceStub(channel)
            request = run_pb2.GetRunRequest(run_id=run_id)
            response: run_pb2.GetRunResponse = stub.GetRun(
                request, timeout=DEADLINE_S, wait_for_ready=True
            )
            return response.run

    def wait_for_run(
        self, run_id: str, predicate: Callable[[run_pb2.Run], bool], timeout_s: float = DEADLINE_S
    ) -> run_pb2.Run:
        """Return the run once ``predicate`` holds of it; an unknown run is an empty one."""
        seen = run_pb2.Run()

        def look() -> bool:
            nonlocal seen
            try:
                seen = self.run(run_id)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
            return predicate(seen)

        wait_until_sync(look, timeout_s, describe=lambda: f"{seen}\n{self.process.log()}")
        return seen


class Agent(Process):
    """``agent join`` on this machine."""

    def supervisor(self, timeout_s: float = DEADLINE_S) -> psutil.Process:
        """Return its supervisor, once it has one."""
        found = wait_until_sync(self._find_supervisor, timeout_s, describe=self.log)
        assert found is not None, "waited for"
        return found

    def _find_supervisor(self) -> psutil.Process | None:
        for child in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "agent.supervisor" in child.cmdline():
                    return child
        return None

    def worker_pids(self) -> list[int]:
        """Return the pids of what its supervisor started and is still there."""
        supervisor = self._find_supervisor()
        return [child.pid for child in supervisor.children()] if supervisor else []


@dataclass(slots=True)
class Worker:
    """A worker that has come to a ``WorkerServer``."""

    connection: socket.socket
    rank: int
    local_rank: int
    pid: int
    round_id: int
    restart_count: int
    argv: list[str]
    environment: dict[str, str]
    _unread: bytes = field(default=b"", repr=False)

    @classmethod
    def announced(cls, connection: socket.socket, timeout_s: float) -> Self | None:
        """Read the announcement of a new connection; None if its worker is gone already."""
        line, _, unread = _read_line(connection, b"", timeout_s).partition(b"\n")
        if not line:
            return None
        said = json.loads(line)
        return cls(
            connection=connection,
            rank=said["rank"],
            local_rank=said["local_rank"],
            pid=said["pid"],
            round_id=said["round"],
            restart_count=said["restart_count"],
            argv=said["argv"],
            environment=said["environment"],
            _unread=unread,
        )

    def order(self, order: str) -> None:
        """Give an order, see ``workers/steered.py``, that it may not live to answer."""
        # A worker that is gone needs no orders; what became of it is for the test to see.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(f"{order}\n".encode())

    def ask(self, order: str, timeout_s: float = DEADLINE_S) -> Any:
        """Give an order and return the answer."""
        self.order(order)
        data = _read_line(self.connection, self._unread, timeout_s)
        assert data, f"rank {self.rank} of round {self.round_id} ended over {order!r}"
        line, _, self._unread = data.partition(b"\n")
        return json.loads(line)

    def wait_gone(self, timeout_s: float = DEADLINE_S) -> None:
        """Return when its process has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                if not self.connection.recv(_READ_BYTES):
                    return
            except ConnectionResetError:
                return
            except TimeoutError:
                raise AssertionError(
                    f"rank {self.rank} of round {self.round_id} (pid {self.pid}) "
                    f"is still there after {timeout_s:g} s"
                ) from None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        self.connection.setblocking(False)
        try:
            # What it said before is of no matter here, but stands before the end.
            while data := self.connection.recv(_READ_BYTES):
                self._unread += data
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


class WorkerServer:
    """Where the workers of one run come to for orders."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        self._workers: list[Worker] = []
        self._ahead: list[Worker] = []

    @property
    def address(self) -> str:
        """HOST:PORT, the first argument of a worker."""
        return f"{LOOPBACK}:{self._listener.getsockname()[1]}"

    @property
    def command(self) -> tuple[str, str]:
        """The script with its first argument, to be appended to an agent's options."""
        return str(WORKER_SCRIPT), self.address

    def wait_for(self, count: int, timeout_s: float = DEADLINE_S) -> list[Worker]:
        """Return the next ``count`` workers by rank, of whatever round."""
        deadline = time.monotonic() + timeout_s
        found = [self._next(deadline, f"{count} workers") for _ in range(count)]
        return sorted(found, key=lambda worker: (worker.round_id, worker.rank))

    def wait_for_round(
        self, round_id: int, count: int, timeout_s: float = DEADLINE_S
    ) -> list[Worker]:
        """Return ``count`` workers of one round by rank, passing over those of older ones."""
        deadline = time.monotonic() + timeout_s
        found = [worker for worker in self._ahead if worker.round_id == round_id]
        self._ahead = [worker for worker in self._ahead if worker.round_id > round_id]
        while len(found) < count:
            worker = self._next(deadline, f"{count} workers of round {round_id}")
            if worker.round_id == round_id:
                found.append(worker)
            elif worker.round_id > round_id:
                self._ahead.append(worker)
        return sorted(found, key=lambda worker: worker.rank)

    def is_quiet(self) -> bool:
        """Whether nobody has come that was not waited for."""
        return not self._ahead and not select.select([self._listener], [], [], 0)[0]

    def _next(self, deadline: float, wanted: str) -> Worker:
        while True:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                came = [(worker.round_id, worker.rank) for worker in self._workers]
                raise AssertionError(
                    f"waited for {wanted} in vain; came so far (round, rank): {came}\n"
                    f"{self._describe()}"
                ) from None
            worker = Worker.announced(connection, max(0.001, deadline - time.monotonic()))
            if worker is not None:
                self._workers.append(worker)
                return worker
            connection.close()

    def close(self) -> None:
        """Send everybody home."""
        self._listener.close()
        for worker in self._workers:
            worker.connection.close()


@dataclass(frozen=True, slots=True)
class Job:
    """One run with steered workers: where it is decided and where its workers come to."""

    cluster: Cluster
    coordinator: Coordinator
    server: WorkerServer
    run_id: str
    options: tuple[str, ...]

    def join(self, *options: str, env: Mapping[str, str] | None = None) -> Agent:
        """Start one more agent, with ``options`` beside those of the run."""
        return self.cluster.agent(
            *(*self.options, *options, *self.server.command),
            coordinator=self.coordinator,
            run_id=self.run_id,
            env=env,
        )

    def join_in_order(self, *options: Sequence[str]) -> list[Agent]:
        """Start an agent for each element, whose group ranks follow this order.

        The run must wait for all of them: each is started once its predecessor waits.
        """
        agents: list[Agent] = []
        for own in options:
            if agents:
                agents[-1].wait_for_line("standing by")
            agents.append(self.join(*own))
        return agents

    def state(self) -> run_pb2.Run:
        """Ask the coordinator for the run."""
        return self.coordinator.run(self.run_id)

    def wait_for_state(self, group_rank: int, state: str) -> None:
        """Return once the agent with ``group_rank`` has told that it is e.g. ``SUCCEEDED``."""
        wanted = session_pb2.GroupState.Value(f"GROUP_STATE_{state}")
        self.coordinator.wait_for_run(
            self.run_id,
            lambda run: any(
                agent.is_participant and agent.group_rank == group_rank and agent.state == wanted
                for agent in run.agents
            ),
        )


class Cluster:
    """All processes of one test; a context manager."""

    def __init__(self) -> None:
        self._mark = os.urandom(8).hex()
        self._temporary = tempfile.TemporaryDirectory(prefix="drumbeat-test-")
        self.directory = Path(self._temporary.name)
        self._processes: list[Process] = []
        self._servers: list[WorkerServer] = []
        self._names = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """Return the environment of processes: ours, without what an outer run put there."""
        kept = {k: v for k, v in os.environ.items() if _CONTRACT.fullmatch(k) is None}
        return {**kept, _MARK: self._mark, "TMPDIR": str(self.directory)}

    def coordinator(self, *options: str) -> Coordinator:
        """Start a coordinator on a free port; returns when it is ready."""
        return Coordinator(self, f"coordinator-{next(self._names)}", *options)

    def worker_server(self) -> WorkerServer:
        """Open a place for the workers of one run."""
        server = WorkerServer(self.logs)
        self._servers.append(server)
        return server

    def job(
        self, *options: str, coordinator: Coordinator | None = None, run_id: str = "run"
    ) -> Job:
        """Return a run whose agents get ``options``, with a coordinator of its own if need be."""
        return Job(
            cluster=self,
            coordinator=coordinator or self.coordinator(),
            server=self.worker_server(),
            run_id=run_id,
            options=options,
        )

    def agent(
        self,
        *arguments: str,
        coordinator: Coordinator | None = None,
        run_id: str = "run",
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> Agent:
        """Start ``agent join``.

        Args:
            arguments: Options, then the script and its arguments.
            coordinator: Whom to join, under ``run_id``; None leaves both to ``arguments``.
            run_id: The run.
            env: Variables beside those of ``environment``.
            cwd: Where it runs.
        """
        joined = ("--coordinator", coordinator.address, "--run-id", run_id) if coordinator else ()
        agent = Agent(
            f"agent-{next(self._names)}",
            [sys.executable, "-m", "agent", "join", *joined, *arguments],
            env={**self.environment(), **(env or {})},
            cwd=cwd,
        )
        self._processes.append(agent)
        return agent

    def process(self, name: str, *arguments: str) -> Process:
        """Start ``python -m`` with ``arguments``."""
        argv = [sys.executable, "-m", *arguments]
        process = Process(name, argv, env=self.environment())
        self._processes.append(process)
        return process

    def strays(self) -> list[psutil.Process]:
        """Return every living process below this cluster, whoever is its parent by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(_MARK) == self._mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _kill_strays(self) -> bool:
        strays = self.strays()
        for stray in strays:
            with contextlib.suppress(psutil.Error):
                stray.kill()
        return not strays

    def wait_until_alone(self, timeout_s: float = DEADLINE_S) -> None:
        """Return when no process of this cluster is left."""
        wait_until_sync(lambda: not self.strays(), timeout_s, describe=self._describe_strays)

    def wait_until_gone(self, pid: int, timeout_s: float = DEADLINE_S) -> None:
        """Return when there is no process ``pid`` any more, but for its zombie."""

        def is_gone() -> bool:
            try:
                return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return True

        wait_until_sync(is_gone, timeout_s, describe=self.logs)

    def _describe_strays(self) -> str:
        rows = []
        for process in self.strays():
            with contextlib.suppress(psutil.Error):
                rows.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return "\n".join([*rows, self.logs()])

    def logs(self) -> str:
        """Return what all processes wrote."""
        return "\n".join(process.log() for process in self._processes)

    def close(self) -> None:
        """End everything; what the processes wrote is shown with a test that failed."""
        for server in self._servers:
            server.close()
        for process in self._processes:
            process.close()
        # Several times, because a process may fork while the others are being killed.
        wait_until_sync(self._kill_strays, DEADLINE_S)
        for process in self._processes:
            process.join_readers()
        print(self.logs())
        self._temporary.cleanup()


def exit_all(workers: Iterable[Worker], code: int = 0) -> None:
    """Order workers to exit."""
    for worker in workers:
        worker.order(f"exit {code}")


def _read_line(connection: socket.socket, data: bytes, timeout_s: float) -> bytes:
    """Read until there is a whole line after ``data``; nothing if the other side is gone."""
    deadline = time.monotonic() + timeout_s
    while b"\n" not in data:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            received = connection.recv(_READ_BYTES)
        except ConnectionResetError:
            return b""
        except TimeoutError:
            raise AssertionError(f"a worker said nothing for {timeout_s:g} s") from None
        if not received:
            return b""
        data += received
    return data
