"""The checks themselves: made directories for those that we bring, real processes for commands."""

import asyncio
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from drumbeat.agent.core.effects import RunChecks, StopChecks
from drumbeat.agent.core.events import ChecksEnded, Event
from drumbeat.agent.health import runner
from drumbeat.agent.health.command import run_command
from drumbeat.agent.health.probes import DiskProbe, GpuProbe, MemoryProbe, NicProbe
from drumbeat.agent.workers.devices.nvml import read_gpus
from tests.support.nvml import FakeGpu, FakeNvml
from tests.support.waiting import wait_until

ENVIRONMENT = dict(os.environ)


def children() -> set[psutil.Process]:
    """Return all processes below this one; servers that other tests share are among them."""
    return set(psutil.Process().children(recursive=True))


class SickNvml(FakeNvml):
    """A driver that also tells of errors and repairs."""

    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, *uuids: str) -> None:
        super().__init__([FakeGpu(uuid=uuid) for uuid in uuids])
        self.xids: list[int] = []
        self.actions: dict[str, int] = {}

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, kinds: int, events: object) -> None:  # noqa: N802
        pass

    def nvmlEventSetWait_v2(self, _events: object, _timeout: int) -> Any:  # noqa: N802
        if not self.xids:
            raise self.NVMLError("Timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, fields: list[int]) -> Any:  # noqa: N802
        assert fields == [230]
        value = SimpleNamespace(uiVal=self.actions.get(handle.uuid, 0))
        return [SimpleNamespace(nvmlReturn=0, value=value)]


def gpu_probe() -> tuple[SickNvml, GpuProbe]:
    nvml = SickNvml("GPU-a", "GPU-b")
    probe = GpuProbe(nvml, read_gpus(nvml))
    assert probe.look() == ""
    return nvml, probe


def test_a_gpu_that_is_gone_or_needs_a_repair_is_named() -> None:
    nvml, probe = gpu_probe()
    nvml.actions["GPU-b"] = 2
    assert probe.look() == "GPU 1 (GPU-b) needs a reboot of the machine"
    del nvml.gpus[1]
    assert probe.look() == "GPU 1 (GPU-b) is gone: FakeNvmlError: Not Found"


def test_an_error_of_a_gpu_stays_and_those_of_programs_do_not_count() -> None:
    nvml, probe = gpu_probe()
    nvml.xids = [31, 13]
    assert probe.look() == ""
    nvml.xids = [43, 79]
    assert [probe.look(), probe.look()] == ["a GPU had the error XID 79"] * 2


def test_a_driver_without_events_and_repairs_is_healthy_and_one_that_fails_is_not() -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-a")])
    gpus = read_gpus(nvml)
    assert GpuProbe(nvml, gpus).look() == ""
    nvml.failing.add("nvmlInit")
    assert GpuProbe(nvml, gpus).look().startswith("the driver does not answer")


def test_a_port_that_was_active_and_is_not_any_more_is_named(tmp_path: Path) -> None:
    assert NicProbe(tmp_path).look() == ""  # a host without any
    ports = tmp_path / "sys/class/infiniband/mlx5_0/ports"
    for number, state in (("1", "4: ACTIVE\n"), ("2", "1: DOWN\n")):
        (ports / number).mkdir(parents=True)
        (ports / number / "state").write_text(state)
    probe = NicProbe(tmp_path)
    assert probe.look() == ""
    (ports / "1/state").write_text("2: INIT\n")
    assert probe.look() == "mlx5_0 port 1 is INIT, it was ACTIVE"
    (ports / "1/state").unlink()
    assert probe.look() == "mlx5_0 port 1 is gone, it was ACTIVE"


def test_a_disk_needs_to_be_there_with_the_space_that_was_asked_for(tmp_path: Path) -> None:
    assert DiskProbe(tmp_path, 10**6).look() == ""
    assert "free, less than" in DiskProbe(tmp_path, 10**18).look()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        DiskProbe(tmp_path / "away").look()


def test_memory_of_the_host_and_of_the_cgroup_must_not_run_out(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "sys/fs/cgroup/job"
    assert MemoryProbe(tmp_path).look() == ""
    for folder in (proc / "self", cgroup):
        folder.mkdir(parents=True)

    def host(available: int) -> None:
        text = f"MemTotal: 1000000 kB\nMemAvailable: {available} kB\n"
        (proc / "meminfo").write_text(text)

    host(9_000)
    assert MemoryProbe(tmp_path).look() == "8.8 MiB of 976.6 MiB available"
    host(11_000)
    assert MemoryProbe(tmp_path).look() == ""
    (proc / "self/cgroup").write_text("0::/job\n")
    for name, text in (("memory.events", "max 0"), ("memory.max", "1000000"), ("memory.stat", "")):
        (cgroup / name).write_text(text)
    (cgroup / "memory.current").write_text("980000")
    assert MemoryProbe(tmp_path).look() == ""
    (cgroup / "memory.current").write_text("999000")
    assert MemoryProbe(tmp_path).look() == "0.0 MiB left of the limit of 1.0 MiB of its cgroup"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("true", ""),
        ("sh -c 'echo one; echo two; echo; exit 4'", "sh exited with 4: two"),
        ("sh -c 'exit 5'", "sh exited with 5"),
        ("sh -c 'kill -SEGV $$'", "sh was ended by SIGSEGV"),
        ("sh -c 'yes | head -c 3000000; echo end; exit 1'", "sh exited with 1: end"),
        ("sh -c 'echo still; sleep 100 & exit 1'", "sh exited with 1: still"),
        ("./no", "./no exited with 1: ./no could not be started: No such file or directory"),
    ],
)
def test_a_command_tells_by_its_exit_code_and_its_last_line(command: str, problem: str) -> None:
    before = children()
    assert asyncio.run(run_command(command, ENVIRONMENT, 20.0)) == problem
    assert children() <= before


def test_a_command_that_takes_too_long_is_killed_with_what_it_started() -> None:
    since, before = time.monotonic(), children()
    command = "sh -c 'echo begun; sleep 100 & sleep 100'"
    problem = asyncio.run(run_command(command, ENVIRONMENT, 0.5))
    assert problem == "sh took longer than 0.5 s and was killed: begun"
    assert time.monotonic() - since < 10.0
    assert children() <= before


class Stuck:
    """A probe that hangs until it is let go."""

    title = "disk /nfs"

    def __init__(self) -> None:
        self.gate, self.looks = threading.Event(), 0

    def look(self) -> str:
        self.looks += 1
        self.gate.wait()
        return ""


def test_a_probe_that_hangs_is_a_problem_and_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "PROBE_TIMEOUT_S", 0.1)
    stuck = Stuck()
    told: list[Event] = []
    config: Any = SimpleNamespace(health_check=("true",), health_check_timeout=5.0)

    async def run() -> None:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()

        def submit(event: Event) -> None:
            told.append(event)
            answered.set()

        checks = runner.HealthRunner(config, [stuck], submit)
        for number in (1, 2, 3):
            checks.execute(RunChecks(number=number), ENVIRONMENT, loop.create_task)
            await answered.wait()
            answered.clear()
        stuck.gate.set()
        await wait_until(lambda: not any(thread.is_stalled for _, thread in checks._probes), 20.0)
        checks.execute(RunChecks(number=4), ENVIRONMENT, loop.create_task)
        await answered.wait()
        checks.execute(StopChecks(), ENVIRONMENT, loop.create_task)
        checks.close()

    asyncio.run(run())
    assert told == [
        ChecksEnded(number=1, problem="disk /nfs: no answer within 0.1 s"),
        ChecksEnded(number=2, problem="disk /nfs: still no answer"),
        ChecksEnded(number=3, problem="disk /nfs: still no answer"),
        ChecksEnded(number=4),
    ]
    assert stuck.looks == 2
