"""Shell. Where the main thread stands, and whether that is the prompt of a debugger."""

import re
import sys
import threading
import time
from traceback import FrameSummary

from worker_sdk.interpreter.stacks import all_stacks

# How long the main thread has to stand still for a look whether it is at a prompt.
IDLE_S = 0.002
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def main_stack() -> list[FrameSummary]:
    """Return the calls of the main thread, innermost first; at most 100, none if not to be had."""
    _, *parts = _THREAD.split(all_stacks())
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
