"""Shell. What metrics tell of the machine itself: CPUs, memory, and that of its GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import psutil

from drumbeat.agent.telemetry.metrics import declared
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.agent.workers.devices.nvml import load_nvml, read_gpus
from drumbeat.command.metrics import Sample


def all_gpus() -> Sequence[Gpu]:
    """Ask the driver; blocks for as long as that takes."""
    nvml = load_nvml()
    return () if nvml is None else read_gpus(nvml)


class Host:
    """Reads CPUs, memory and GPUs of the machine. GPUs are those that were known at the start.

    A driver may take seconds, or hang for good, so it is asked by a thread, for the scrape to
    come; while it does not answer it is asked nothing else.
    """

    def __init__(self, gpus: Sequence[Gpu], read: Callable[[], Sequence[Gpu]] = all_gpus) -> None:
        self._indices, self._read = frozenset(gpu.index for gpu in gpus), read
        self._gpus = tuple(gpus)
        self._asking: threading.Thread | None = None

    def samples(self) -> Iterator[Sample]:
        """Yield what there is to tell."""
        gpus = self._gpus
        if self._indices and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="metrics-gpus", daemon=True)
            self._asking.start()
        times = psutil.cpu_times()
        times_s = {mode: getattr(times, mode, 0.0) for mode in declared.CPU_MODES[:-1]}
        # Time of guests is within that of users.
        counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        times_s["other"] = max(0.0, counted - sum(times_s.values()))
        for mode, spent_s in times_s.items():
            yield declared.CPU, (mode,), round(spent_s, 2)
        memory = psutil.virtual_memory()
        yield declared.MEMORY, (), float(memory.total)
        yield declared.MEMORY_AVAILABLE, (), float(memory.available)
        for gpu in gpus:
            yield declared.GPU_MEMORY, (str(gpu.index),), float(gpu.memory_bytes)
            yield declared.GPU_MEMORY_USED, (str(gpu.index),), float(gpu.memory_used_bytes)

    def _ask(self) -> None:
        gpus = tuple(gpu for gpu in self._read() if gpu.index in self._indices)
        self._gpus = gpus or self._gpus
