"""Shell. Stacks of all threads when the process is ended by a fatal signal.

Python's fault handler writes to one file only: under an agent to one beside the error file, which
the agent reads and repeats on the standard error it shares with its workers.
"""

import faulthandler
import logging
import os
import stat
import sys

from worker_sdk.context import FAULT_FILE_SUFFIX

log = logging.getLogger("worker_sdk")


class _File:
    """What the one fault handler of this process writes to, if that is a file."""

    path = ""
    descriptor: int | None = None


def enable(error_file: str | None) -> None:
    """Have stacks written beside ``error_file``, or to the standard error. Never raises."""
    path = f"{error_file}{FAULT_FILE_SUFFIX}" if error_file else ""
    former = _File.descriptor
    is_open = former is not None and path == _File.path
    descriptor = former if is_open else _open(path)
    try:
        faulthandler.enable(sys.stderr if descriptor is None else descriptor)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # No standard error, or one that is no file.
        log.warning("no stacks will be written on a crash: %s", error)
        return
    _File.path, _File.descriptor = path, descriptor
    if former is not None and former != descriptor:
        os.close(former)


def _leave_to_parent() -> None:
    """In a forked child: write to the standard error, the file tells of the parent."""
    if _File.descriptor is not None:
        faulthandler.disable()
        enable(None)


os.register_at_fork(after_in_child=_leave_to_parent)


def _open(path: str) -> int | None:
    """Return a descriptor of a plain file that is there already."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(path, flags) if stat.S_ISREG(os.lstat(path).st_mode) else None
    except OSError:
        return None
