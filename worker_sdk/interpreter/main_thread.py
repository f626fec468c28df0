"""Shell. Where the main thread stands, and whether that is the prompt of a debugger.

Its frames are not walked: CPython 3.11 has crashed in ``f_back`` while the thread left the frame
(python/cpython#111363, still open; seen with 3.11.7). The fault handler reads in C, in one piece.
"""

import faulthandler
import linecache
import os
import re
import sys
import threading
import time
from typing import NamedTuple

# How long the main thread has to stand still for a look whether it is at a prompt.
IDLE_S = 0.002
_BYTES_MAX = 1024 * 1024
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


class Entry(NamedTuple):
    """One call, as the fault handler names it: long names are cut by it."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        source = linecache.getline(self.path, self.line).strip()
        place = f'  File "{self.path}", line {self.line}, in {self.function}\n'
        return f"{place}    {source}\n" if source else place


def main_stack() -> list[Entry]:
    """Return the calls of the main thread, innermost first; at most 100, none if not to be had."""
    try:
        fd = os.memfd_create("stacks")
    except OSError:
        return []
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        text = os.pread(fd, _BYTES_MAX, 0).decode(errors="replace")
    finally:
        os.close(fd)
    _, *parts = _THREAD.split(text)
    for ident, stack in zip(parts[::2], parts[1::2], strict=True):
        if int(ident, 16) == threading.main_thread().ident:
            return [Entry(m[1], int(m[2]), m[3]) for m in _FRAME.finditer(stack)]
    return []


def has_debugger() -> bool:
    """Return whether there is one that could stop the program; torch imports one."""
    return "bdb" in sys.modules or "pydevd" in sys.modules


def is_at_prompt() -> bool:
    """Return whether the main thread waits for a debugger's input."""
    # At a prompt it computes nothing; one that trains does, and costs no look at its stack.
    return has_debugger() and is_main_idle() and any(map(_is_prompt, main_stack()))


def is_main_idle() -> bool:
    """Return whether the main thread computes nothing for ``IDLE_S``; blocks as long."""
    try:
        clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
    except OSError:
        return True  # not to be had: perhaps it is
    used = time.clock_gettime_ns(clock)
    time.sleep(IDLE_S)
    return time.clock_gettime_ns(clock) == used


def _is_prompt(entry: Entry) -> bool:
    # Under a debugger that runs there are calls of it as well, further out, which are no prompt.
    module, function = entry.path.rpartition("/")[2].removesuffix(".py"), entry.function
    return (
        (module == "pdb" and function == "interaction")
        or (module == "bdb" and function.startswith("dispatch_"))
        or (module.startswith(("pydevd", "_pydevd")) and "wait_suspend" in function)
    )
