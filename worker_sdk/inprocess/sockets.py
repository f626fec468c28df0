"""Shell. The TCP connections of this process that belong to collectives.

torch 2.13's gloo backend has no working abort: `abort`, `shutdown` and dropping the
group all leave a thread in a collective until its peer goes or its timeout is over.
What ends it is the end of its connections, so these are found and shut down.

They are found by what they are watched with: gloo's loop makes its epoll instance
without close-on-exec (libuv, gRPC and asyncio all set it), and runs in a thread of
its name. Source: ``gloo/transport/tcp/loop.cc``.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SELF = Path("/proc/self")
_LOOP_THREAD = "gloo_tcp_loop"
_EVENTPOLL = "anon_inode:[eventpoll]"


def shut_down_gloo() -> int:
    """Shut the connections of all gloo groups down; return how many there were."""
    if not _has_loop():
        return 0
    return sum(_shut_down(descriptor) for poll in _polls() for descriptor in _watched_by(poll))


def shut_down_to(port: int) -> int:
    """Shut all connections from or to a TCP port down; return how many there were.

    Meant for a port that serves one purpose only: the master port of an iteration,
    where a thread may wait for a key that nobody will ever set.
    """
    return sum(_shut_down(descriptor, port) for descriptor, _ in _descriptors("socket:"))


def _has_loop() -> bool:
    for task in (_SELF / "task").iterdir():
        try:
            if (task / "comm").read_text().strip() == _LOOP_THREAD:
                return True
        except OSError:  # it has ended meanwhile
            continue
    return False


def _polls() -> Iterator[str]:
    """Yield what the kernel tells of each epoll instance that may be gloo's."""
    for descriptor, target in _descriptors(_EVENTPOLL):
        try:
            told = (_SELF / "fdinfo" / str(descriptor)).read_text()
        except OSError:
            continue
        flags = re.search(r"^flags:\s*([0-7]+)", told, re.MULTILINE)
        if target == _EVENTPOLL and flags and not int(flags[1], 8) & os.O_CLOEXEC:
            yield told


def _watched_by(poll: str) -> Iterator[int]:
    for found in re.finditer(r"^tfd:\s*(\d+)", poll, re.MULTILINE):
        yield int(found[1])


def _descriptors(kind: str) -> list[tuple[int, str]]:
    found = []
    for link in (_SELF / "fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(kind):
            found.append((int(link.name), target))
    return found


def _shut_down(descriptor: int, port: int | None = None) -> bool:
    """Shut a connection down, but close no descriptor: its owner does."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return False
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        return False
    with connection:
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            # One that listens must not be: gloo ends the process then.
            peer_port, own_port = connection.getpeername()[1], connection.getsockname()[1]
            if port is not None and port not in (peer_port, own_port):
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected (any more)
            return False
    return True
