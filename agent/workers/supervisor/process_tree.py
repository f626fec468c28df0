"""Shell. Lists and kills the processes below this one; prctl(2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded by now, because a freshly forked child must not load anything.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_prctl.restype = ctypes.c_int


def age_s() -> float:
    """Return for how long this process has been running, in seconds."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since boot; proc(5), "starttime"
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def kill_descendants(pid: int | None = None, *, exclude: Collection[int] = ()) -> None:
    """Send SIGKILL to every process that is below this one, or below ``pid``, now.

    Those in ``exclude`` are spared, with all below them. A process forked meanwhile may be missed.
    Its new parent is then this process, which gets a SIGCHLD for the one that died: kill again
    after each reaping until no child is left.
    """
    spared = set(exclude)
    for root in exclude:
        with contextlib.suppress(psutil.NoSuchProcess):
            spared.update(child.pid for child in psutil.Process(root).children(recursive=True))
    for process in psutil.Process(pid).children(recursive=True):
        if process.pid in spared:
            continue
        # Gone already, or of another user: then it shows up among the stuck ones.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def list_children() -> set[int]:
    """Return the processes whose parent is this one, unreaped ones included."""
    return {process.pid for process in psutil.Process().children()}


def list_own_children() -> set[int]:
    """Return the same, at once, for a process with a single thread."""
    try:
        return set(map(int, Path("/proc/thread-self/children").read_text().split()))
    except FileNotFoundError:
        return list_children()  # a kernel without it


def list_remaining(*, exclude: Collection[int] = ()) -> tuple[int, ...]:
    """Return what is left below this process, to be called when all that ended is reaped.

    A zombie counts if it is a direct child, because then it still has a thread that lives on.
    Those in ``exclude`` do not count.
    """
    children = list_children()
    remaining = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in exclude:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid in children or process.status() != psutil.STATUS_ZOMBIE:
                remaining.append(process.pid)
    return tuple(sorted(remaining))


def become_subreaper() -> None:
    """Make this process the new parent of every orphan below it. Raises ``OSError``."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def signal_at_parents_end(number: int) -> None:
    """Have this process get a signal when its parent ends; SIGCONT has a stopped one go on."""
    _call(_PR_SET_PDEATHSIG, number)


def die_with(parent_pid: int) -> None:
    """Have this process killed as soon as its parent, expected to be `parent_pid`, dies."""
    signal_at_parents_end(signal.SIGKILL)
    # A parent that died before the call above sends no signal any more.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
