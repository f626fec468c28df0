"""Shell. The files that preloading has read, and whether one has changed since."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

FILES_MAX = 10_000  # that are watched; those beyond are not
LOOK_S = 0.5  # that a look may take before a start, once it has seen so many files:
LOOK_FILES_MIN = 500
LOOKS_MAX = FILES_MAX // LOOK_FILES_MIN  # within which each file is looked at, however slow
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120


class Sources:
    """Files with what tells a change of them; None for one that was missing or is no regular file.

    Each look goes on where the last one ended, so that every file has its turn.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._data: set[str] = set()
        self._written: set[str] = set()
        self._paths: list[str] = []
        self._next = 0
        self.is_behind = False  # whether the last look did not see all files

    def note(self, path: object) -> None:
        """Note what a file is before it is read: it may be written meanwhile."""
        if (
            isinstance(path, str)
            and os.path.isabs(path)  # noqa: PTH117
            and path not in self._stamps
            and len(self._stamps) < FILES_MAX
            and is_changed_by_users(path)
        ):
            self._stamps[path] = _stamp(path)

    def note_data(self, path: str, *, is_written: bool) -> None:
        """Note a file that a module opens; one that preloading itself writes is not watched."""
        if is_written:
            self._written.add(path)
        else:
            self._data.add(path)
            self.note(path)

    def finish(self) -> None:
        """Forget the files that preloading has written, or has removed after reading them."""
        for path in self._data:
            is_removed = self._stamps.get(path) is not None and _stamp(path) is None
            if is_removed or path in self._written:
                self._stamps.pop(path, None)
        self._paths = list(self._stamps)

    def changed(self, is_over: Callable[[], bool]) -> str:
        """Return a file that is not what it was; "" if none was found before ``is_over``."""
        count = len(self._paths)
        for seen in range(count):
            path = self._paths[self._next % count]
            if _stamp(path) != self._stamps[path]:
                return path
            self._next = (self._next + 1) % count
            if seen + 1 >= LOOK_FILES_MIN and seen + 1 < count and is_over():
                self.is_behind = True
                return ""
        self.is_behind = False
        return ""

    def __len__(self) -> int:
        return len(self._stamps)


def is_changed_by_users(path: str) -> bool:
    """Whether a file may change between rounds: no library, and nothing of the system's."""
    return not path.startswith((_LIBRARY, "/proc/", "/sys/", "/dev/")) and {
        "site-packages",
        "dist-packages",
    }.isdisjoint(path.split("/"))


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None  # a pipe changes with all that goes through it
    # The last is of what is copied with the time that it had elsewhere.
    return status.st_mtime_ns, status.st_size, status.st_ctime_ns
