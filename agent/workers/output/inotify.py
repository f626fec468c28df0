"""Shell. Is told by the kernel that a file has grown; see inotify(7)."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_IN_MODIFY = 0x2
_READ_BYTES = 64 * 1024


class Inotify:
    """Watches open files for writes. Its descriptor is readable after one.

    Raises ``OSError`` if the system has no watcher left (``fs.inotify.max_user_instances``).
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self._add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        self._rm_watch = libc.inotify_rm_watch
        self._rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
        self._watchers: dict[int, int] = {}
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _last_error()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._fd

    def watch(self, fd: int) -> int:
        """Watch the file open as `fd`; return what `unwatch` takes.

        Raises ``OSError`` if the system has no watch left (``fs.inotify.max_user_watches``).
        """
        # By this path it is the very file that is open, whatever has its name meanwhile.
        watch = int(self._add_watch(self._fd, f"/proc/self/fd/{fd}".encode(), _IN_MODIFY))
        if watch < 0:
            raise _last_error()
        # The system knows one watch per file, however often it is asked for.
        self._watchers[watch] = self._watchers.get(watch, 0) + 1
        return watch

    def unwatch(self, watch: int) -> None:
        """Undo one call of `watch`."""
        self._watchers[watch] -= 1
        if not self._watchers[watch]:
            del self._watchers[watch]
            self._rm_watch(self._fd, watch)

    def drain(self) -> None:
        """Take all notices, so that the descriptor is readable again only after a new write.

        Which files they name is not looked at: asking every file costs less.
        """
        with suppress(BlockingIOError):
            while os.read(self._fd, _READ_BYTES):
                pass

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"inotify: {os.strerror(number)}")
