"""Shell. A wait of the main thread that a signal ends, whichever thread the signal met.

Its handler runs in the main thread only, between two instructions. If another thread takes it, or
it comes just before a system call, it would wait as long as the call does. So the interpreter
writes signals to a descriptor meanwhile, which the wait looks at as well.
"""

import os
import select
import signal
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")

WAIT_MAX_S = 24 * 3600.0  # at once; callers that have not seen their event wait again
LOOK_AGAIN_S = 1.0  # the longest wait at once where no descriptor is left for signals
_BYTES_MAX = 64 * 1024

_set_quietly = partial(signal.set_wakeup_fd, warn_on_full_buffer=False)

# The waits of the main thread, of which a signal's handler may begin another: by the descriptor
# that each sets, the one it has replaced, once it has.
_waits: dict[int, list[int]] = {}


def _leave_waits() -> None:
    """Keep a child, which another thread has just forked, from writing its signals here."""
    if _waits:
        current = signal.set_wakeup_fd(-1)
        while current in _waits:
            current = _waits.pop(current)[0]
        signal.set_wakeup_fd(current)
        _waits.clear()


os.register_at_fork(after_in_child=_leave_waits)


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until a descriptor is readable; return whether it is. None: as long as it takes.

    In the main thread it ends early, with False, after any signal that has a handler in Python.
    What that raises comes out of the call. The wakeup descriptor of an event loop, or of the
    program, gets what it would have got, and is set again afterwards.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    limit_ms = None if timeout_s is None else min(max(timeout_s, 0.0), WAIT_MAX_S) * 1000
    if threading.current_thread() is not threading.main_thread():
        return bool(poll.poll(limit_ms))
    # A handler may raise after each call. What must not be torn apart is one call each.
    pipes: list[tuple[int, int]] = []
    closed: list[None] = []
    close_all, ends = closed.extend, map(os.close, chain.from_iterable(pipes))
    try:
        pipes.extend(map(os.pipe2, (os.O_NONBLOCK | os.O_CLOEXEC,)))
        read_fd, write_fd = pipes[0]
        poll.register(read_fd, select.POLLIN)
        ready = _poll_woken(poll, limit_ms, read_fd, write_fd)
    except OSError:
        if pipes:
            raise
        look_ms = LOOK_AGAIN_S * 1000  # no descriptor is left
        return bool(poll.poll(look_ms if limit_ms is None else min(limit_ms, look_ms)))
    finally:
        close_all(ends)
    return any(ready_fd == fd for ready_fd, _ in ready)


class Mailbox(Generic[T]):
    """Hands values to the main thread, whose wait for one any signal may interrupt."""

    def __init__(self) -> None:
        self._values: deque[T] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def close(self) -> None:
        """Take no more."""
        os.close(self._fd)

    def put(self, value: T) -> None:
        """Hand a value over; from any thread."""
        self._values.append(value)
        os.eventfd_write(self._fd, 1)

    def get(self) -> T:
        """Wait for a value. What the handler of a signal raises comes out, and no value is lost."""
        while not self._values:
            if wait_readable(self._fd, None):
                with suppress(BlockingIOError):
                    os.eventfd_read(self._fd)
        return self._values.popleft()


def _poll_woken(
    poll: select.poll, limit_ms: float | None, read_fd: int, write_fd: int
) -> list[tuple[int, int]]:
    """Poll, while the interpreter writes signals to ``write_fd``, which ``read_fd`` reads."""
    before: list[int] = []
    replaced: list[int] = []
    put_back, former = replaced.extend, map(signal.set_wakeup_fd, before)
    try:
        _waits[write_fd] = before
        before.extend(map(_set_quietly, (write_fd,)))
        return poll.poll(limit_ms)
    finally:
        try:
            put_back(former)
        except (OSError, ValueError):
            if replaced:
                raise  # by a handler, not by the former descriptor, which is closed by now
            signal.set_wakeup_fd(-1)
        if replaced and replaced[0] != write_fd:
            signal.set_wakeup_fd(replaced[0])  # A handler has set it meanwhile.
        _waits.pop(write_fd, None)
        # What was written here goes to where it would have been written.
        with suppress(BlockingIOError):
            signals = os.read(read_fd, _BYTES_MAX)
            if signals and before and before[0] >= 0:
                with suppress(OSError):
                    os.write(before[0], signals)
