"""Shell. The two process attributes of Linux that keep workers from outliving their agent."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ProcessControl:
    """Calls prctl(2).

    Loads the C library when constructed, so that a freshly forked child, which must not load
    anything, can make the call too.
    """

    def __init__(self) -> None:
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        self._prctl.restype = ctypes.c_int

    def become_subreaper(self) -> None:
        """Make this process the new parent of every orphan below it.

        Raises:
            OSError: The kernel refuses.
        """
        self._call(_PR_SET_CHILD_SUBREAPER, 1)

    def continue_with_parents_end(self) -> None:
        """Have this process get SIGCONT when its parent ends: a stopped one goes on then.

        Raises:
            OSError: The kernel refuses.
        """
        self._call(_PR_SET_PDEATHSIG, signal.SIGCONT)

    def die_with(self, parent_pid: int) -> None:
        """Have this process killed as soon as its parent, expected to be `parent_pid`, dies.

        Raises:
            OSError: The kernel refuses.
        """
        self._call(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # A parent that died before the call above sends no signal any more.
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, option: int, value: int) -> None:
        if self._prctl(option, value, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
