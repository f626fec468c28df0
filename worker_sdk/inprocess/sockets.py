"""Shell. The TCP connections of this process that belong to collectives.

torch 2.13's gloo backend has no working abort: `abort`, `shutdown` and dropping the
group all leave a thread in a collective until its peer goes or its timeout is over.
What ends it is the end of its connections, so these are found and shut down.

gloo forgets a message whose sending fails, or that it is in the middle of, when the
connection ends, and lets its thread wait for it. So

* messages that are under way are let through first;
* connections are shut for reading only: gloo finds them at an end and closes them, and
  a message that it begins to send until then can still be sent;
* a descriptor of each is kept until all workers have left the iteration, or a worker
  that has not been interrupted yet would fail to send to one that has.

Source: ``signalException`` and ``write`` in ``gloo/transport/tcp/pair.cc``.

They are found by what they are watched with: gloo's loop makes its epoll instance
without close-on-exec (libuv, gRPC and asyncio all set it), and runs in a thread of
its name. Source: ``gloo/transport/tcp/loop.cc``.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_SELF = Path("/proc/self")
_LOOP_THREAD = "gloo_tcp_loop"
_EVENTPOLL = "anon_inode:[eventpoll]"

QUIET_WITHIN_S = 0.5
"""How long messages may be under way. Those to a host that is gone are so for ever."""
QUIET_CHECK_S = 0.001
QUIET_CHECKS = 2
"""In a row. The kernel does not tell when the last byte has gone."""
_BYTES_NOT_READ = termios.FIONREAD
_BYTES_NOT_SENT = 0x894B  # SIOCOUTQNSD; SIOCOUTQ counts those whose receipt is told 40 ms later


class Kept:
    """Descriptors of connections that were shut down."""

    connections: ClassVar[list[socket.socket]] = []

    @classmethod
    def close(cls) -> None:
        """Close them; once no worker is in that iteration any more."""
        while cls.connections:
            cls.connections.pop().close()


def shut_down_gloo() -> int:
    """Shut the connections of all gloo groups down; return how many there were."""
    if not _has_loop():
        return 0
    descriptors = {descriptor for poll in _polls() for descriptor in _watched_by(poll)}
    found = [each for each in map(_connection, descriptors) if each is not None]
    Kept.connections += found
    _wait_until_quiet(found)
    return sum(_shut_down(connection, socket.SHUT_RD) for connection in found)


def shut_down_to(port: int) -> int:
    """Shut all connections from or to a TCP port down; return how many there were.

    Meant for a port that serves one purpose only: the master port of an iteration,
    where a thread may wait for a key that nobody will ever set.
    """
    count = 0
    for descriptor, _ in _descriptors("socket:"):
        connection = _connection(descriptor)
        if connection is None:
            continue
        with connection:
            if port in (connection.getsockname()[1], _peer_port(connection)):
                count += _shut_down(connection, socket.SHUT_RDWR)
    return count


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


def _connection(descriptor: int) -> socket.socket | None:
    """Return another descriptor of a TCP connection, ``None`` if it is something else.

    Its owner's stays open; one that only listens is none: gloo would end the process.
    """
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        return None
    is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
    if is_tcp and _peer_port(connection) is not None:
        return connection
    connection.close()
    return None


def _peer_port(connection: socket.socket) -> int | None:
    try:
        return int(connection.getpeername()[1])
    except OSError:  # not connected (any more)
        return None


def _wait_until_quiet(connections: list[socket.socket]) -> None:
    """Return when no byte is under way, or has been for too long."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    quiet = 0
    while True:
        quiet = 0 if any(map(_is_busy, connections)) else quiet + 1
        if quiet == QUIET_CHECKS or time.monotonic() >= deadline:
            return
        time.sleep(QUIET_CHECK_S)


def _is_busy(connection: socket.socket) -> bool:
    """Return whether there are bytes that were not read, or not sent."""
    if _peer_port(connection) is None:
        return False
    return any(_bytes_in(connection, queue) for queue in (_BYTES_NOT_READ, _BYTES_NOT_SENT))


def _bytes_in(connection: socket.socket, queue: int) -> int:
    try:
        told = fcntl.ioctl(connection, queue, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(told, sys.byteorder)


def _shut_down(connection: socket.socket, how: int) -> bool:
    try:
        connection.shutdown(how)
    except OSError:  # not connected any more
        return False
    return True
