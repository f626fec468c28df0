"""Shell. The devices of this host, as one agent uses them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import structlog

from agent.workers.devices.background import run_in_background
from agent.workers.devices.gpu_memory import GpuMemoryWaiter
from agent.workers.devices.gpus import Nvml, load_nvml, read_gpus
from agent.workers.devices.model import Gpu
from agent.workers.devices.numa import Bindings, NumaMode, bind_workers
from agent.workers.devices.topology import SYSFS, read_gpu_node, read_topology
from agent.workers.devices.visible import visible

log = structlog.get_logger()

DRIVER_TOLD_AFTER_S = 1.5
"""How long the driver may take without a word about it."""

DRIVER_TIMEOUT_S = 10.0
"""How long the driver may take for its inventory; a broken GPU can hang it for good."""


class HostDevices:
    """What this host has; without GPUs, everything here does nothing.

    Args:
        gpus: Those that workers see, in their order.
        memory: Waits for their memory; None if nobody shall.
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
            return Bindings(cpus={}), False
        allowed = frozenset(os.sched_getaffinity(0))
        if self._bound is not None and self._bound[:2] == (allowed, local_world_size):
            return self._bound[2], False
        # At first, and whenever somebody has changed what we may use.
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
    try:
        async with asyncio.timeout(DRIVER_TIMEOUT_S):
            found = await run_in_background(
                lambda: read_gpus(module), fallback=found, name="gpu-inventory"
            )
    except TimeoutError:
        # As if there were no GPUs: training may work, or will say why it does not.
        log.warning("GPUs not found", reason=f"the driver is silent for {DRIVER_TIMEOUT_S:g} s")
    finally:
        notice.cancel()
    gpus = visible(found, visible_devices)
    memory = GpuMemoryWaiter(module, gpus) if gpus and is_memory_awaited else None
    return HostDevices(gpus, memory=memory, numa_mode=numa_mode)
