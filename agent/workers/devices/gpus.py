"""Pure. GPUs, and what ``CUDA_VISIBLE_DEVICES`` means: which of them a process sees.

Source: CUDA's programming guide, on environment variables. The first entry that names no
device ends the list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

_INDEX = re.compile(r"-?[0-9]{1,6}", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f-]+", re.ASCII | re.IGNORECASE)


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as its driver describes it."""

    index: int  # its number among all GPUs of the host, in the driver's order
    uuid: str
    name: str
    memory_bytes: int
    memory_used_bytes: int  # when it was looked at, by any process
    pci_address: str  # as in sysfs, e.g. "0000:3b:00.0"; empty if the driver's was not understood


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """Return which of a host's GPUs a process sees, in its order, by the variable's value.

    Slices of a GPU (MIG) are not looked into: where one is named, nothing is known.
    """
    if setting is None:
        return tuple(gpus)
    seen: list[Gpu] = []
    for entry in entries(setting):
        if entry.upper().startswith("MIG-"):
            return ()
        gpu = _find(gpus, entry)
        if gpu is None:
            break
        seen.append(gpu)
    return tuple(seen)


def _find(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if _INDEX.fullmatch(entry):
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    # The beginning of a UUID will do, if it is that of one GPU only.
    begun = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
    return begun[0] if _UUID.fullmatch(entry) and len(begun) == 1 else None


def visible_count(present: int, setting: str | None) -> int:
    """Return how many of so many GPUs a process sees, if nothing else is known of them."""
    if setting is None or present == 0:
        return present
    named = entries(setting)
    for position, entry in enumerate(named):
        if not entry or (_INDEX.fullmatch(entry) and not 0 <= int(entry) < present):
            return position
    return len(named)


def entries(setting: str) -> list[str]:
    """Return the devices that the variable names; none if it is empty."""
    return [entry.strip() for entry in setting.split(",")] if setting.strip() else []


def device_of(local_rank: int, setting: str | None) -> str:
    """Return the value of the variable for a worker that shall see one GPU only.

    Empty if the agent itself sees none. Raises ``IndexError`` if it names fewer
    devices than there are workers; the command line was checked for that.
    """
    if setting is None:
        return str(local_rank)
    named = entries(setting)
    return named[local_rank] if named else ""
