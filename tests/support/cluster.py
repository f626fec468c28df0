"""Real coordinators, agents and workers for a test, and nothing left of them afterwards.

``Cluster`` owns the processes: leave its context and all are gone, whatever happened. Tests steer
workers over ``WorkerServer``: a worker connects as its first act, and its connection closes when
it ends, so that both are seen at once and nothing has to be slept for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import psutil

from drumbeat.access.token import Role, Token, parse_token
from drumbeat.v1 import control_pb2, control_pb2_grpc, query_pb2_grpc, session_pb2
from tests.support.channels import channel_to
from tests.support.processes import DEADLINE_S, ROOT, Process
from tests.support.status import RunStatus, requests
from tests.support.steering import LOOPBACK, Worker, WorkerServer, exit_all
from tests.support.waiting import wait_until_sync

__all__ = [
    "DEADLINE_S",
    "LOOPBACK",
    "ROOT",
    "Agent",
    "Cluster",
    "Coordinator",
    "Job",
    "Process",
    "Worker",
    "WorkerServer",
    "exit_all",
]

# What a test may be run under, and what must not reach the processes it starts.
_CONTRACT = re.compile(
    r"DRUMBEAT_.*|TORCHELASTIC_.*|TORCH_NCCL_.*|MASTER_.*|.*RANK|.*WORLD_SIZE|ROLE_.*"
    r"|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|XDG_STATE_HOME"
)
_MARK = "CLUSTER_OF_TEST"
"""Variable that every process below a cluster inherits, so that strays are found."""


LOGGED = ("--log-format", "json", "--log-level", "debug")
"""How agents write their log here: every event of it can be waited for."""


AT_ONCE = ("--restart-delay-max", "0")
"""Tests whose workers fail again and again are not about how long a run waits before restarts."""


class Coordinator:
    """``coordinator serve`` on a fixed port and state directory, over any number of lives."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *options: str,
        port: int = 0,
        is_awaited: bool = True,
    ) -> None:
        self.name = name
        self.options = options
        self.state_dir = cluster.directory / name
        self.port = port
        self._cluster = cluster
        self.process = self._start() if is_awaited else self._begin()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of its present life."""
        return self.process.pid

    def _start(self) -> Process:
        process = self._begin()
        ready = process.wait_for_line(r"coordinator ready at \S+:(\d+)$")
        self.port = int(ready[1])
        return process

    def _begin(self) -> Process:
        return self._cluster.process(
            self.name,
            *("coordinator", "serve", "--port", str(self.port)),
            *("--state-dir", str(self.state_dir), "--log-format", "json", *self.options),
        )

    def restart(self, *, is_awaited: bool = True) -> None:
        """Start another life on the same port and state directory; the last one has ended.

        Returns when it is ready, unless that is not to be awaited.
        """
        assert not self.process.is_running, "end it first"
        self.process = self._start() if is_awaited else self._begin()

    def kill(self) -> None:
        """End it with SIGKILL, and return when it has ended."""
        self.process.kill()

    def terminate(self) -> int:
        """End it with SIGTERM; return its exit code."""
        self.process.terminate()
        return self.process.wait()

    def operate(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Run one of the commands of operators, as this user; return it when it has ended."""
        argv = ("coordinator", *arguments, "--coordinator", self.address)
        process = self._cluster.process(f"{self.name}'s operator", *argv, env=env)
        process.wait()
        return process

    def create_token(self, role: Role = Role.JOIN, *, run_id: str = "", ttl_s: int = 0) -> Token:
        """Make a token, by default one to join any run with until it is revoked."""
        request = control_pb2.CreateTokenRequest(
            role=control_pb2.Role.Value(f"ROLE_{role.upper()}"), run_id=run_id
        )
        if ttl_s:
            request.ttl.FromSeconds(ttl_s)
        with channel_to(self.address) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            answer = stub.CreateToken(request, timeout=DEADLINE_S, wait_for_ready=True)
            return parse_token(answer.text)

    def revoke(self, token: Token) -> None:
        """Revoke a token."""
        request = control_pb2.RevokeTokenRequest(token_id=token.token_id)
        with channel_to(self.address) as channel:
            control_pb2_grpc.ControlServiceStub(channel).RevokeToken(request, timeout=DEADLINE_S)

    def run(self, run_id: str) -> RunStatus:
        """Ask for a run. Raises ``grpc.RpcError``, e.g. NOT_FOUND."""
        with channel_to(self.address) as channel:
            stub = query_pb2_grpc.QueryServiceStub(channel)
            run, agents, events = requests(run_id)
            found = stub.GetRun(run, timeout=DEADLINE_S, wait_for_ready=True).run
            listed = stub.ListAgents(agents, timeout=DEADLINE_S).agents
            told = stub.ListEvents(events, timeout=DEADLINE_S).events
            return RunStatus(found, list(listed), list(told))

    def wait_for_run(
        self, run_id: str, predicate: Callable[[RunStatus], bool], timeout_s: float = DEADLINE_S
    ) -> RunStatus:
        """Return the run once ``predicate`` holds of it; an unknown run is an empty one."""
        seen = RunStatus()

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
                if "drumbeat.agent.workers.supervisor.process" in child.cmdline():
                    return child
        return None

    def worker_pids(self) -> list[int]:
        """Return the pids of what its supervisor started and is still there."""
        supervisor = self._find_supervisor()
        return [child.pid for child in supervisor.children()] if supervisor else []

    def worker(self, rank: int) -> psutil.Process:
        """Return its worker of this rank."""
        for pid in self.worker_pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.environ().get("RANK") == str(rank):
                    return process
        raise AssertionError(f"{self.name} has no worker of rank {rank}\n{self.log()}")


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

    def state(self) -> RunStatus:
        """Ask the coordinator for the run."""
        return self.coordinator.run(self.run_id)

    def wait_for_state(self, group_rank: int, state: str) -> None:
        """Return once the agent with ``group_rank`` has told that it is e.g. ``SUCCEEDED``."""
        wanted = session_pb2.GroupState.Value(f"GROUP_STATE_{state}")
        self.coordinator.wait_for_run(
            self.run_id,
            lambda run: any(
                agent.HasField("seat")
                and agent.seat.group_rank == group_rank
                and agent.state == wanted
                for agent in run.agents
            ),
        )


class Cluster:
    """All processes of one test; a context manager.

    Its runs have an id of its own, so that it may share a coordinator with other tests.
    """

    def __init__(self, shared: Coordinator | None = None) -> None:
        self._shared = shared
        self._mark = os.urandom(8).hex()
        self.run_id = f"run-{self._mark}" if shared else "run"
        self._temporary = tempfile.TemporaryDirectory(prefix="drumbeat-test-")
        self.directory = Path(self._temporary.name)
        self._processes: list[Process] = []
        self._servers: list[WorkerServer] = []
        self._names = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """Return the environment of processes: ours, without what an outer run put there."""
        kept = {k: v for k, v in os.environ.items() if _CONTRACT.fullmatch(k) is None}
        return {**kept, _MARK: self._mark, "TMPDIR": str(self.directory), "XDG_RUNTIME_DIR": ""}

    def coordinator(self, *options: str) -> Coordinator:
        """Return one without options that is shared, else start one on a free port."""
        return self._shared if self._shared and not options else self.own_coordinator(*options)

    def own_coordinator(self, *options: str, port: int = 0, is_awaited: bool = True) -> Coordinator:
        """Start a coordinator, by default on a free port; returns when it is ready.

        On a given port that need not be awaited.
        """
        name = f"coordinator-{next(self._names)}"
        return Coordinator(self, name, *options, port=port, is_awaited=is_awaited)

    def worker_server(self) -> WorkerServer:
        """Open a place for the workers of one run."""
        server = WorkerServer(self.logs)
        self._servers.append(server)
        return server

    def job(
        self, *options: str, coordinator: Coordinator | None = None, run_id: str | None = None
    ) -> Job:
        """Return a run whose agents get ``options``, with a coordinator of its own if need be."""
        return Job(
            cluster=self,
            coordinator=coordinator or self.coordinator(),
            server=self.worker_server(),
            run_id=run_id or self.run_id,
            options=options,
        )

    def agent(
        self,
        *arguments: str,
        coordinator: Coordinator | None = None,
        run_id: str | None = None,
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
        address = ("--coordinator", coordinator.address) if coordinator else ()
        joined = (*address, "--run-id", run_id or self.run_id) if coordinator else ()
        agent = Agent(
            f"agent-{next(self._names)}",
            [
                sys.executable,
                "-m",
                "drumbeat.agent",
                "join",
                *LOGGED,
                *AT_ONCE,
                *joined,
                *arguments,
            ],
            env={**self.environment(), **(env or {})},
            cwd=cwd,
        )
        self._processes.append(agent)
        return agent

    def process(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start ``drumbeat`` with ``arguments``, and ``env`` beside ``environment``."""
        return self.command(name, sys.executable, "-m", "drumbeat", *arguments, env=env)

    def command(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Process:
        """Start what there is besides."""
        process = Process(name, argv, env={**self.environment(), **(env or {})})
        self._processes.append(process)
        return process

    def private_file(self, name: str, text: str) -> str:
        """Write a file for this user alone, in place of the one before; return its path."""
        path = self.directory / name
        draft = path.with_name(f"{name}.new")
        draft.touch(mode=0o600)
        draft.write_text(text)
        draft.rename(path)
        return str(path)

    def script(self, text: str, *arguments: str) -> Process:
        """Start Python on a new file with ``text``, in the directory of the cluster."""
        path = self.directory / f"script_{next(self._names)}.py"
        path.write_text(text)
        process = Process(
            path.stem,
            [sys.executable, str(path), *arguments],
            env=self.environment(),
            cwd=self.directory,
        )
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
        shared = [self._shared.process] if self._shared else []
        return "\n".join(process.log() for process in [*shared, *self._processes])

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
