"""Shell. What this host's GPUs do, read in a thread: a driver may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import Nvml, load_nvml
from drumbeat.model import GpuUse

INTERVAL_S = 10.0  # between two readings


class GpuUsage:
    """Reads it with beats, no more often than ``INTERVAL_S``; nothing waits for a reading."""

    def __init__(self, gpus: Iterable[Gpu] = (), nvml: Nvml | None = None) -> None:
        self._uuids = [gpu.uuid for gpu in gpus]
        self._nvml = (nvml or load_nvml()) if self._uuids else None
        self._is_open = False
        self._due_at = 0.0
        self._thread = FileThread("gpus")
        self._reading: asyncio.Future[GpuUse | None] | None = None

    def news(self, *, now: float) -> GpuUse | None:
        """Return a reading that was not returned before, if there is one; begin the next if due."""
        if self._nvml is None:
            return None
        use: GpuUse | None = None
        if self._reading is not None and self._reading.done():
            use, self._reading = self._reading.result(), None
        if self._reading is None and now >= self._due_at:
            self._due_at = now + INTERVAL_S
            self._reading = self._thread.submit(self._read)
        return use

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._thread.close()

    def _read(self) -> GpuUse | None:
        nvml = self._nvml
        assert nvml is not None, "there is no driver"
        try:
            if not self._is_open:  # and never closed: to open it again takes long
                nvml.nvmlInit()
                self._is_open = True
            handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids]
            memory = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
            return GpuUse(
                utilization=tuple(
                    nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles
                ),
                memory_used_bytes=tuple(int(one.used) for one in memory),
                memory_bytes=tuple(int(one.total) for one in memory),
                power_watts=tuple(self._power(handle) for handle in handles),
            )
        except (nvml.NVMLError, OSError, AttributeError):  # a slice of a GPU has no utilization
            return None

    def _power(self, handle: object) -> float:
        assert self._nvml is not None, "there is no driver"
        try:
            return float(self._nvml.nvmlDeviceGetPowerUsage(handle)) / 1000  # it says milliwatts
        except (self._nvml.NVMLError, OSError, AttributeError):
            return 0.0
