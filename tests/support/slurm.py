"""A real Slurm on this machine: a controller and several nodes, all in a directory of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from tests.support.cluster import DEADLINE_S, ROOT, Cluster, Process
from tests.support.waiting import wait_until_sync

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue")
_missing = [program for program in PROGRAMS if shutil.which(program) is None]
needs_slurm = pytest.mark.skipif(
    bool(_missing) or os.geteuid() != 0,
    reason="not root, so slurmd can't start jobs"
    if not _missing
    else f"{_missing[0]} is missing (Debian: apt install slurmctld slurmd slurm-client munge)",
)
NODES = ("n1", "n2", "n3")
SCRIPT = ROOT / "deploy/slurm/train.sbatch"
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
EioTimeout=3
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
SchedulerParameters=bf_interval=1
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Slurm:
    """``slurmctld`` and a ``slurmd`` for each of ``NODES``; a context manager."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.directory = self.cluster.directory
        self._nodes: dict[str, Process] = {}
        self._env = {
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SHARED_DIR": str(self.directory / "shared"),
            "HOME": str(self.directory),
            "XDG_STATE_HOME": str(self.directory / "home"),
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_steps()
        self.cluster.close()

    def _kill_steps(self) -> None:
        """End what slurmd starts with an empty environment; it stays in our directory."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(self.directory):
                    process.kill()

    def _start(self) -> None:
        # What is named here is open to all on the way to it, as munge wants it.
        self.directory.chmod(0o755)
        key = self.directory / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        (self.directory / "state").mkdir()
        nodes = "".join(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1"
            f" Port={_free_port()} CPUs=4\n"
            for name in NODES
        )
        text = _CONFIGURATION.format(
            host=socket.gethostname(), port=_free_port(), directory=self.directory
        )
        (self.directory / "slurm.conf").write_text(text + nodes)
        at = {name: f"--{name}={self.directory}/munge.{name}" for name in ("socket", "key", "seed")}
        self._command(
            "munged",
            *("munged", "--foreground", "--force", at["socket"]),
            *(f"--key-file={key}", f"--seed-file={self.directory}/munge.seed"),
            f"--pid-file={self.directory}/munge.pid",
        )
        wait_until_sync((self.directory / "munge.socket").exists, DEADLINE_S)
        self._command("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            self.start_node(name)
        self.wait_for_nodes("idle")

    def start_node(self, name: str) -> None:
        """Start the ``slurmd`` of a node."""
        self._nodes[name] = self._command(f"slurmd {name}", "slurmd", "-D", "-N", name)

    def _command(self, name: str, *argv: str) -> Process:
        moved = ("sh", "-c", 'cd "$0" && exec "$@"', str(self.directory), *argv)
        return self.cluster.command(name, *moved, env=self._env)

    def wait_for_nodes(self, state: str) -> None:
        """Return once all nodes have this state."""
        wait_until_sync(
            lambda: {self.node_state(name) for name in NODES} == {state},
            2 * DEADLINE_S,  # what a job has left may take Slurm a while
            describe=lambda: self.run("sinfo", "-N", is_checked=False) + self.cluster.logs(),
        )

    def node_state(self, name: str) -> str:
        """Return what ``sinfo`` says of a node."""
        return self.run("sinfo", "-h", "-N", "-n", name, "-o", "%T", is_checked=False).strip()

    def run(self, *argv: str, is_checked: bool = True, env: dict[str, str] | None = None) -> str:
        """Run a command of Slurm or ours to its end; return what it wrote."""
        done = subprocess.run(
            argv,
            env={**self.cluster.environment(), **self._env, **(env or {})},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0 or not is_checked, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout

    def submit(self, *argv: str, **env: str) -> Job:
        """Submit ``deploy/slurm/train.sbatch`` with ``argv``: options of sbatch, `--`, the rest."""
        split = argv.index("--")
        options, arguments = argv[:split], argv[split + 1 :]
        output = f"--output={self.directory}/%j.out"
        job_id = self.run(
            *("sbatch", "--parsable", output, *options, str(SCRIPT), *arguments), env=env
        )
        return Job(self, job_id.strip())

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Return all processes of a node: its ``slurmd``, those of jobs, and what starts those."""
        found = {psutil.Process(self._nodes[name].pid)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                # Other tests may run a Slurm with nodes of these names at the same time.
                is_ours = env.get("SLURM_CONF") == self._env["SLURM_CONF"]
                if is_ours and env.get("SLURMD_NODENAME") == name:
                    parent = process.parent()
                    is_step = parent is not None and "slurmstepd" in " ".join(parent.cmdline())
                    found |= {process, *([parent] if parent is not None and is_step else [])}
        return list(found)

    def freeze(self, name: str) -> list[psutil.Process]:
        """Silence a node without closing a connection, as a machine that loses its power."""
        frozen = self.processes_of(name)
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        return frozen


class Job:
    """A batch job of ``train.sbatch``."""

    def __init__(self, slurm: Slurm, job_id: str) -> None:
        self.slurm = slurm
        self.job_id = job_id

    @property
    def output(self) -> str:
        """What the batch script and the agents wrote so far."""
        path = self.slurm.directory / f"{self.job_id}.out"
        return path.read_text() if path.exists() else ""

    def facts(self) -> dict[str, Any]:
        """Return what ``scontrol show job`` says."""
        text = self.slurm.run("scontrol", "show", "job", self.job_id, "-o", is_checked=False)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_for_output(self, text: str) -> None:
        """Return once it has written this."""
        wait_until_sync(lambda: text in self.output, DEADLINE_S, describe=self.describe)

    def wait_for_state(self, *states: str) -> dict[str, Any]:
        """Return what Slurm says of the job once it is in one of these states."""
        wait_until_sync(
            lambda: self.facts().get("JobState") in states, DEADLINE_S, describe=self.describe
        )
        return self.facts()

    def wait_for_end(self) -> dict[str, Any]:
        """Return what Slurm says of the job once it has ended, or begins anew."""

        def has_ended() -> bool:
            facts = self.facts()
            return facts["Restarts"] != "0" or facts["JobState"] in {"COMPLETED", "FAILED"}

        wait_until_sync(has_ended, DEADLINE_S, describe=self.describe)
        return self.facts()

    def describe(self) -> str:
        """Return what is known, for a failure message."""
        return f"{self.facts()}\n{self.output}"

    def cancel(self) -> None:
        """End it, and return once nothing of it is left on the nodes."""
        self.slurm.run("scancel", self.job_id, is_checked=False)
        wait_until_sync(lambda: not self._is_listed(), 2 * DEADLINE_S, describe=self.describe)

    def _is_listed(self) -> str:
        """Return what ``squeue`` says of it: nothing once its nodes are free."""
        return self.slurm.run("squeue", "--noheader", "--jobs", self.job_id, is_checked=False)
