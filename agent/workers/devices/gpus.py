"""Shell. What the NVIDIA driver says of this host's GPUs, if there is one to ask.

Needs the ``gpu`` extra (nvidia-ml-py). Without it, without a driver, or where the
driver fails, there are simply no GPUs to know about: nothing here raises.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from agent.workers.devices.model import Gpu, sysfs_pci_address

Nvml: TypeAlias = Any
"""The module ``pynvml``, which has no types, or what stands for it in a test."""


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
        with _driver(nvml):
            return tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except (nvml.NVMLError, OSError):
        # Half of an inventory would number the other half wrongly.
        return ()


@contextmanager
def memory_readings(nvml: Nvml, uuids: Iterable[str]) -> Iterator[Iterator[dict[str, int]]]:
    """Give an endless iterator of bytes used by GPU; each step asks the driver anew.

    A GPU that does not answer is left out: nobody should wait for a broken one.
    """
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError):
        yield itertools.repeat({})
        return
    try:
        yield _read_memory(nvml, tuple(uuids))
    finally:
        _shut_down(nvml)


def _read_memory(nvml: Nvml, uuids: tuple[str, ...]) -> Iterator[dict[str, int]]:
    while True:
        used: dict[str, int] = {}
        for uuid in uuids:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                used[uuid] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
            except (nvml.NVMLError, OSError):
                continue
        yield used


@contextmanager
def _driver(nvml: Nvml) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        _shut_down(nvml)


def _shut_down(nvml: Nvml) -> None:
    try:
        nvml.nvmlShutdown()
    except (nvml.NVMLError, OSError):
        return  # it was of no more use anyway


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
