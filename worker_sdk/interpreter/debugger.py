"""Shell. Whether the main thread stands at the prompt of a Python debugger."""

from __future__ import annotations

import sys
import threading
import time

from worker_sdk.interpreter.main_stack import Entry, main_stack

IDLE_S = 0.002
"""How long the main thread has to stand still for a look whether it is at a prompt."""

_DEBUGGERS = ("bdb", "pydevd")


def has_debugger() -> bool:
    """Return whether there is one that could stop the program; torch imports one."""
    return any(name in sys.modules for name in _DEBUGGERS)


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
    """Return whether a call is a debugger's that has stopped the program.

    A program under a debugger that runs has calls of the debugger as well, further out.
    """
    module, function = entry.path.rpartition("/")[2].removesuffix(".py"), entry.function
    return (
        (module == "pdb" and function == "interaction")
        or (module == "bdb" and function.startswith("dispatch_"))
        or (module.startswith(("pydevd", "_pydevd")) and "wait_suspend" in function)
    )
