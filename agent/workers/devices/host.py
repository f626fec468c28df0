"""Shell. The devices of this host, as one agent uses them: its CPUs, its GPUs and their memory."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from agent.runtime.file_thread import FilesStalled, FileThread
from agent.settings.kinds import NumaMode
from agent.workers.devices.gpus import Nvml, driver, load_nvml, read_gpus, read_memory
from agent.workers.devices.model import Gpu
from agent.workers.devices.numa import Bindings, bind_workers
from agent.workers.devices.topology import SYSFS, read_gpu_node, read_topology
from agent.workers.devices.visible import visible
from drumbeat.durations import format_duration

log = structlog.get_logger()

DRIVER_TOLD_AFTER_S = 1.5
"""How long the driver may take without a word about it."""

DRIVER_TIMEOUT_S = 10.0
"""How long the driver may take for its inventory; a broken GPU can hang it for good."""

TOLERANCE_BYTES = 512 * 1024**2
"""What may be left of dead workers: a driver's own bookkeeping; NVRx's value."""

LOOK_AGAIN_S = 0.2
"""Between two looks at memory: short beside the seconds that a worker's start takes."""

ANSWER_TIMEOUT_S = 10.0
"""What the driver may take to answer at all, on top of a wait for memory."""

_MIB = 1024**2


class HostDevices:
    """What this host has; without GPUs, everything here does nothing.

    Args:
        gpus: Those that workers see, in their order.
        memory: Waits for their memory; None if nothing shall.
        numa_mode: How workers are bound to CPUs; None if they are not.
        sysfs: Where it is mounted.
    """

    def __init__(
        self,
        gpus: tuple[Gpu, ...] = (),
        *,
        memory: GpuMemoryWaiter | None = None,
        numa_mode: str | None = None,
        sysfs: Path = SYSFS,
    ) -> None:
        self.gpus = gpus
        self.memory = memory
        self._numa_mode = numa_mode
        self._sysfs = sysfs
        self._bound: tuple[frozenset[int], int, Bindings] | None = None

    def bind(self, local_world_size: int) -> tuple[Bindings, bool]:
        """Return the CPUs of the workers, and whether that is news since the last call."""
        if self._numa_mode is None or not self.gpus:
            return Bindings({}), False
        allowed = frozenset(os.sched_getaffinity(0))
        if self._bound is not None and self._bound[:2] == (allowed, local_world_size):
            return self._bound[2], False
        # At first, and whenever what we may use has been changed.
        bindings = bind_workers(
            read_topology(allowed, root=self._sysfs),
            [read_gpu_node(gpu.pci_address, root=self._sysfs) for gpu in self.gpus],
            local_world_size=local_world_size,
            mode=NumaMode(self._numa_mode),
        )
        self._bound = allowed, local_world_size, bindings
        return bindings, True


async def find_devices(
    visible_devices: str | None,
    *,
    numa_mode: str | None,
    is_memory_awaited: bool,
    nvml: Nvml | None = None,
) -> HostDevices:
    """Look at the devices of this host, before any worker uses them.

    Args:
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        numa_mode: See ``HostDevices``.
        is_memory_awaited: Whether there shall be a waiter for their memory.
        nvml: Stands for the driver's module in a test.
    """
    module = nvml or load_nvml()
    if module is None:
        return HostDevices(numa_mode=numa_mode)
    found: tuple[Gpu, ...] = ()
    text = f"waiting for the GPU driver, up to {DRIVER_TIMEOUT_S:g} s; Ctrl-C ends this agent"
    loop = asyncio.get_running_loop()
    notice = loop.call_later(DRIVER_TOLD_AFTER_S, partial(log.info, "waiting", message=text))
    thread = FileThread("gpu-inventory")
    try:
        found = await thread.run(partial(read_gpus, module), timeout_s=DRIVER_TIMEOUT_S)
    except FilesStalled:
        # As if there were no GPUs: training may work, or will say why it does not.
        log.warning("GPUs not found", reason=f"the driver is silent for {DRIVER_TIMEOUT_S:g} s")
    finally:
        notice.cancel()
        thread.close()
    gpus = visible(found, visible_devices)
    memory = GpuMemoryWaiter(module, gpus) if gpus and is_memory_awaited else None
    return HostDevices(gpus, memory=memory, numa_mode=numa_mode)


class GpuMemoryWaiter:
    """Waits until dead workers' GPU memory is free, so that the next ones find room.

    A process is gone for the kernel before its driver has given all memory back; a worker
    that starts in between can fail with "out of memory". What GPUs hold now is compared with
    what they held before the first worker, so what others keep there is not waited for.

    Args:
        nvml: The driver's module.
        gpus: Those whose memory counts, looked at before the first worker started.
        look_again_s: Seconds between two looks at the driver.
    """

    def __init__(
        self, nvml: Nvml, gpus: Sequence[Gpu], *, look_again_s: float = LOOK_AGAIN_S
    ) -> None:
        self._nvml = nvml
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._before = {gpu.uuid: gpu.memory_used_bytes for gpu in gpus}
        self._look_again_s = look_again_s

    async def wait(self, timeout_s: float) -> str:
        """Return when the memory is free, or with a note on what is not after ``timeout_s``.

        One wait at a time.
        """
        end, limit_s = threading.Event(), timeout_s + ANSWER_TIMEOUT_S
        thread = FileThread("gpu-memory")
        try:
            used = await thread.run(lambda: self._watch(timeout_s, end), timeout_s=limit_s)
        except FilesStalled:
            return f"the GPU driver did not answer within {format_duration(limit_s)}"
        finally:
            end.set()
            thread.close()
        excess = self._excess(used)
        # What holds it is not one of ours; the next round shall not wait for it again.
        self._before.update({uuid: used[uuid] for uuid in excess})
        held = ", ".join(
            f"GPU {self._gpus[uuid].index} holds {more // _MIB} MiB more"
            for uuid, more in excess.items()
        )
        waited = format_duration(timeout_s)
        return f"{held} than before the first round, even after {waited}" if held else ""

    def _watch(self, timeout_s: float, end: threading.Event) -> dict[str, int]:
        """Look until the memory is free, the time over or ``end`` set; return what was seen last.

        Blocks. A driver that fails is not waited for.
        """
        deadline = time.monotonic() + timeout_s
        try:
            with driver(self._nvml):
                while True:
                    used = read_memory(self._nvml, self._gpus)
                    left_s = deadline - time.monotonic()
                    # The driver sends no news of free memory, so this has to ask again and
                    # again: the one loop of that kind here, and only between two rounds on a GPU.
                    is_over = left_s <= 0 or not self._excess(used)
                    if is_over or end.wait(min(self._look_again_s, left_s)):
                        return used
        except (self._nvml.NVMLError, OSError):
            return {}

    def _excess(self, used: dict[str, int]) -> dict[str, int]:
        """Return the bytes above what was there before, of GPUs that are not free."""
        more = {uuid: held - self._before[uuid] for uuid, held in used.items()}
        return {uuid: excess for uuid, excess in more.items() if excess > TOLERANCE_BYTES}
