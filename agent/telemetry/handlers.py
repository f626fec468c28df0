"""Shell. Who takes events and metrics: the interface, and the handlers that come with drumbeat."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from typing import Protocol

from agent.telemetry.model import Event, Metric

FILE_BYTES_MAX = 64 * 1024 * 1024
"""Size of the file of ``JsonLinesHandler``; at it the file is renamed to ``<path>.1``."""


class EventHandler(Protocol):
    """Takes events and metrics. Called by one thread of its own, one call at a time.

    It may block and it may raise: training goes on, and what it missed is counted.
    """

    def handle(self, event: Event) -> None:
        """Take an event."""
        ...

    def put(self, metric: Metric) -> None:
        """Take a metric."""
        ...

    def close(self) -> None:
        """Pass on what is held back, and let go. The last call."""
        ...


class ConsoleHandler:
    """Writes each event and metric as one line of JSON to standard error."""

    def handle(self, event: Event) -> None:
        """Write an event."""
        self._write(event.to_json())

    def put(self, metric: Metric) -> None:
        """Write a metric."""
        self._write(metric.to_json())

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""

    def _write(self, line: str) -> None:
        # One call for the whole line, so that the log's lines don't get between.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class JsonLinesHandler:
    """Appends each event and metric as one line of JSON to a private file.

    Several agents of a host may share the file: a lock keeps lines whole and lets
    one of them at a time rename a full file. There are at most two files, the
    present one and ``<path>.1``.
    """

    def __init__(self, path: str, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        """Open or create the file. Raises ``OSError``."""
        self._path = path
        self._bytes_max = bytes_max
        self._file = open_private(path)

    def handle(self, event: Event) -> None:
        """Append an event. Raises ``OSError``."""
        self._write(event.to_json())

    def put(self, metric: Metric) -> None:
        """Append a metric. Raises ``OSError``."""
        self._write(metric.to_json())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: str) -> None:
        while not self._append(f"{line}\n".encode()):
            fresh = open_private(self._path)
            os.close(self._file)
            self._file = fresh

    def _append(self, data: bytes) -> bool:
        """Append a whole line or nothing; ``False`` if the file has to be opened anew."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            found = os.fstat(self._file)
            if not self._is_at_path(found):
                return False  # renamed by another agent, or removed
            if found.st_size and found.st_size + len(data) > self._bytes_max:
                os.replace(self._path, f"{self._path}.1")  # noqa: PTH105 - no Path is held
                return False
            if os.write(self._file, data) < len(data):
                os.ftruncate(self._file, found.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            return True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_at_path(self, found: os.stat_result) -> bool:
        try:
            return os.path.samestat(found, os.stat(self._path))  # noqa: PTH116
        except FileNotFoundError:
            return False


def open_private(path: str) -> int:
    """Open a regular file for appending; made readable for its owner only. Raises ``OSError``."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file
