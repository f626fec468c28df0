"""Shell. Notices of writes to files, by inotify."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_IN_MODIFY, _IN_ONESHOT = 0x2, 0x80000000
_NOTICES_BYTES = 64 * 1024


class FileNotices:
    """``fd`` becomes readable when a watched file is written to.

    Raises ``OSError`` at a limit ``fs.inotify.max_user_*``, as ``watch`` does.
    """

    def __init__(self) -> None:
        self.fd = _call("init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, path: str, *, is_once: bool = False) -> int:
        """Return the number of a watch; a file has one, however often it is asked for.

        ``is_once``: the first notice ends it, so a file that is written to without a pause costs
        nothing until it is read.
        """
        mask = _IN_MODIFY | (_IN_ONESHOT if is_once else 0)
        return _call("add_watch", self.fd, os.fsencode(path), mask)

    def forget(self, watch: int) -> None:
        """End a watch."""
        with suppress(OSError):  # the file is gone
            _call("rm_watch", self.fd, watch)

    def drain(self) -> None:
        """Take all notices. Do it before files are read, so that no write goes unnoticed.

        Which files they name is not looked at: asking every file costs less.
        """
        with suppress(BlockingIOError):
            while os.read(self.fd, _NOTICES_BYTES):
                pass

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)


def _call(name: str, *arguments: int | bytes) -> int:
    result: int = getattr(ctypes.CDLL(None, use_errno=True), f"inotify_{name}")(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"inotify: {os.strerror(number)}")
    return result
