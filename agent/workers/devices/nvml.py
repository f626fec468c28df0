"""Shell. Asks the NVIDIA driver about this host's GPUs, if there is a driver.

Needs the ``gpu`` extra (nvidia-ml-py). Without it, without a driver, or where the
driver fails, there are simply no GPUs to know about: nothing here raises.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from drumbeat.agent.workers.devices.gpus import Gpu, visible, visible_count

Nvml: TypeAlias = Any
"""The module ``pynvml``, which has no types, or what stands for it in a test."""

TOLERANCE_BYTES = 512 * 1024**2  # left of dead workers: a driver's bookkeeping; NVRx's value
LOOK_AGAIN_S = 0.2  # between two looks at memory: short beside a worker's start

DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia[0-9]+", re.ASCII)
_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


def load_nvml() -> Nvml | None:
    """Return the module that speaks to the driver; None if it is not installed."""
    try:
        # The older package of that name warns of itself, which is no business of the user's.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # noqa: PLC0415 - optional, and of no use on most hosts
    except ImportError:
        return None
    return pynvml


def read_gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """Return all GPUs of the host that the driver lets us see; may block for seconds."""
    gpus = []
    try:
        with driver(nvml):
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
                gpus.append(
                    Gpu(
                        index=index,
                        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                        name=_text(nvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(memory.total),
                        memory_used_bytes=int(memory.used),
                        pci_address=sysfs_pci_address(address),
                    )
                )
    except (nvml.NVMLError, OSError):
        # Half of an inventory would number the other half wrongly.
        return ()
    return tuple(gpus)


def _text(value: str | bytes) -> str:
    # Members of its structures are bytes, results of its functions are not.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def sysfs_pci_address(text: str) -> str:
    """Write a PCI address as sysfs does, with a domain of four digits; empty if it is none."""
    match = _PCI_ADDRESS.fullmatch(text.strip().lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else ""


@contextmanager
def driver(nvml: Nvml) -> Iterator[None]:
    """Hold the driver open. Raises ``nvml.NVMLError`` or ``OSError`` if it can't be opened."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError, OSError):  # it was of no more use anyway
            nvml.nvmlShutdown()


def count_gpus(visible_devices: str | None, *, device_dir: Path = DEVICES) -> int:
    """NVIDIA GPUs a worker of this process could use, as the driver says if it can be asked.

    The driver also knows those that have a device file but were denied to this job.
    ``visible_devices`` is the value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    nvml = load_nvml()
    gpus = () if nvml is None else visible(read_gpus(nvml), visible_devices)
    return len(gpus) or visible_gpus(visible_devices, device_dir=device_dir)


def visible_gpus(visible_devices: str | None, *, device_dir: Path = DEVICES) -> int:
    """Return the same, counted by device files, without loading a driver."""
    present = 0
    with suppress(OSError):
        present = sum(_DEVICE.fullmatch(file.name) is not None for file in device_dir.iterdir())
    return visible_count(present, visible_devices)


def wait_for_memory(
    nvml: Nvml, before: Mapping[str, int], timeout_s: float, end: threading.Event
) -> dict[str, int]:
    """Look until GPUs hold no more than ``before``, the time is over or ``end`` set; blocks.

    Returns the bytes on top of that, by UUID, of GPUs that are not free. A driver that fails is
    not waited for.
    """
    deadline = time.monotonic() + timeout_s
    failures = (nvml.NVMLError, OSError)
    with suppress(*failures), driver(nvml):
        while True:
            excess: dict[str, int] = {}
            for uuid, bytes_before in before.items():
                with suppress(*failures):  # of one that is broken
                    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                    more = int(nvml.nvmlDeviceGetMemoryInfo(handle).used) - bytes_before
                    if more > TOLERANCE_BYTES:
                        excess[uuid] = more
            left_s = deadline - time.monotonic()
            # The driver sends no news of free memory, so this has to ask again and
            # again: the one loop of that kind here, and only between two rounds on a GPU.
            if not excess or left_s <= 0 or end.wait(min(LOOK_AGAIN_S, left_s)):
                return excess
    return {}
