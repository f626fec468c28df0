"""Shell. The stacks of all threads, taken while the interpreter's lock keeps their frames.

Frames are not walked in Python: CPython 3.11 has crashed in ``f_back`` while a thread left the
frame (python/cpython#111363, still open; seen with 3.11.7). The fault handler reads in C, in one
piece. Upon a signal it reads without the lock, and has crashed on the frames of a thread that ran.
"""

import faulthandler
import os
import select
import time

from worker_sdk.board.layout import STACKS_END

_BYTES_MAX = 1024 * 1024
_WRITTEN_WITHIN_S = 1.0


def all_stacks() -> str:
    """Return the stacks of all threads as the fault handler writes them; none if not to be had.

    The calling thread is the "Current thread". Long names are cut.
    """
    try:
        fd = os.memfd_create("stacks")
    except OSError:
        return ""
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        return os.pread(fd, _BYTES_MAX, 0).decode(errors="replace")
    finally:
        os.close(fd)


def write_stacks(pipe: int) -> None:
    """Write those of all threads but this one to a pipe that does not block, with their end.

    What its reader does not take within a second is dropped.
    """
    blocks = all_stacks().split("\n\n")
    threads = [block for block in blocks if not block.startswith("Current thread")]
    left = memoryview("\n\n".join(threads).encode() + STACKS_END)
    room, until = select.poll(), time.monotonic() + _WRITTEN_WITHIN_S
    room.register(pipe, select.POLLOUT)
    while left and (wait_s := until - time.monotonic()) > 0:
        if room.poll(wait_s * 1000):
            left = left[os.write(pipe, left) :]
