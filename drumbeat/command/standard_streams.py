"""Shell. Standard streams that are there, whatever a process was started with."""

import os
import sys


def open_missing() -> None:
    """Put /dev/null where a standard stream is closed (``2>&-``); before anything else is opened.

    The next file opened would otherwise get the number of the missing stream, and with
    it all that is written there, by this process and by those that it starts.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is this one.
            opened = os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.set_inheritable(opened, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
