"""Shell. This process and those below it, of which only a subreaper sees all."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection


def age_s() -> float:
    """Return for how long this process has been running, in seconds."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since boot; proc(5), "starttime"
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def kill_descendants(*, exclude: Collection[int] = ()) -> None:
    """Send SIGKILL to every process that is below this one now.

    Those in ``exclude`` are spared, with all below them. A process forked meanwhile may be missed.
    Its new parent is then this process, which gets a SIGCHLD for the one that died: kill again
    after each reaping until no child is left.
    """
    spared = set(exclude)
    for pid in exclude:
        with contextlib.suppress(psutil.NoSuchProcess):
            spared.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    for process in psutil.Process().children(recursive=True):
        if process.pid in spared:
            continue
        # Gone already, or of another user: then it shows up among the stuck ones.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def list_children() -> set[int]:
    """Return the processes whose parent is this one, unreaped ones included."""
    return {process.pid for process in psutil.Process().children()}


def list_remaining() -> tuple[int, ...]:
    """Return what is left below this process, to be called when all that ended is reaped.

    A zombie counts if it is a direct child, because then it still has a thread that lives on.
    """
    children = list_children()
    remaining = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid in children or process.status() != psutil.STATUS_ZOMBIE:
                remaining.append(process.pid)
    return tuple(sorted(remaining))
