"""What a test may have left behind in this process and below it."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass

import psutil

# The C core of gRPC closes sockets on its own threads, a moment after `close` returned.
SETTLE_S = 2.0
_LOOK_AGAIN_S = 0.005

# Loops and the C core of gRPC open these lazily and share them for the life of the process.
_SHARED_TARGETS = ("anon_inode:[eventfd]", "anon_inode:[eventpoll]", "/dev/", "/proc/")
# One per process, started by the standard library on first use, ended with us; the browser, and the
# workers that it looks at: fixtures hold them, and they start and end processes as they like.
_SHARED_CHILDREN = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "chromium",
    "tests/support/workers/shown.py",
)
# Threads of a loop's default executor: the loop ends them when it is closed.
_SHARED_THREADS = ("asyncio_",)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds at one moment."""

    children: frozenset[psutil.Process]
    """All descendants, zombies included; compared by pid and start time."""
    descriptors: frozenset[tuple[int, str]]
    """Open descriptors with what they lead to."""
    threads: frozenset[threading.Thread]
    """Non-daemon threads."""

    @classmethod
    def now(cls) -> Holdings:
        """Look."""
        return cls(
            children=_children(),
            descriptors=frozenset(_descriptors()),
            threads=frozenset(
                thread
                for thread in threading.enumerate()
                if not thread.daemon and not thread.name.startswith(_SHARED_THREADS)
            ),
        )


def _children() -> frozenset[psutil.Process]:
    """Ask the kernel first: psutil reads every process of the machine, most tests have none."""
    try:
        has_any = any(map(_read_children, os.listdir("/proc/self/task")))  # noqa: PTH208
    except OSError:  # a thread has ended, or this kernel does not list them
        has_any = True
    return frozenset(psutil.Process().children(recursive=True)) if has_any else frozenset()


def _read_children(thread: str) -> bytes:
    fd = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY)
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path per descriptor is slower
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except FileNotFoundError:  # the listing's own descriptor
            continue
        if not target.startswith(_SHARED_TARGETS):
            found.append((int(name), target))
    return found


def _describe_child(child: psutil.Process) -> str | None:
    try:
        status = child.status()
        is_zombie = status == psutil.STATUS_ZOMBIE
        command = child.name() if is_zombie else " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return None
    if any(mark in command for mark in _SHARED_CHILDREN):
        return None
    return f"child process {child.pid} ({status}): {command}"


def leaks_since(before: Holdings) -> list[str]:
    """Return one line for each thing held now that was not held ``before``."""
    now = Holdings.now()
    children = [_describe_child(child) for child in now.children - before.children]
    return [
        *(line for line in children if line is not None),
        *(f"descriptor {fd}: {to}" for fd, to in sorted(now.descriptors - before.descriptors)),
        *(f"thread {thread.name}" for thread in now.threads - before.threads),
    ]


def settled_leaks_since(before: Holdings, settle_s: float = SETTLE_S) -> list[str]:
    """Return what is still leaked after at most ``settle_s``, in which it may yet go."""
    if not leaks_since(before):
        return []
    gc.collect()  # an unreachable cycle may still hold a socket
    deadline = time.monotonic() + settle_s
    while (leaks := leaks_since(before)) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return leaks


def end_children_since(before: Holdings) -> None:
    """Kill the children that ``before`` did not have, so that one leak fails one test."""
    leaked = [child for child in Holdings.now().children - before.children if child.is_running()]
    leaked = [child for child in leaked if _describe_child(child) is not None]
    for child in leaked:
        child.kill()
    psutil.wait_procs(leaked, timeout=SETTLE_S)
