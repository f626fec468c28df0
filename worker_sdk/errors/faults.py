"""Shell. Stacks of all threads when the process is ended by a fatal signal.

Python's fault handler writes to one file only. Under an agent that is a file
beside the error file: the agent reads it, and repeats it on the standard error
that it shares with its workers. Everywhere else it is the standard error itself.
"""

import faulthandler
import logging
import os
import stat

from worker_sdk.context import FAULT_FILE_SUFFIX

log = logging.getLogger("worker_sdk")


class _File:
    """What the one fault handler of this process writes to, if that is a file."""

    path: str = ""
    descriptor: int | None = None


def enable(error_file: str | None) -> None:
    """Have stacks written when a fatal signal comes, beside ``error_file`` if that is wanted.

    Never raises; says so in the log if it is not possible.
    """
    path = f"{error_file}{FAULT_FILE_SUFFIX}" if error_file else ""
    former = _File.descriptor
    descriptor = former if path and path == _File.path else _open(path)
    try:
        if descriptor is None:
            faulthandler.enable(all_threads=True)
        else:
            faulthandler.enable(file=descriptor, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # No standard error, or one that is no file.
        log.warning("no stacks will be written on a crash: %s", error)
        return
    _File.path, _File.descriptor = ("", None) if descriptor is None else (path, descriptor)
    if former is not None and former != descriptor:
        os.close(former)


def _leave_to_parent() -> None:
    """In a forked child: write to the standard error, the file tells of the parent."""
    if _File.descriptor is not None:
        faulthandler.disable()
        enable(None)


os.register_at_fork(after_in_child=_leave_to_parent)


def _open(path: str) -> int | None:
    """Open a file that is there already, ``None`` if there is no plain one."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(path, flags) if stat.S_ISREG(os.lstat(path).st_mode) else None
    except OSError:
        return None
