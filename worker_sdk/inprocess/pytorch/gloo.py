"""Shell. Ends collectives of gloo by their TCP connections.

torch 2.13's gloo backend has no working abort: `abort`, `shutdown` and dropping the
group all leave a thread in a collective until its peer goes or its timeout is over.
"""

import contextlib
import fcntl
import os
import re
import socket
import stat
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_SELF = Path("/proc/self")
_LOOP_THREAD = "gloo_tcp_loop\n"
_EVENTPOLL = "anon_inode:[eventpoll]"
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (?:\S+ +){4}(/.*)")
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_WATCHED = re.compile(r"^tfd:\s*(\d+)\s+events:\s*\w+\s+data:\s*([0-9a-f]+)", re.MULTILINE)

LIBRARIES = ("libtorch", "libgloo")
"""Where gloo's code is: names of libraries begin like this."""

QUIET_WITHIN_S = 0.5
"""How long messages may be under way. Those to a host that is gone are so for ever."""
QUIET_CHECK_S = 0.001
QUIET_CHECKS = 2  # in a row: the kernel does not tell when the last byte has gone
# Bytes not read, and not sent (SIOCOUTQNSD; SIOCOUTQ has those that are not acknowledged yet).
_QUEUES = (termios.FIONREAD, 0x894B)

_kept: list[socket.socket] = []
"""Connections that were shut down."""


def close_kept() -> None:
    """Close what was shut down; once no worker is in that iteration any more."""
    while _kept:
        _kept.pop().close()


def shut_down_gloo() -> int:
    """Shut the connections of all gloo groups down; return how many there were.

    gloo forgets a message that fails, or is under way, when the connection ends, and lets its
    thread wait for it. So those under way are let through first; connections are shut for reading
    only, so that what gloo sends until it finds them at an end still arrives; and a descriptor of
    each is kept until all workers have left the iteration, for those that are interrupted later.

    They are found by what they are watched with: gloo's loop runs in a thread of its name,
    and its epoll instance has with each descriptor the address of the object that serves it.
    Source: ``signalException`` and ``write`` in ``gloo/transport/tcp/pair.cc``, and ``loop.cc``.
    """
    if _LOOP_THREAD not in _texts(task / "comm" for task in (_SELF / "task").iterdir()):
        return 0
    watched: set[tuple[int, int]] = set()
    for told in _texts(_SELF / "fdinfo" / str(fd) for fd in _descriptors(_EVENTPOLL)):
        flags = _FLAGS.search(told)
        if flags and not int(flags[1], 8) & os.O_CLOEXEC:
            watched.update((int(fd), int(address, 16)) for fd, address in _WATCHED.findall(told))
    ours = _objects_of_torch({address for _, address in watched})
    found = []
    for each in _tcp_sockets({fd for fd, address in watched if address in ours}):
        if _peer(each) is None:
            each.close()  # to end a listener would make gloo end all
        else:
            found.append(each)
    _kept.extend(found)
    _wait_until_quiet(found)
    return sum(_shut_down(connection, socket.SHUT_RD) for connection in found)


def shut_down_to(host: str, port: int) -> int:
    """Shut all connections to a TCP port of a host down, from both sides; return how many.

    That of an iteration's store, where a thread may wait for a key that will never be set.
    """
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        found = []
    hosts = {_plain(str(place[0])) for *_, place in found}
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in _tcp_sockets(_descriptors("socket:"))]
        here = [each for each in sockets if each.getsockname()[1] == port]
        is_ours = any(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for each in here)
        ends = [
            each
            for each in sockets
            if (peer := _peer(each)) is not None
            and ((peer[1] == port and peer[0] in hosts) or (is_ours and each in here))
        ]
        return sum(_shut_down(each, socket.SHUT_RDWR) for each in ends)


def _objects_of_torch(addresses: set[int]) -> set[int]:
    """Return the addresses of objects whose code is in torch's library.

    Others that are watched so are not: those of MPI and UCX, and what stands there for libuv and
    asyncio, the descriptor. All count where memory may not be read.
    """
    code = [
        range(int(found[1], 16), int(found[2], 16))
        for found in map(_MAPPED.match, (_SELF / "maps").read_text().splitlines())
        if found is not None and Path(found[3]).name.startswith(LIBRARIES)
    ]
    try:
        memory = (_SELF / "mem").open("rb", buffering=0)
    except OSError:
        return addresses
    ours = set()
    with memory:
        for address in addresses:
            # Read so that a wrong address does no harm.
            with contextlib.suppress(OSError, OverflowError):
                word = int.from_bytes(os.pread(memory.fileno(), 8, address), sys.byteorder)
                if any(word in each for each in code):
                    ours.add(address)
    return ours


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    """Yield what the kernel tells of threads or descriptors; some may be gone meanwhile."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield path.read_text()


def _descriptors(kind: str) -> Iterator[int]:
    for link in list((_SELF / "fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(kind):
                yield int(link.name)


def _tcp_sockets(descriptors: Iterable[int]) -> Iterator[socket.socket]:
    """Yield another descriptor of each that is a TCP socket, for the caller to close."""
    for descriptor in descriptors:
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            found = socket.fromfd(descriptor, -1, -1)
        except OSError:  # it is closed meanwhile
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # not connected (any more)
        return None
    return _plain(host), int(port)


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")  # as it is without IPv6 around it


def _wait_until_quiet(connections: list[socket.socket]) -> None:
    """Return when no byte is under way, or has been for too long."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    quiet = 0
    while time.monotonic() < deadline:
        quiet = 0 if any(map(_is_busy, connections)) else quiet + 1
        if quiet == QUIET_CHECKS:
            return
        time.sleep(QUIET_CHECK_S)


def _is_busy(connection: socket.socket) -> bool:
    """Return whether there are bytes that were not read, or not sent."""
    try:
        connection.getpeername()
        return any(any(fcntl.ioctl(connection, queue, bytes(4))) for queue in _QUEUES)
    except OSError:  # not connected any more
        return False


def _shut_down(connection: socket.socket, how: int) -> bool:
    try:
        connection.shutdown(how)
    except OSError:  # not connected any more
        return False
    return True
