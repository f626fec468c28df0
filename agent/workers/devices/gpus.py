"""Shell. What the NVIDIA driver says of this host's GPUs, if there is one to ask.

Needs the ``gpu`` extra (nvidia-ml-py). Without it, without a driver, or where the
driver fails, there are simply no GPUs to know about: nothing here raises.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from agent.workers.devices.model import Gpu, sysfs_pci_address
from agent.workers.devices.visible import visible, visible_count

Nvml: TypeAlias = Any
"""The module ``pynvml``, which has no types, or what stands for it in a test."""

DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia[0-9]+", re.ASCII)


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


def read_gpus(nvml: Nvml | None) -> tuple[Gpu, ...]:
    """Return all GPUs of the host that the driver lets us see; may block for seconds."""
    if nvml is None:
        return ()
    try:
        with driver(nvml):
            return tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except (nvml.NVMLError, OSError):
        # Half of an inventory would number the other half wrongly.
        return ()


def read_memory(nvml: Nvml, uuids: Iterable[str]) -> dict[str, int]:
    """Return the bytes used by GPU, without those that do not answer: they are broken."""
    used: dict[str, int] = {}
    for uuid in uuids:
        with suppress(nvml.NVMLError, OSError):
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            used[uuid] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    return used


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

    Args:
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        device_dir: Where the device files are.
    """
    found = visible(read_gpus(load_nvml()), visible_devices)
    return len(found) or visible_gpus(visible_devices, device_dir=device_dir)


def visible_gpus(visible_devices: str | None, *, device_dir: Path = DEVICES) -> int:
    """Return the same, counted without loading a driver."""
    present = 0
    with suppress(OSError):
        present = sum(_DEVICE.fullmatch(file.name) is not None for file in device_dir.iterdir())
    return visible_count(present, visible_devices)


def _read_gpu(nvml: Nvml, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        pci_address=sysfs_pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
    )


def _text(value: str | bytes) -> str:
    # Members of its structures are bytes, results of its functions are not.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
