"""Shell. What is checked of every host: GPUs, network ports, disks, memory.

A probe returns what is wrong, empty if nothing is. What a host does not have is not wrong.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from drumbeat.agent.host.memory.cgroups import find_cgroup, read_pairs, read_text
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import Nvml
from drumbeat.text.format import describe, format_size

RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_ACTIONS = {1: "a reset", 2: "a reboot of the machine", 3: "a drain", 4: "a drain and a reset"}
# XID errors that a program causes, not the GPU. Source: NVIDIA's k8s-device-plugin, health.go.
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
EVENTS_MAX = 100  # taken in one look
SHARE_MIN = 0.01  # of memory that must be free
FREE_BYTES_MIN = 100 * 10**6  # on a disk, or a tenth of a small one
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - no file is made there
_KIB = 1024


class Probe(Protocol):
    """One check. Each belongs to a thread of its own, for it may block for ever."""

    title: str

    def look(self) -> str:
        """Return what is wrong. Raises ``OSError``."""
        ...


class GpuProbe:
    """Asks the driver whether the workers' GPUs are there, and whether one needs to be repaired."""

    title = "gpu"

    def __init__(self, nvml: Nvml, gpus: Iterable[Gpu]) -> None:
        self._nvml, self._gpus = nvml, list(gpus)
        self._events: object = None
        self._is_open = False
        self._xid = ""  # it stays: since this agent began

    def look(self) -> str:
        """Return what is wrong; the first look begins to listen for errors."""
        nvml = self._nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
                self._listen()
        except (nvml.NVMLError, OSError) as error:
            return f"the driver does not answer: {describe(error)}"
        for gpu in self._gpus:
            try:
                action = self._action(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
            except (nvml.NVMLError, OSError) as error:
                return f"GPU {gpu.index} ({gpu.uuid}) is gone: {describe(error)}"
            if action:
                needed = _ACTIONS.get(action, f"recovery action {action}")
                return f"GPU {gpu.index} ({gpu.uuid}) needs {needed}"
        self._xid = self._xid or self._new_xid()
        return self._xid

    def _listen(self) -> None:
        nvml = self._nvml
        # Drivers and slices of GPUs that send no events are healthy as far as is known.
        with suppress(nvml.NVMLError, AttributeError):
            events = nvml.nvmlEventSetCreate()
            for gpu in self._gpus:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def _action(self, handle: object) -> int:
        with suppress(self._nvml.NVMLError, AttributeError):
            field = self._nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
            return int(field.value.uiVal) if field.nvmlReturn == 0 else 0
        return 0

    def _new_xid(self) -> str:
        if self._events is None:
            return ""
        with suppress(self._nvml.NVMLError):  # none is left
            for _ in range(EVENTS_MAX):
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                if (xid := int(event.eventData)) not in XIDS_OF_PROGRAMS:
                    return f"a GPU had the error XID {xid}"
        return ""


class NicProbe:
    """Looks whether InfiniBand and RoCE ports that were active at first still are."""

    title = "nic"

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "sys/class/infiniband"
        self._active: list[Path] | None = None

    def look(self) -> str:
        """Return which port is not active any more."""
        if self._active is None:
            files = sorted(self._folder.glob("*/ports/*/state"))
            self._active = [file for file in files if "ACTIVE" in read_text(file)]
        for file in self._active:
            if "ACTIVE" not in (state := read_text(file)):
                name = f"{file.parents[2].name} port {file.parent.name}"
                return f"{name} is {state.rpartition(':')[2].strip() or 'gone'}, it was ACTIVE"
        return ""


class DiskProbe:
    """Looks whether a directory can be written, and has some space."""

    def __init__(self, path: Path, least_bytes: int | None = None, *, writes: bool = True) -> None:
        self.title = f"disk {path}"
        self._path, self._least, self._writes = path, least_bytes, writes

    def look(self) -> str:
        """Return what is wrong with it."""
        size, _, free = shutil.disk_usage(self._path)
        least = self._least
        if least is None:
            least = min(FREE_BYTES_MIN, size // 10)
        if free < least:
            return f"{format_size(free)} free, less than {format_size(least)}"
        if self._writes:
            with tempfile.TemporaryFile(dir=self._path) as probe:
                probe.write(b"probe")
        return ""


class MemoryProbe:
    """Looks whether there is some memory left, in the host and in the cgroup."""

    title = "memory"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def look(self) -> str:
        """Return how little is left."""
        host = read_pairs(self._root / "proc/meminfo")
        total, available = host.get("MemTotal", 0) * _KIB, host.get("MemAvailable")
        if available is not None and available * _KIB < total * SHARE_MIN:
            return f"{format_size(available * _KIB)} of {format_size(total)} available"
        own = find_cgroup(self._root / "proc/self/cgroup", self._root / "sys/fs/cgroup")
        tight = own.tightest() if own is not None else None
        if tight is None or (used := tight.used_bytes(with_active_cache=False)) is None:
            return ""
        limit = tight.limit_bytes() or 0
        if limit - used < limit * SHARE_MIN:
            left = format_size(max(0, limit - used))
            return f"{left} left of the limit of {format_size(limit)} of its cgroup"
        return ""
