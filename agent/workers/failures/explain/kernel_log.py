"""Shell. What the kernel says about processes from now on, as far as one may read it."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path

from agent.workers.failures.explain.explain import KernelLine
from agent.workers.output.lines import LineCutter

KERNEL_LOG = Path("/dev/kmsg")

BYTES_MAX = 256 * 1024
"""Read at one go; a kernel that says more is being flooded, and the rest is skipped."""

LINES_MAX = 200
_READ_BYTES = 8192
"""The longest record of /dev/kmsg; a shorter read of one fails."""

_PREFIX = re.compile(r"\d+,\d+,\d+,[^;]*;")
_OOM_KILL = re.compile(r"[Kk]illed process (\d{1,9})\b")
_PROCESS = re.compile(r"(?:\bpid\b[ =:'\"]*|\bprocess |\[)(\d{1,9})\b")


class KernelLog:
    """Follows the kernel log without ever waiting; what stood in it before is passed over.

    Args:
        path: /dev/kmsg, or a file to which its text is appended.
    """

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._kept: deque[KernelLine] = deque(maxlen=LINES_MAX)
        self._lines = LineCutter(line_bytes_max=_READ_BYTES)
        self._fd = -1
        with suppress(OSError):  # most containers may not
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._skip()

    def forget(self) -> None:
        """Pass over all that was said so far."""
        self._skip()
        self._kept.clear()
        self._lines.end()

    def lines(self) -> tuple[KernelLine, ...] | None:
        """Return what was said of processes since ``forget``; ``None`` if it can't be read."""
        if self._fd < 0:
            return None
        read = 0
        while read < BYTES_MAX:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before we read them; the next one is there
                break
            if not data:
                break
            read += len(data)
            self._take(data)
        else:
            self._skip()
        return tuple(self._kept)

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _skip(self) -> None:
        with suppress(OSError):  # without a log, or of a pipe
            os.lseek(self._fd, 0, os.SEEK_END)

    def _take(self, data: bytes) -> None:
        for line in self._lines.feed(data).splitlines():
            text = _PREFIX.sub("", line.decode("utf-8", "replace"), count=1).strip()
            kill = _OOM_KILL.search(text)
            found = kill or _PROCESS.search(text)
            if found is not None:
                self._kept.append(
                    KernelLine(pid=int(found[1]), text=text, is_oom_kill=kill is not None)
                )
