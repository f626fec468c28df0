"""Shell. Where the main thread stands, and whether that is the prompt of a debugger.

Its frames are not walked: CPython 3.11 has crashed in ``f_back`` while the thread left the frame
(python/cpython#111363, still open; seen with 3.11.7). The fault handler reads in C, in one piece.
"""

import faulthandler
import os
import re
import sys
import threading
import time
from traceback import FrameSummary

# How long the main thread has to stand still for a look whether it is at a prompt.
IDLE_S = 0.002
_BYTES_MAX = 1024 * 1024
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def main_stack() -> list[FrameSummary]:
    """Return the calls of the main thread, innermost first; at most 100, none if not to be had.

    Long names are cut by the fault handler.
    """
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
            return [
                FrameSummary(path, int(line), function, lookup_line=False)
                for path, line, function in _FRAME.findall(stack)
            ]
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


def _is_prompt(frame: FrameSummary) -> bool:
    # Under a debugger that runs there are calls of it as well, further out, which are no prompt.
    module, function = frame.filename.rpartition("/")[2].removesuffix(".py"), frame.name
    return (
        (module == "pdb" and function == "interaction")
        or (module == "bdb" and function.startswith("dispatch_"))
        or (module.startswith(("pydevd", "_pydevd")) and "wait_suspend" in function)
    )
