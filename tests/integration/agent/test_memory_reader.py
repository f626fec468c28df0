"""The memory of workers and of their cgroup, read from kernel files that the test wrote."""

import os
import subprocess
import sys
from pathlib import Path
from resource import getpagesize

import pytest

from drumbeat.agent.host.memory.growth import LastMemory
from drumbeat.agent.host.memory.reader import MemoryReader
from drumbeat.model import HostMemory, WorkerMemory

PAGE, KIB = getpagesize(), 1024
GIB = 2**30
PIDS = {0: 70, 1: 71}


class Kernel:
    """The files of a host with 64 GiB, of which 24 are in use."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.write("proc/meminfo", f"MemTotal: {64 * GIB // KIB} kB\nMemAvailable: 41943040 kB\n")
        for local_rank, pid in PIDS.items():
            self.write(f"proc/{pid}/statm", f"9999 {1000 + local_rank} 5 1 0 7 0\n")
        self.reader = MemoryReader(directory)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def limits(self, **limits: int | None) -> None:
        """Put the agent into /job/step, of version 2, with these limits."""
        self.write("proc/self/cgroup", "0::/job/step\n")
        for name, path in {"job": "job", "step": "job/step"}.items():
            limit = limits.get(name)
            self.write(f"sys/fs/cgroup/{path}/memory.max", f"{limit or 'max'}\n")
            self.write(f"sys/fs/cgroup/{path}/memory.events", "oom_kill 0\n")
            self.write(f"sys/fs/cgroup/{path}/memory.current", f"{14 * GIB}\n")
            self.write(f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")

    def read(self, now: float = 1.0, round_id: int = 3) -> HostMemory:
        return self.reader.read(round_id, PIDS, now=now)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_without_a_limit_the_host_is_it(kernel: Kernel) -> None:
    workers = tuple(WorkerMemory(local_rank=i, resident_bytes=PAGE * (1000 + i)) for i in PIDS)
    expected = HostMemory(workers=workers, used_bytes=24 * GIB, limit_bytes=64 * GIB)
    assert kernel.read() == expected
    kernel.limits()
    assert kernel.read(round_id=4) == expected


@pytest.mark.parametrize("where", ["job", "step"])
def test_the_lowest_limit_counts_without_file_cache(kernel: Kernel, where: str) -> None:
    kernel.limits(**{"job": 32 * GIB, "step": 48 * GIB, where: 16 * GIB})
    found = kernel.read()
    assert (found.used_bytes, found.limit_bytes, found.is_cgroup) == (12 * GIB, 16 * GIB, True)


def test_a_limit_above_the_hosts_memory_is_none(kernel: Kernel) -> None:
    kernel.limits(step=100 * GIB)
    assert kernel.read().limit_bytes == 64 * GIB


def test_version_1_of_cgroups(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "4:memory,hugetlb:/job\n0::/\n")
    job = "sys/fs/cgroup/memory/job/memory"
    kernel.write(f"{job}.oom_control", "under_oom 0\n")
    kernel.write(f"{job}.limit_in_bytes", f"{16 * GIB}\n")
    kernel.write(f"{job}.usage_in_bytes", f"{9 * GIB}\n")
    kernel.write(f"{job}.stat", f"inactive_file 7\ntotal_inactive_file {GIB}\n")
    found = kernel.read()
    assert (found.used_bytes, found.limit_bytes, found.is_cgroup) == (8 * GIB, 16 * GIB, True)


def test_the_last_figure_of_a_worker_that_has_ended_is_kept_for_its_round(kernel: Kernel) -> None:
    kernel.limits(step=16 * GIB)
    kernel.read(now=1.0)
    (kernel.root / "proc/70/statm").unlink()
    assert [each.local_rank for each in kernel.read(now=2.0).workers] == [1]
    assert kernel.reader.last_of(3, 0, now=2.5) == LastMemory(
        resident_bytes=1000 * PAGE,
        ago_s=1.5,
        used_bytes=12 * GIB,
        limit_bytes=16 * GIB,
        is_cgroup=True,
    )
    assert kernel.reader.last_of(4, 0, now=2.5) is None
    kernel.read(now=3.0, round_id=4)
    assert kernel.reader.last_of(3, 0, now=3.5) is None


@pytest.mark.parametrize("text", ["", "1", "1 x 3", "\0\xff"])
def test_files_of_another_form_harm_nobody(kernel: Kernel, text: str) -> None:
    kernel.write("proc/70/statm", text)
    kernel.write("proc/meminfo", text)
    assert [each.local_rank for each in kernel.read().workers] == [1]


def test_a_real_process_uses_what_it_has_touched() -> None:
    program = f"kept = b'x' * {200 * 2**20}; print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = MemoryReader().read(0, {0: process.pid, 1: os.getpid()}, now=0.0)
        process.kill()
    assert found.workers[0].resident_bytes > 200 * 2**20
    assert 0 < found.used_bytes <= found.limit_bytes
