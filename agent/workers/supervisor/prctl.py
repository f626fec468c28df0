"""Shell. The process attributes of Linux that keep workers from outliving their agent; prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded by now, because a freshly forked child must not load anything.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_prctl.restype = ctypes.c_int


def become_subreaper() -> None:
    """Make this process the new parent of every orphan below it. Raises ``OSError``."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def continue_with_parents_end() -> None:
    """Have this process get SIGCONT when its parent ends: a stopped one goes on then."""
    _call(_PR_SET_PDEATHSIG, signal.SIGCONT)


def die_with(parent_pid: int) -> None:
    """Have this process killed as soon as its parent, expected to be `parent_pid`, dies."""
    _call(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before the call above sends no signal any more.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
