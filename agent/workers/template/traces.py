"""Shell. Lists what a fork would lose or share: threads, descriptors, children, devices.

A fork copies memory. It loses every thread, and shares what is open with its parent.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection

# A fork may share these with its parent: they have no state, or none that a process relies on.
_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "shm/")
_OURS = "late imports"  # name of the only memory that is meant to be shared
_THREAD_POOLS = ("libgomp", "libiomp", "libomp")
_FRAMEWORK = "torch"
_ACCELERATORS = ("cuda", "xpu", "mtia")  # modules of torch that know whether a fork can use them


def glance() -> tuple[int, int, bool]:
    """Return what differs if there is a new thread, an open descriptor or a child; in a moment."""
    free = os.open("/", os.O_RDONLY)  # the lowest that is not in use
    os.close(free)
    return os.stat("/proc/self/task").st_nlink, free, has_child()  # noqa: PTH116


def threads() -> list[str]:
    """Return the threads of this process but the main one, by number."""
    own = str(os.getpid())
    return [number for number in os.listdir("/proc/self/task") if number != own]  # noqa: PTH208


def thread_name(number: str) -> str:
    """Return the name that a thread has in Python, or for the system."""
    if (threading := sys.modules.get("threading")) is not None:
        for thread in threading.enumerate():
            if str(thread.native_id) == number:
                return str(thread.name)
    try:
        with open(f"/proc/self/task/{number}/comm", errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return "ended by now"


def descriptors() -> dict[str, str]:
    """Return what this process has open, by descriptor."""
    targets = {}
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            targets[fd] = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue  # that of the listing itself
    return targets


def has_child() -> bool:
    """Return whether this process has a child that has not been waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def sharing(target: str) -> str:
    """Return why two processes must not share what is open; "" if they may."""
    kind = target.partition(":")[0]
    if kind == "socket":
        return "left a socket open"
    if kind == "pipe":
        return "left a pipe open"
    if kind == "anon_inode":
        return f"left {target.removeprefix('anon_inode:')} open"
    device = target.removeprefix("/dev/")
    if device != target and not device.startswith(_HARMLESS):
        return f"opened the device {target}"
    return ""


def shared_memory() -> str:
    """Return memory that a fork shares, and a process of its own would have made anew; or ""."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        regions = [line.split(maxsplit=5) for line in file]
    return next(
        (
            path.removesuffix("(deleted)\n").strip()
            for _, access, *_, path in regions
            if access == "rw-s" and path.endswith("(deleted)\n") and _OURS not in path
        ),
        "",
    )


def regular_files(but: Collection[str]) -> list[int]:
    """Return which descriptors are of regular files."""
    fds = [int(fd) for fd in descriptors() if fd not in but]
    return [fd for fd in fds if stat.S_ISREG(os.fstat(fd).st_mode)]


def thread_pool() -> str:
    """Return the library of this process that has counted its CPUs; "" if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        paths = {line.rpartition("/")[2].strip() for line in file if "/" in line}
    return next((path for path in sorted(paths) if path.startswith(_THREAD_POOLS)), "")


def accelerator() -> str:
    """Return which device of torch this process uses already; "" if none."""
    name = _accelerator_that("is_initialized")
    return f"initialised {_FRAMEWORK}.{name}" if name else ""


def lost_accelerator() -> str:
    """Return which device of torch this process, a fork, can't use; "" if none."""
    name = _accelerator_that("_is_in_bad_fork")
    return f"asked {_FRAMEWORK}.{name} for its devices" if name else ""


def _accelerator_that(question: str) -> str:
    for name in _ACCELERATORS:
        module = getattr(sys.modules.get(_FRAMEWORK), name, None)
        if module is not None and getattr(module, question, bool)():
            return name
    return ""
