"""Shell. What this host gives to workers: space, limits, GPUs, torch; and what was left here."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import sys
from functools import partial
from pathlib import Path

from drumbeat import VERSION
from drumbeat.agent.doctor.model import Findings, Host, fail, ok, warn
from drumbeat.agent.health.probes import DiskProbe, GpuProbe, MemoryProbe
from drumbeat.agent.host.leftovers import find_leftovers
from drumbeat.agent.host.memory.cgroups import find_cgroup, read_number, read_pairs, read_text
from drumbeat.agent.host.private_directory import private_directories
from drumbeat.agent.watchdog import outside
from drumbeat.agent.workers.devices import nvml
from drumbeat.agent.workers.devices.accelerators import AcceleratorUnknown, ask_torch
from drumbeat.agent.workers.devices.gpus import VISIBLE_DEVICES, entries, visible, visible_count
from drumbeat.text.format import count, format_size, install_command, listed, one_line

SHM = "shared memory"
FREE_BYTES_LOW = 2**30  # NCCL and loaders of data need hundreds of MiB; Docker's /dev/shm has 64
PIDS_LEFT_LOW = 512
TORCH_S = 20.0  # from a slow file system; a healthy host takes 2 s
_CAP_SYS_PTRACE = 19
_RDMA = "ulimit -l unlimited, in a container --ulimit memlock=-1: RDMA needs it"
# Below which soft limits are reported; where the condition is a path, if that is there.
_LIMITS = (
    (resource.RLIMIT_NOFILE, "open files", 4096, "ulimit -n 65536; systemd: LimitNOFILE=65536", ""),
    (resource.RLIMIT_NPROC, "processes and threads", 4096, "ulimit -u 65536", ""),
    (resource.RLIMIT_MEMLOCK, "bytes of locked memory", 2**40, _RDMA, "sys/class/infiniband"),
)
# The options of torchrun, and what the agent sets for workers, whatever the shell has.
_CHANGING = re.compile(
    r"PET_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
)
_HIDING = ("-1", "none", "void", "NoDevFiles")  # all GPUs, on purpose
_LESSER = ("No module named 'torch'", "did not answer")  # some workers need none, or wait
_ASK = """
import json, torch
build = torch.version.cuda or torch.version.hip or "CPU only"
print(json.dumps([str(torch.__version__), build, torch.cuda.is_available()]))
"""


def directories(host: Host) -> tuple[str, ...]:
    """Return what names the directories that need space."""
    return (SHM, "TMPDIR", *(["--log-dir"] if host.settings.log_dir else []))


def check_space(host: Host, what: str) -> Findings:
    """`/dev/shm`, `TMPDIR`, `--log-dir`: whether they can be written, and their free space."""
    where, advice = host.root / "dev/shm", "free space there, or docker --shm-size=16g"
    if what != SHM:
        named = host.environment.get("TMPDIR") if what == "TMPDIR" else host.settings.log_dir
        where = Path(named or "/tmp").absolute()  # noqa: S108 - Python's default
        advice = f"free space there, or give another directory as {what}"
    while what == "--log-dir" and not os.access(where, os.F_OK):  # agents make it
        where = where.parent
    try:
        if broken := DiskProbe(where).look():  # as `agent join` has it
            yield fail(f"{where}: {broken}", advice)
        elif low := DiskProbe(where, FREE_BYTES_LOW, writes=False).look():
            yield warn(f"{where}: {low}", advice)
        else:
            yield ok(f"{where}: {format_size(shutil.disk_usage(where).free)} free")
    except OSError as error:
        yield fail(f"{where} cannot be written: {error.strerror or error}", advice)


def check_limits(host: Host) -> Findings:
    """Limits of processes (`ulimit`): open files, processes, locked memory, core files."""
    for kind, what, low, advice, condition in _LIMITS:
        if 0 <= (soft := host.getrlimit(kind)[0]) < low and (host.root / condition).exists():
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


def check_gpus(host: Host) -> Findings:
    """NVIDIA GPUs, their driver, and what `CUDA_VISIBLE_DEVICES` names."""
    present = nvml.visible_gpus(None, device_dir=host.root / "dev")
    library = nvml.load_nvml()
    gpus = nvml.read_gpus(library) if library is not None else ()
    if present and library is None:
        yield warn("nvidia-ml-py is not installed", install_command("gpu"))
    elif present and not gpus:
        advice = "`nvidia-smi` says why; reload the driver, or restart this host"
        yield fail(f"{count(present, 'GPU')}, but the driver does not answer", advice)
    elif gpus and (problem := GpuProbe(library, gpus).look()):
        yield fail(problem, "reset the GPU or restart this host; `nvidia-smi` and `dmesg` say more")
    setting = host.environment.get(VISIBLE_DEVICES)
    named = [] if setting in _HIDING else entries(setting or "")
    seen = len(visible(gpus, setting)) if gpus else visible_count(present, setting)
    if not any(name.upper().startswith("MIG-") for name in named) and seen < len(named):
        text = f"{VISIBLE_DEVICES}={setting} names {named[seen]}, which is missing"
        yield fail(text, f"unset {VISIBLE_DEVICES}, or name devices of `nvidia-smi -L`")
    yield ok(listed(f"GPU {gpu.index} {gpu.name}" for gpu in gpus) if gpus else f"{present} GPUs")


def check_torch(host: Host) -> Findings:
    """Python, drumbeat, and whether torch can be imported and sees the GPUs."""
    yield ok(f"drumbeat {VERSION}, Python {platform.python_version()}")
    python = host.environment.get("PYTHON_EXEC") or sys.executable
    ask = partial(ask_torch, python=python, environment=host.environment, timeout_s=TORCH_S)
    try:
        version, build, has_cuda = json.loads(ask(_ASK))
    except (AcceleratorUnknown, TypeError, ValueError) as error:
        problem = warn if any(part in str(error) for part in _LESSER) else fail
        advice = f"install torch for {python}, or set PYTHON_EXEC to the workers' Python"
        yield problem(f"torch cannot be used: {one_line(str(error))}", advice)
        return
    text = f"torch {version} ({build})"
    devices = host.environment.get(VISIBLE_DEVICES)
    if not has_cuda and nvml.visible_gpus(devices, device_dir=host.root / "dev"):
        yield fail(f"{text} cannot use the GPUs", "install a torch for the CUDA of this driver")
    else:
        yield ok(text)


def check_variables(host: Host) -> Findings:
    """Variables that change `agent join` (`PET_*`), or that it overwrites (`MASTER_ADDR` …)."""
    if names := sorted(name for name in host.environment if _CHANGING.fullmatch(name)):
        text = f"{listed(names)}: set by hand, or left from another job"
        yield warn(text, f"unset {' '.join(names)}, unless they are meant")


def check_leftovers(_: Host) -> Findings:
    """Processes and files of agents of this user that were killed."""
    dead = [path for path, is_alive in private_directories() if not is_alive]
    if pids := sorted(find_leftovers(dead)) if dead else []:
        text = f"processes of a dead agent still run: pid {listed(map(str, pids))}"
        yield warn(text, "the next `agent join` of this user kills them, or you: kill -9 PID")
    elif dead:
        yield ok(f"files of {count(len(dead), 'dead agent')}, which the next agent removes")
