"""Shell. The CPUs, GPUs and GPU memory of this host, for one agent.

A file of sysfs that is missing or makes no sense costs the grouping it stands for, never
more: containers and old kernels hide some of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.settings.kinds import NumaMode
from drumbeat.agent.workers.devices.binding import Cpu, bind_workers, parse_cpu_list
from drumbeat.agent.workers.devices.gpus import Gpu, visible
from drumbeat.agent.workers.devices.nvml import (
    Nvml,
    load_nvml,
    read_gpus,
    visible_gpus,
    wait_for_memory,
)
from drumbeat.text.durations import format_duration
from drumbeat.text.format import ranges

log = structlog.get_logger()

T = TypeVar("T")

DRIVER_TOLD_AFTER_S = 1.5  # that the driver may take without a word about it
DRIVER_TIMEOUT_S = 10.0  # that it may take at all; a broken GPU can hang it for good

SYSFS = Path("/sys")

_DATA_CACHES = ("Data", "Unified")  # placement is not about those of instructions
NO_CPUS: frozenset[int] = frozenset()


class HostDevices:
    """What this host has; without GPUs, everything here does nothing.

    ``gpus`` are those that workers see, in their order. ``nvml`` is asked for their memory, which
    is not waited for if it is None; with a ``numa_mode`` of None workers are not bound to CPUs.
    """

    def __init__(
        self, gpus: tuple[Gpu, ...] = (), *, nvml: Nvml | None = None, numa_mode: str | None = None
    ) -> None:
        self.gpus = gpus
        self.is_memory_awaited = bool(gpus) and nvml is not None
        self._nvml = nvml
        self._held = {gpu.uuid: gpu.memory_used_bytes for gpu in gpus}
        self._numa_mode = numa_mode
        # The CPUs that this process may use, and what each worker got of them.
        self._bound: tuple[frozenset[int], Mapping[int, tuple[int, ...]]] | None = None

    def bind(self, local_world_size: int) -> Mapping[int, tuple[int, ...]]:
        """Return the CPUs of each worker that is bound to some, and log what is new."""
        if self._numa_mode is None or not self.gpus:
            return {}
        allowed = frozenset(os.sched_getaffinity(0))
        # At first, and whenever what we may use has been changed.
        if self._bound is None or self._bound[0] != allowed:
            bound, notes = bind_workers(
                read_topology(allowed),
                [read_gpu_node(gpu.pci_address) for gpu in self.gpus],
                local_world_size=local_world_size,
                mode=NumaMode(self._numa_mode),
            )
            self._bound = allowed, bound
            for note in notes:
                log.warning("NUMA binding", reason=note)
            shown = {str(rank): ranges(cpus) for rank, cpus in bound.items()}
            text = "; ".join(f"local rank {rank}: {cpus}" for rank, cpus in shown.items())
            mode = str(self._numa_mode)
            log.info("workers bound to CPUs", reason=f"{mode}, {text}", mode=mode, cpus=shown)
        return self._bound[1]

    async def wait_for_memory(self, timeout_s: float) -> str:
        """Return when dead workers' GPU memory is free, or a note on what is not in time.

        A process is gone for the kernel before its driver has given all memory back; a worker
        that starts in between can fail with "out of memory". What GPUs hold is compared with what
        they held before the first worker, so what others keep there is not waited for. One wait
        at a time.
        """
        end, limit_s = threading.Event(), timeout_s + DRIVER_TIMEOUT_S
        watch = partial(wait_for_memory, self._nvml, self._held, timeout_s, end)
        thread = FileThread("gpu-memory")
        try:
            excess = await thread.run(watch, timeout_s=limit_s)
        except FilesStalled:
            return f"the GPU driver did not answer within {format_duration(limit_s)}"
        finally:
            end.set()
            thread.close()
        for uuid, more in excess.items():
            # What holds it is not one of ours; the next round shall not wait for it again.
            self._held[uuid] += more
        notes = [
            f"GPU {gpu.index} holds {excess[gpu.uuid] // 1024**2} MiB more"
            for gpu in self.gpus
            if gpu.uuid in excess
        ]
        waited = f"than before the first round, even after {format_duration(timeout_s)}"
        return f"{', '.join(notes)} {waited}" if notes else ""


async def find_devices(
    visible_devices: str | None, *, numa_mode: str | None, is_memory_awaited: bool
) -> HostDevices:
    """Look at the devices of this host, before any worker uses them.

    ``visible_devices`` is the value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.
    """
    nvml = load_nvml()
    inventory = () if nvml is None else await _take_inventory(nvml)
    gpus = visible(inventory, visible_devices)
    if gpus:
        names = [f"{gpu.index}: {gpu.name}" for gpu in gpus]
        log.info("GPUs found", reason=", ".join(names), gpus=names)
    elif numa_mode and visible_gpus(visible_devices):
        why = "the NUMA nodes of the GPUs are unknown; is nvidia-ml-py installed?"
        log.warning("NUMA binding", reason=f"workers not bound: {why}")
    return HostDevices(gpus, nvml=nvml if is_memory_awaited else None, numa_mode=numa_mode)


async def _take_inventory(nvml: Nvml) -> tuple[Gpu, ...]:
    text = f"waiting for the GPU driver, up to {DRIVER_TIMEOUT_S:g} s; Ctrl-C ends this agent"
    loop = asyncio.get_running_loop()
    notice = loop.call_later(DRIVER_TOLD_AFTER_S, partial(log.info, "waiting", message=text))
    thread = FileThread("gpu-inventory")
    try:
        return await thread.run(partial(read_gpus, nvml), timeout_s=DRIVER_TIMEOUT_S)
    except FilesStalled:
        # As if there were no GPUs: training may work, or will say why it does not.
        log.warning(
            "GPUs not found", reason=f"the driver did not answer within {DRIVER_TIMEOUT_S:g} s"
        )
        return ()
    finally:
        notice.cancel()
        thread.close()


def read_topology(allowed: frozenset[int], *, root: Path = SYSFS) -> tuple[Cpu, ...]:
    """Read what is known of the CPUs in ``allowed``, below the ``root`` of a sysfs.

    Allowed is the affinity of this process, which the kernel keeps within its cgroup and the
    CPUs that are online.
    """
    nodes = root / "devices/system/node"
    node_of = {
        cpu: node
        for node in _read(nodes / "online", parse_cpu_list, NO_CPUS)
        for cpu in _read(nodes / f"node{node}/cpulist", parse_cpu_list, NO_CPUS)
    }
    cpus = []
    for index in sorted(allowed):
        folder = root / f"devices/system/cpu/cpu{index}"
        siblings = _read(folder / "topology/thread_siblings_list", parse_cpu_list, NO_CPUS)
        caches = {
            _read(cache / "level", int, 0): cache / "shared_cpu_list"
            for cache in folder.glob("cache/index[0-9]*")
            if _read(cache / "type", str, "") in _DATA_CACHES
        }
        sharing = _read(caches[max(caches)], parse_cpu_list, NO_CPUS) if any(caches) else NO_CPUS
        cpus.append(
            Cpu(
                index=index,
                node=node_of.get(index, 0),
                socket=_read(folder / "topology/physical_package_id", int, 0),
                core=min(siblings | {index}),
                cache=min(sharing, default=-1),
            )
        )
    return tuple(cpus)


def read_gpu_node(pci_address: str, *, root: Path = SYSFS) -> int | None:
    """Return the NUMA node of the device at this address; None if the system does not know."""
    file = root / "bus/pci/devices" / pci_address / "numa_node"
    node = _read(file, int, -1) if pci_address else -1
    return node if node >= 0 else None


def _read(path: Path, parse: Callable[[str], T], default: T) -> T:
    try:
        return parse(path.read_text(encoding="ascii", errors="replace").strip())
    except (OSError, ValueError):
        return default
