"""The programs of a round on their hosts, with the disks and clocks that faults work on."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc

from drumbeat.v1 import control_pb2
from tests.chaos import programs, promises
from tests.chaos.clients import Channel
from tests.chaos.network import mount
from tests.chaos.plan import FaultKind, Kind
from tests.chaos.programs import LOOK_S, MARK, Program
from tests.support.etcd import program as etcd_program
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.chaos.network import Network
    from tests.chaos.plan import Plan, RunPlan
    from tests.chaos.promises import Life

PORT = 29400
START_S = 20.0
"""Far longer than anything takes to start; only a failing round waits for it."""
ACCESS = Path.home() / ".local" / "state" / "drumbeat" / "access"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
WORKER = ROOT / "tests" / "chaos" / "worker.py"
DISK_MB = 24
GRACE_S = 30
"""How long agents wait for a coordinator: longer than any fault."""


class World:
    """All of a round; a context manager that ends every process."""

    def __init__(self, plan: Plan, network: Network, directory: Path, how: dict[str, str]) -> None:
        self.plan, self.network, self.directory, self._how = plan, network, directory, how
        self.mark = directory.name
        self.logs = directory / "logs"
        self.coordinators: dict[str, Program] = {}
        self.etcd: dict[str, Program] = {}
        self.agents: dict[str, Program] = {}
        """By ``RUN@HOST``, as faults name them."""
        self.runs: dict[str, RunPlan] = {}
        """By the id of the run; replica groups are one each."""
        self.run_of: dict[str, str] = {}
        self.channels: list[Channel] = []
        self._stack = ExitStack()
        self._token = ""
        self._read: dict[Path, tuple[int, list[Life]]] = {}

    def __enter__(self) -> Self:
        self.logs.mkdir()
        mount(Path("/dev/shm"), "-t", "tmpfs", "-o", "size=64m")
        mount(ACCESS, "-t", "tmpfs", "-o", "size=1m,mode=700")
        self._stack.enter_context(self.network)
        self._stack.callback(self._end_all)
        self._make_disks()
        (self.directory / "etcd").mkdir()
        for name in self.plan.members:
            self.etcd[name] = self._etcd(name)
            self.etcd[name].start()
        for name in self.plan.coordinators:
            self.coordinators[name] = self._coordinator(name)
            self.start_coordinator(name, is_first=True)
        for run in self.plan.runs:
            self._make_run(run)
        self._enter_as_user()
        for name in self.agents:
            self.start_agent(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for channel in self.channels:
            channel.close()
        self.network.heal()
        for name in self.coordinators:
            self.thaw_disk(name)
        while left := [pid for pid in programs.marked(self.mark) if pid != os.getpid()]:
            programs.signal_all(left, 9)
            time.sleep(LOOK_S)

    # Disks and clocks.

    def disk(self, name: str) -> Path:
        """Return the directory of a host that is small, and may be full or stand still."""
        return self.directory / "disks" / name

    def _make_disks(self) -> None:
        slow = {f.target for f in self.plan.faults if f.kind is FaultKind.DISK_SLOW}
        for name in self.network.hosts:
            path = self.disk(name)
            if name in slow:
                image = self.directory / f"{name}.disk"
                subprocess.run(["truncate", "-s", f"{DISK_MB}M", image], check=True)
                subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
                mount(path, "-o", "loop", source=str(image))
            else:
                mount(path, "-t", "tmpfs", "-o", f"size={DISK_MB}m")
            (path / "tmp").mkdir()
            self.step_clock(name, 0.0)

    def fill_disk(self, name: str) -> None:
        """Leave no room on a host's disk."""
        with suppress(OSError), (self.disk(name) / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1 << 8, 1):
                with suppress(OSError):
                    while filler.write(b"\0" * size) == size:
                        pass

    def clear_disk(self, name: str) -> None:
        """Make room again."""
        (self.disk(name) / "filler").unlink(missing_ok=True)

    def freeze_disk(self, name: str) -> None:
        """Have every write to a host's disk wait."""
        subprocess.run(["fsfreeze", "--freeze", self.disk(name)], check=False)

    def thaw_disk(self, name: str) -> None:
        """Let all go on."""
        subprocess.run(
            ["fsfreeze", "--unfreeze", self.disk(name)], check=False, stderr=subprocess.DEVNULL
        )

    def step_clock(self, name: str, by_s: float) -> None:
        """Set the wall clock of all processes of a host that were started with a false one."""
        path = self.directory / f"{name}.clock"
        draft = path.with_suffix(".new")
        draft.write_text(f"{by_s:+.1f}\n")
        draft.rename(path)

    def _environment(self, host: str) -> dict[str, str]:
        kept = ("PATH", "HOME", "LANG")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {MARK: self.mark, "TMPDIR": str(self.disk(host) / "tmp"), "XDG_RUNTIME_DIR": ""}
        env["PYTHONPATH"] = str(ROOT)
        if self.plan.has_clocks and FAKETIME.exists():
            env |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.directory / f"{host}.clock"),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return env

    # Coordinators.

    def _program(self, name: str, host: str, *argv: str) -> Program:
        where = self.network.hosts[host]
        return Program(name, where, argv, self._environment(host), self.logs)

    def _etcd(self, name: str) -> Program:
        address = self.network.hosts[name].address
        peers = ",".join(
            f"{each}=http://{self.network.hosts[each].address}:2380" for each in self.plan.members
        )
        return self._program(
            f"etcd-{name}",
            name,
            *(
                str(etcd_program("etcd")),
                "--name",
                name,
                "--data-dir",
                str(self.directory / "etcd" / name),
            ),
            *("--listen-client-urls", f"http://{address}:2379"),
            *("--advertise-client-urls", f"http://{address}:2379"),
            *("--listen-peer-urls", f"http://{address}:2380"),
            *("--initial-advertise-peer-urls", f"http://{address}:2380"),
            *("--initial-cluster", peers, "--unsafe-no-fsync", "--logger", "zap"),
            *("--log-level", "error", "--quota-backend-bytes", str(16 << 20)),
        )

    def _coordinator(self, name: str) -> Program:
        options = ["--state-dir", str(self.disk(name) / "state")]
        if self.plan.members:
            urls = ",".join(f"{self.network.hosts[m].address}:2379" for m in self.plan.members)
            options += ["--journal", f"etcd://{urls}/chaos", "--leader-ttl", "2s"]
            options += ["--advertise", f"{self.network.hosts[name].address}:{PORT}"]
        return self._program(
            name,
            name,
            *(sys.executable, *self._mistaken(), "-m", "drumbeat", "coordinator", "serve"),
            *("--host", "0.0.0.0", "--port", str(PORT), "--log-format", "json"),
            *("--log-level", "debug", "--lease", "3s", "--heartbeat-interval", "0.5s", *options),
            *(("--frontends", str(self.plan.frontends)) if not self._how.get("before") else ()),
        )

    def _mistaken(self) -> list[str]:
        mistake = self._how.get("mistake", "")
        return ["-m", "tests.chaos.mistakes", mistake] if mistake else []

    def start_coordinator(self, name: str, *, is_first: bool = False) -> None:
        """Begin a life; its first one is of the version before, if one was given."""
        before = self._how.get("before", "")
        env = {"PYTHONPATH": f"{before}/src"} if is_first and before else {}
        self.coordinators[name].start(env=env)

    @property
    def addresses(self) -> list[str]:
        """Of all coordinators."""
        return [f"{self.network.hosts[name].address}:{PORT}" for name in self.plan.coordinators]

    def _enter_as_user(self) -> None:
        """Get an administrator's token by what lets this user in on a coordinator's host."""
        for name in self.plan.coordinators:
            self.coordinators[name].wait_for_line("coordinator ready", START_S)

        def enter() -> tuple[str, str] | None:
            for path, address in itertools.product(ACCESS.glob(f"{PORT}-*"), self.addresses):
                with suppress(grpc.RpcError, OSError, ValueError):
                    channel = Channel(address, path.read_text())
                    try:
                        return (
                            channel.create_token(control_pb2.ROLE_ADMIN),
                            channel.create_token(control_pb2.ROLE_JOIN),
                        )
                    finally:
                        channel.close()
            return None

        admin, self._token = self.wait_for(enter, START_S, "a coordinator lets its user in")
        self.channels = [Channel(address, admin) for address in self.addresses]

    # Runs.

    def run_directory(self, run_id: str) -> Path:
        """Return where the workers of a run write."""
        return self.directory / "runs" / run_id

    def _make_run(self, run: RunPlan) -> None:
        for number, host in enumerate(run.hosts):
            is_group = run.kind is Kind.REPLICAS
            run_id = f"{run.run_id}.{number}" if is_group else run.run_id
            self.runs[run_id] = run
            (self.run_directory(run_id) / "records").mkdir(parents=True, exist_ok=True)
            name = f"{run.run_id}@{host}"
            self.run_of[name] = run_id
            nodes = "1" if is_group else f"{run.hosts_min}:{len(run.hosts)}"
            options = ["--run-id", run.run_id, "--nnodes", nodes, "--last-call", "1s"]
            if is_group:
                options += ["--replica-group", f"{number}/{len(run.hosts)}"]
            if run.kind is Kind.PRELOAD:
                options += ["--preload", "json"]
            self.agents[name] = self._program(
                name,
                host,
                *(sys.executable, "-m", "drumbeat", "agent", "join", "--coordinator"),
                *(",".join(self.addresses), *options, "--name", host, "--log-format", "json"),
                *("--log-level", "debug", "--nproc-per-node", str(run.workers)),
                *("--max-restarts", str(run.restarts_max), "--restart-delay-max", "0"),
                *("--shutdown-timeout", "2s", "--coordinator-grace", f"{GRACE_S}s"),
                *("--local-addr", self.network.hosts[host].address),
                *(str(WORKER), str(self.run_directory(run_id)), run.mode),
            )

    def start_agent(self, name: str) -> None:
        """Begin a life of an agent."""
        self.agents[name].start(env={"DRUMBEAT_TOKEN": self._token})

    def agents_of(self, run_id: str) -> list[Program]:
        """Return the agents of a run."""
        return [self.agents[name] for name, of in self.run_of.items() if of == run_id]

    def finish(self) -> None:
        """Tell all workers to end well."""
        for run_id in self.runs:
            (self.run_directory(run_id) / "finish").touch()

    # What workers wrote.

    def lives(self, run_id: str) -> list[Life]:
        """Return what all workers of a run have done so far."""
        seen: list[Life] = []
        for path in (self.run_directory(run_id) / "records").iterdir():
            size = path.stat().st_size
            if self._read.get(path, (-1, []))[0] != size:
                self._read[path] = size, promises.lives(path.read_text())
            seen += self._read[path][1]
        return seen

    def wait_for(self, look: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Return what is seen once it is there. Raises ``AssertionError`` if it never is."""
        deadline = time.monotonic() + timeout_s
        while not (seen := look()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
            time.sleep(LOOK_S)
        return seen

    def all_programs(self) -> Iterable[Program]:
        """Return coordinators, members of etcd and agents."""
        return [*self.coordinators.values(), *self.etcd.values(), *self.agents.values()]
