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

They are found by what they are watched with: gloo's loop runs in a thread of its name,
and its epoll instance has with each descriptor the address of the object that serves it.
Those of gloo have their code in torch's library, which neither those of other libraries
have that watch connections in the same way (MPI's, UCX's) nor what stands there for others
(libuv, asyncio: the descriptor). Source: ``gloo/transport/tcp/loop.cc``.
"""

from __future__ import annotations

import contextlib
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
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (?:\S+ +){4}(/.*)")
_WORD_BYTES = 8

LIBRARIES = ("libtorch", "libgloo")
"""Where gloo's code is: names of libraries begin like this."""

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
    with contextlib.closing(_Memory()) as memory:
        descriptors = {
            descriptor
            for poll in _polls()
            for descriptor, served_by in _watched_by(poll)
            if memory.is_of_torch(served_by)
        }
    found = [each for each in map(_connection, descriptors) if each is not None]
    Kept.connections += found
    _wait_until_quiet(found)
    return sum(_shut_down(connection, socket.SHUT_RD) for connection in found)


def shut_down_to(host: str, port: int) -> int:
    """Shut all connections to a TCP port of a host down, from both sides; return how many.

    Meant for a place that serves one purpose only: that of the store of an iteration,
    where a thread may wait for a key that nobody will ever set.
    """
    hosts, is_ours, count = _addresses(host), _is_listening(port), 0
    for descriptor, _ in _descriptors("socket:"):
        connection = _connection(descriptor)
        if connection is None:
            continue
        with connection:
            peer = _peer(connection)
            is_client = peer is not None and peer[1] == port and peer[0] in hosts
            if is_client or (is_ours and connection.getsockname()[1] == port):
                count += _shut_down(connection, socket.SHUT_RDWR)
    return count


class _Memory:
    """What stands in this process's memory, read so that a wrong address does no harm."""

    def __init__(self) -> None:
        self._ranges = [
            (int(found[1], 16), int(found[2], 16))
            for found in map(_MAPPED.match, (_SELF / "maps").read_text().splitlines())
            if found is not None and Path(found[3]).name.startswith(LIBRARIES)
        ]
        self._file: int | None = None
        with contextlib.suppress(OSError):  # where that is not allowed every one counts
            self._file = os.open(_SELF / "mem", os.O_RDONLY | os.O_CLOEXEC)

    def is_of_torch(self, address: int) -> bool:
        """Return whether the object there has its code in torch's library."""
        if self._file is None:
            return True
        try:
            word = os.pread(self._file, _WORD_BYTES, address)
        except (OSError, OverflowError):
            return False
        code = int.from_bytes(word, sys.byteorder)
        return any(first <= code < end for first, end in self._ranges)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return set()
    return {_plain(str(place[0])) for *_, place in found}


def _plain(address: str) -> str:
    """Return an address as it is without IPv6 around it."""
    return address.removeprefix("::ffff:")


def _is_listening(port: int) -> bool:
    for descriptor, _ in _descriptors("socket:"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            is_tcp = found.family in (socket.AF_INET, socket.AF_INET6)
            is_listener = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_tcp and is_listener and found.getsockname()[1] == port:
                return True
    return False


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


def _watched_by(poll: str) -> Iterator[tuple[int, int]]:
    """Yield each descriptor, and what is told with it."""
    pattern = r"^tfd:\s*(\d+)\s+events:\s*\w+\s+data:\s*([0-9a-f]+)"
    for found in re.finditer(pattern, poll, re.MULTILINE):
        yield int(found[1]), int(found[2], 16)


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
    if is_tcp and _peer(connection) is not None:
        return connection
    connection.close()
    return None


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # not connected (any more)
        return None
    return _plain(host), int(port)


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
    if _peer(connection) is None:
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
