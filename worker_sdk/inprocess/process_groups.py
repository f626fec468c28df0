"""Shell. Ends torch's process groups, where the program has imported torch.

torch 2.13's gloo backend has no working abort: `abort`, `shutdown` and dropping the group all leave
a thread in a collective until its peer goes or its timeout is over. So its TCP connections are.
"""

import contextlib
import fcntl
import functools
import logging
import os
import re
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Container, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from worker_sdk.inprocess.hooks import Abort
from worker_sdk.inprocess.state import State, master

log = logging.getLogger("worker_sdk")

CONNECT_TIMEOUT_S = 1.0
RETRY_FIRST_S, RETRY_MAX_S = 0.002, 0.05
STORE_TIMEOUT = timedelta(minutes=30)  # as torch's; that of the group counts, if it has one

# How long messages may be under way. Those to a host that is gone are so for ever.
QUIET_WITHIN_S = 0.5
QUIET_CHECK_S = 0.001
QUIET_CHECKS = 2  # in a row: the kernel does not tell when the last byte has gone
# Bytes not read, and not sent (SIOCOUTQNSD; SIOCOUTQ has those that are not acknowledged yet).
_QUEUES = (termios.FIONREAD, 0x894B)

# How long to look for a thread of gloo in its wait, which lasts 10 ms at most each time.
LOOP_WITHIN_S = 0.2
LOOP_CHECK_S = 0.001

_SELF = Path("/proc/self")
_EPOLL = "anon_inode:[eventpoll]"
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_WATCHED = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)

# A module of DistributedDataParallel that is the last to let go of an aborted group waits for its
# threads with the interpreter's lock held, which they may need.
_aborted: list[Any] = []
_shut_down: list[socket.socket] = []
"""Another descriptor of each connection of gloo's."""


class AbortTorchDistributed(Abort):
    """Aborts all of torch's process groups, and destroys them.

    A main thread in a collective comes out with an error, as in ``init_process_group``.
    """

    def __call__(self, state: State) -> State:
        """Abort; nothing to do where torch is not used."""
        module = distributed()
        if module is None:
            return state
        if module.is_initialized():
            groups = list(module.distributed_c10d._world.pg_names)  # noqa: SLF001
            _aborted.extend(groups)
            # All at once: one may wait for another's peers.
            threads = [
                threading.Thread(target=_abort, args=(group,), name="worker_sdk abort", daemon=True)
                for group in groups
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()  # without a limit: the hard timeout ends what can't be aborted
            shut_down_gloo()
            _destroy(module)
        host, port = master()
        if port:
            shut_down_to(host, port)
        return state


def distributed() -> Any:
    """Return the module, ``None`` where the program has not imported it, or it is of no use."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def settle() -> None:
    """Leave torch as it was before its first group; once the main thread has come out.

    It may have made one meanwhile. And one that it failed to make has been counted: the next would
    have another name than on the other workers.
    """
    module = distributed()
    if module is not None and module.is_initialized():
        _destroy(module)
    elif module is not None:
        module.distributed_c10d._world.group_count = 0  # noqa: SLF001


def let_go() -> None:
    """Forget the last groups, and close their connections; once no worker is in their iteration."""
    while _shut_down:
        _shut_down.pop().close()
    _aborted.clear()


def _abort(group: Any) -> None:
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)  # noqa: SLF001
            abort = getattr(backend, "abort", None) or getattr(backend, "_shutdown", None)
            if abort is not None:
                abort()
        except RuntimeError as error:
            log.warning("a process group could not be aborted: %s", error)


def _destroy(module: Any) -> None:
    try:
        module.destroy_process_group()
    except (AssertionError, RuntimeError, ValueError) as error:
        # The main thread may have come out, and have destroyed it itself.
        log.warning("the process groups could not be destroyed: %s", error)


@contextlib.contextmanager
def replaced(module: str, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Have what ``make`` makes of it in the place of a private name of torch's, if it is there."""
    home = sys.modules.get(module)
    former = getattr(home, name, None)
    if former is None:
        yield
        return
    setattr(home, name, make(former))
    try:
        yield
    finally:
        setattr(home, name, former)


def store_awaited_in_python() -> contextlib.AbstractContextManager[None]:
    """Have ranks other than 0 wait here for their store.

    torch 2.13 looks for it in C++, again and again, and takes what a signal makes of it for one
    more failed attempt: a rank whose rank 0 never comes could only be killed. And it waits 0.1 to
    1 s between two attempts. That of an agent is there before its address is told, unless its host
    has gone since; where rank 0 has it, an iteration waits 20 ms in place of 500.
    """
    return replaced("torch.distributed.rendezvous", "_create_c10d_store", _after_its_store)


def _after_its_store(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def wait_and_create(hostname: str, port: int, rank: int, *more: Any, **named: Any) -> Any:
        if rank != 0:
            timeout = named.get("timeout", more[1] if len(more) > 1 else None)
            limit = timeout if isinstance(timeout, timedelta) else STORE_TIMEOUT
            _wait_for_store(hostname, port, limit.total_seconds())
        return create(hostname, port, rank, *more, **named)

    return wait_and_create


def _wait_for_store(host: str, port: int, timeout_s: float) -> None:
    """Return when the store listens, or when it takes too long: torch says so then."""
    deadline = time.monotonic() + timeout_s
    wait_s = RETRY_FIRST_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), port), CONNECT_TIMEOUT_S).close()
            return
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, RETRY_MAX_S)


def shut_down_gloo() -> int:
    """Shut the connections of all gloo groups down; return how many there were.

    gloo forgets a message that fails, or is under way, when the connection ends, and lets its
    thread wait for it. So those under way are let through first; connections are shut for reading
    only, so that what gloo sends until it finds them at an end still arrives; and a descriptor of
    each is kept until all workers have left the iteration, for those that are interrupted later.

    Source: ``signalException`` and ``write`` in ``gloo/transport/tcp/pair.cc``.
    """
    connections = []
    for connection in _tcp_sockets(_watched_by_gloo()):
        if _peer(connection) is None:
            connection.close()  # to end a listener would make gloo end all
        else:
            connections.append(connection)
    _shut_down.extend(connections)
    _wait_until_quiet(connections)
    for connection in connections:
        with contextlib.suppress(OSError):  # not connected any more
            connection.shutdown(socket.SHUT_RD)
    return len(connections)


def shut_down_to(host: str, port: int) -> int:
    """Shut all connections to a TCP port of a host down, from both sides; return how many.

    That of an iteration's store, where a thread may wait for a key that will never be set.
    """
    hosts = set()
    with contextlib.suppress(OSError, UnicodeError):
        places = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
        hosts = {str(place[0]).removeprefix("::ffff:") for *_, place in places}
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(connection) for connection in _tcp_sockets()]
        here = [connection for connection in sockets if connection.getsockname()[1] == port]
        is_ours = any(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for connection in here
        )
        ends = [
            connection
            for connection in sockets
            if (peer := _peer(connection)) is not None
            and ((peer[1] == port and peer[0] in hosts) or (is_ours and connection in here))
        ]
        for connection in ends:
            with contextlib.suppress(OSError):  # not connected any more
                connection.shutdown(socket.SHUT_RDWR)
        return len(ends)


def _watched_by_gloo() -> set[int]:
    """Return the descriptors that gloo waits for; each of its loops has a thread of this name."""
    watched: set[int] = set()
    for task in list((_SELF / "task").iterdir()):
        with contextlib.suppress(OSError):  # the thread is gone meanwhile
            if (task / "comm").read_text() == "gloo_tcp_loop\n":
                watched.update(*_polls_of(task).values())
    return watched


def _polls_of(task: Path) -> dict[int, set[int]]:
    """Return the epoll instance for which a thread waits, and the descriptors in it.

    It is the first argument of its system call. For a thread that has too much to do to wait, all
    that may be meant: those without CLOEXEC, which Python's and libuv's have.
    """
    deadline = time.monotonic() + LOOP_WITHIN_S
    while True:
        texts = {fd: (_SELF / "fdinfo" / str(fd)).read_text() for fd in _descriptors(_EPOLL)}
        polls = {fd: set(map(int, _WATCHED.findall(text))) for fd, text in texts.items()}
        _, *arguments = (task / "syscall").read_text().split()
        if arguments and (poll := int(arguments[0], 16)) in polls:
            return {poll: polls[poll]}
        if time.monotonic() > deadline:
            flags = {fd: _FLAGS.search(text) for fd, text in texts.items()}
            return {
                fd: polls[fd]
                for fd, match in flags.items()
                if match and not int(match[1], 8) & os.O_CLOEXEC
            }
        time.sleep(LOOP_CHECK_S)


def _descriptors(kind: str) -> Iterator[int]:
    for link in list((_SELF / "fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(kind):
                yield int(link.name)


def _tcp_sockets(among: Container[int] | None = None) -> Iterator[socket.socket]:
    """Yield another descriptor of each TCP socket, for the caller to close."""
    for descriptor in _descriptors("socket:"):
        with contextlib.suppress(OSError):  # it is closed meanwhile
            if among is None or descriptor in among:
                another = socket.fromfd(descriptor, -1, -1)
                if another.family in (socket.AF_INET, socket.AF_INET6):
                    yield another
                else:
                    another.close()


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # not connected (any more)
        return None
    return host.removeprefix("::ffff:"), int(port)  # as it is without IPv6 around it


def _wait_until_quiet(connections: list[socket.socket]) -> None:
    """Return when no byte is under way, or has been for too long."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    quiet = 0
    while quiet < QUIET_CHECKS and time.monotonic() < deadline:
        quiet = 0 if any(map(_is_busy, connections)) else quiet + 1
        time.sleep(QUIET_CHECK_S)


def _is_busy(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
        return any(any(fcntl.ioctl(connection, queue, bytes(4))) for queue in _QUEUES)
    except OSError:  # not connected any more
        return False
