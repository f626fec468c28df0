"""Workers bound to CPUs, and GPU memory waited for, with real processes and a driver of our own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from drumbeat.agent.model.messages import (
    Command,
    StartWorkers,
    WorkerExited,
    WorkerStart,
)
from drumbeat.agent.settings.kinds import NumaMode
from drumbeat.agent.workers.devices.binding import bind_workers, parse_cpu_list
from drumbeat.agent.workers.devices.host import read_topology
from drumbeat.agent.workers.supervisor.protocol import Decoder, ProtocolError, encode
from tests.support.supervision import DEADLINE_S, Mailbox, running

ROOT = Path(__file__).resolve().parents[2]

ALLOWED = frozenset(os.sched_getaffinity(0))

# Two GPUs at addresses that no machine has. What one holds is in a file; the driver gives it
# back at the third look since then.
PYNVML = """
import os
from pathlib import Path
from tests.support.nvml import FakeGpu, FakeNvml, FakeNvmlError as NVMLError

HELD = Path(os.environ["FAKE_HELD"])

class Driver(FakeNvml):
    held_looks = 0

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle.uuid == "GPU-b" and HELD.exists():
            handle.used = int(HELD.read_text())
            self.held_looks += handle.used > 0
            if self.held_looks == 3:
                HELD.write_text("0")
                handle.used = 0
        return super().nvmlDeviceGetMemoryInfo(handle)

_driver = Driver([
    FakeGpu(uuid="GPU-a", bus_id="0000FFFF:FE:1F.7"),
    FakeGpu(uuid="GPU-b", bus_id="0000FFFF:FF:1F.7"),
])

def __getattr__(name):
    return getattr(_driver, name)
"""

SAY_CPUS = """
import json, os, sys
name = os.path.join(sys.argv[1], os.environ["RANK"])
with open(name, "w") as file:
    json.dump(sorted(os.sched_getaffinity(0)), file)
"""

FILL_AND_FAIL = """
import os, sys
from pathlib import Path
held, seen = Path(os.environ["FAKE_HELD"]), Path(sys.argv[1])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    held.write_text(str(20 * 1024**3))
    sys.exit(1)
seen.write_text(held.read_text())
"""


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterable[Mailbox]:
    with Mailbox(tmp_path) as box:
        yield box


def agent(folder: Path, script: str, *options: str, has_driver: bool = True) -> str:
    """Run a standalone agent to its success and return what it said."""
    (folder / "train.py").write_text(script)
    (folder / "lib").mkdir()
    if has_driver:
        (folder / "lib" / "pynvml.py").write_text(PYNVML)
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "drumbeat.agent", "join", "--standalone", "--log-format", "json",
         "--log-level", "debug", *options, str(folder / "train.py"), str(folder / "said")],
        cwd=ROOT,
        env={
            **kept,
            "PYTHONPATH": f"{folder / 'lib'}:{ROOT}",
            "FAKE_HELD": str(folder / "held"),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_a_worker_runs_on_its_cpus_only(mailbox: Mailbox) -> None:
    """Goal: the program itself is bound, from its first instruction on, and nobody else is."""
    cpu = max(ALLOWED)
    script = f"echo $LOCAL_RANK $(grep Cpus_allowed_list /proc/self/status) > {mailbox.path}"
    async with running() as harness:
        harness.client.send(
            StartWorkers(
                round_id=0,
                argv=("sh", "-c", script),
                env={"PATH": os.environ["PATH"]},
                workers=(
                    WorkerStart(local_rank=0, env={"LOCAL_RANK": "0"}, cpus=(cpu,)),
                    WorkerStart(local_rank=1, env={"LOCAL_RANK": "1"}),
                ),
            )
        )
        lines = dict(line.split(" ", 1) for line in await mailbox.read(2))
        assert lines["0"] == f"Cpus_allowed_list: {cpu}"
        assert parse_cpu_list(lines["1"].split()[1]) == ALLOWED
        assert frozenset(os.sched_getaffinity(harness.pid)) == ALLOWED


async def test_cpus_that_are_gone_do_not_keep_a_worker_from_running() -> None:
    async with running() as harness:
        harness.client.send(
            StartWorkers(
                round_id=0,
                argv=("true",),
                env={"PATH": os.environ["PATH"]},
                workers=(WorkerStart(local_rank=0, env={}, cpus=(65_535,)),),
            )
        )
        [exited] = await harness.expect(WorkerExited)
        assert exited.exit_code == 0


@pytest.mark.parametrize("cpu", [-1, 65_536])
def test_cpus_with_impossible_numbers_are_not_read(cpu: int) -> None:
    good = StartWorkers(
        round_id=0, argv=("x",), env={}, workers=(WorkerStart(local_rank=0, env={}, cpus=(3, 1)),)
    )
    assert Decoder(Command).feed(encode(good)) == [good]
    line = encode(good).replace(b"[3,1]", f"[3,{cpu}]".encode())
    with pytest.raises(ProtocolError, match="cpus"):
        Decoder(Command).feed(line)


@pytest.mark.parametrize("mode", [NumaMode.NODE, NumaMode.EXCLUSIVE])
def test_an_agent_binds_its_workers(tmp_path: Path, mode: NumaMode) -> None:
    """Method: on a machine of one node, the GPUs of the fake driver can only be on that one."""
    (tmp_path / "said").mkdir()
    agent(tmp_path, SAY_CPUS, "--nproc-per-node", "gpu", "--numa-binding", mode)
    cpus_of, _ = bind_workers(read_topology(ALLOWED), [None] * 2, local_world_size=2, mode=mode)
    for rank in range(2):
        seen = json.loads((tmp_path / "said" / str(rank)).read_text())
        assert seen == sorted(cpus_of.get(rank, ALLOWED))


def test_without_gpus_nothing_changes_and_nothing_is_said(tmp_path: Path) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    (tmp_path / "said").mkdir()
    said = agent(tmp_path, SAY_CPUS, "--numa-binding", "exclusive", has_driver=False)
    assert json.loads((tmp_path / "said" / "0").read_text()) == sorted(ALLOWED)
    assert "NUMA" not in said
    assert "GPU" not in said


@pytest.mark.parametrize(("wait", "seen"), [("60", "0"), ("0", str(20 * 1024**3))])
def test_a_restart_waits_for_the_memory_of_dead_workers(
    tmp_path: Path, wait: str, seen: str
) -> None:
    """Goal: the second round finds the memory free; with a wait of zero it does not."""
    said = agent(tmp_path, FILL_AND_FAIL, "--max-restarts", "1", "--gpu-memory-wait", wait)
    assert (tmp_path / "said").read_text() == seen
    assert '"gpus": "2 Fake H200"' in said  # the coordinator was told
