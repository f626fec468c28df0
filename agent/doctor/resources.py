"""Shell. What this host gives to workers: memory, space, processes, processors, stacks."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from drumbeat.agent.doctor.model import Findings, Host, fail, ok, warn
from drumbeat.agent.health.probes import DiskProbe, MemoryProbe
from drumbeat.agent.host.memory.cgroups import find_cgroup, read_number, read_pairs, read_text
from drumbeat.agent.watchdog import outside
from drumbeat.format import format_size

FREE_BYTES_LOW = 2**30  # NCCL and loaders of data need hundreds of MiB; Docker's /dev/shm has 64
PIDS_LEFT_LOW = 512
_CAP_SYS_PTRACE = 19
_RDMA = "ulimit -l unlimited, in a container --ulimit memlock=-1: RDMA needs it"
# Below which soft limits are reported; where the condition is a path, if that is there.
LIMITS = (
    (resource.RLIMIT_NOFILE, "open files", 4096, "ulimit -n 65536; systemd: LimitNOFILE=65536", ""),
    (resource.RLIMIT_NPROC, "processes and threads", 4096, "ulimit -u 65536", ""),
    (resource.RLIMIT_MEMLOCK, "bytes of locked memory", 2**40, _RDMA, "sys/class/infiniband"),
)


def check_shared_memory(host: Host) -> Findings:
    """`/dev/shm`: its size and free space."""
    yield from _space(host.root / "dev/shm", "docker --shm-size=16g")


def check_temporary_directory(host: Host) -> Findings:
    """`TMPDIR`: whether it can be written, and its free space."""
    where = Path(host.environment.get("TMPDIR") or "/tmp")  # noqa: S108 - Python's default
    yield from _space(where, "set TMPDIR to another directory")


def check_log_directory(host: Host) -> Findings:
    """The directory of `--log-dir`: whether it can be written, and its free space."""
    if host.settings.log_dir:
        where = Path(host.settings.log_dir).absolute()
        there = next(path for path in (where, *where.parents) if os.access(path, os.F_OK))
        yield from _space(there, "name another --log-dir")


def _space(where: Path, advice: str) -> Findings:
    advice = f"free space there, or {advice}"
    try:
        low = DiskProbe(where, FREE_BYTES_LOW, writes=False).look()
        if broken := DiskProbe(where).look():  # as `agent join` has it
            yield fail(f"{where}: {broken}", advice)
        elif low:
            yield warn(f"{where}: {low}", advice)
        else:
            yield ok(f"{where}: {format_size(shutil.disk_usage(where).free)} free")
    except OSError as error:
        yield fail(f"{where} cannot be written: {error.strerror or error}", advice)


def check_limits(host: Host) -> Findings:
    """Limits of processes (`ulimit`): open files, processes, locked memory, core files."""
    for kind, what, low, advice, condition in LIMITS:
        soft, _ = host.getrlimit(kind)
        if 0 <= soft < low and (host.root / condition).exists():
            yield warn(f"at most {soft} {what}", advice)
    core, _ = host.getrlimit(resource.RLIMIT_CORE)
    yield ok("core files are off" if core == 0 else "core files are written")


def check_cgroup(host: Host) -> Findings:
    """Limits of the cgroup: memory and kills for lack of it, processes, processors."""
    root, cores = host.root / "sys/fs/cgroup", len(os.sched_getaffinity(0))
    if (cgroup := find_cgroup(host.root / "proc/self/cgroup", root)) is None:
        return
    if low := MemoryProbe(host.root).look():  # as `agent join` has it
        yield fail(f"memory: {low}", "raise the memory of the container or job, or end processes")
    if kills := read_pairs(cgroup.events).get("oom_kill"):
        text = f"the kernel killed {kills} processes here for lack of memory"
        yield warn(text, "raise the memory of the container or job if they were of training")
    # Version 1 has a hierarchy for each; a container sees its own cgroup as the root.
    pids, cpu = (cgroup.directory if cgroup.is_unified else root / name for name in ("pids", "cpu"))
    most, now = read_number(pids / "pids.max"), read_number(pids / "pids.current") or 0
    if most is not None and most - now < PIDS_LEFT_LOW:
        advice = "docker --pids-limit=-1; systemd: TasksMax=infinity"
        yield warn(f"{now} of {most} processes and threads are in use", advice)
    v1 = (read_text(cpu / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    quota, period = (*(read_text(cpu / "cpu.max") or " ".join(v1)).split(), "", "")[:2]
    if quota.isdecimal() and period.isdecimal() and int(quota) < cores * int(period):
        text = f"a quota of {int(quota) / int(period):g} processors on {cores} cores slows workers"
        yield warn(text, "raise the quota, or set OMP_NUM_THREADS to fewer threads")
    tight = cgroup.tightest()
    limit = format_size(tight.limit_bytes() or 0) if tight else "no limit"
    yield ok(f"{cores} cores; memory: {limit}")


def check_tracing(host: Host) -> Findings:
    """Whether py-spy can read stacks of workers: installed, `ptrace_scope`, capability."""
    status = read_text(host.root / "proc/self/status").partition("CapEff:")[2].split()[:1]
    has_capability = bool(int("".join(status) or "0", 16) >> _CAP_SYS_PTRACE & 1)
    scope = read_number(host.root / "proc/sys/kernel/yama/ptrace_scope") or 0
    if scope > 2 or (scope and not has_capability):
        text = f"ptrace_scope is {scope}: py-spy cannot read the stacks of other processes"
        yield warn(text, "sysctl kernel.yama.ptrace_scope=0, or the capability SYS_PTRACE")
    if outside.find_program() is None:
        yield warn("py-spy is not installed", outside.HINT)
