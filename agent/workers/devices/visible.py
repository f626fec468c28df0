"""Pure. What ``CUDA_VISIBLE_DEVICES`` means: which GPUs a process sees, and one worker's part.

Source: CUDA's programming guide, on environment variables. The first entry that names no
device ends the list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.workers.devices.model import Gpu

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

_INDEX = re.compile(r"-?[0-9]{1,6}", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f-]+", re.ASCII | re.IGNORECASE)


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """Return which of a host's GPUs a process sees, in its order, by the variable's value.

    Slices of a GPU (MIG) are not looked into: where one is named, nothing is known.
    """
    if setting is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for entry in entries(setting):
        if entry.upper().startswith("MIG-"):
            return ()
        gpu = _find(gpus, entry)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def visible_count(present: int, setting: str | None) -> int:
    """Return how many of so many GPUs a process sees, if nothing else is known of them."""
    if setting is None or present == 0:
        return present
    named = entries(setting)
    for position, entry in enumerate(named):
        is_index = _INDEX.fullmatch(entry) is not None
        if not entry or (is_index and not 0 <= int(entry) < present):
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


def _find(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if _INDEX.fullmatch(entry) is not None:
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if _UUID.fullmatch(entry) is None:
        return None
    # The beginning of a UUID will do, if it is that of one GPU only.
    begun = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
    return begun[0] if len(begun) == 1 else None
