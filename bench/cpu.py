"""What processes take of the processor."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def cpu_s(*processes: psutil.Process) -> float:
    """Return what processes have taken of the processor so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it."""
    return [process, *process.children(recursive=True)]


def tree_s(process: psutil.Process) -> float:
    """Return what a process and all below it have taken of the processor so far."""
    return cpu_s(*tree(process))


async def shares(window_s: float, *processes: psutil.Process) -> list[float]:
    """Return how much of a core each takes in a window from now on, in percent."""
    before, began = [cpu_s(each) for each in processes], time.monotonic()
    await asyncio.sleep(window_s)
    lasted_s = time.monotonic() - began
    pairs = zip(processes, before, strict=True)
    return [100 * (cpu_s(each) - cpu) / lasted_s for each, cpu in pairs]
