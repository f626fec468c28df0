"""Shell. Who takes events and metrics: those that come with drumbeat, and installed packages'.

A package offers a handler as an entry point of the group ``drumbeat.event_handlers``: a
class or function that is called without arguments and returns the handler.
"""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

from agent.errors import UnknownEventHandler
from agent.runtime.installation import installed
from agent.telemetry.items import Event, Item, Metric

GROUP = "drumbeat.event_handlers"
NULL, CONSOLE, JSON_LINES = "null", "console", "jsonl"
BUILT_IN = (NULL, CONSOLE, JSON_LINES)

FILE_BYTES_MAX = 64 * 1024 * 1024
"""Size of the file of ``JsonLinesHandler``; at it the file is renamed to ``<path>.1``."""


class EventHandler(Protocol):
    """Takes events and metrics. Called by one thread of its own, one call at a time.

    It may block and it may raise: training goes on, and what it missed is counted.
    """

    def handle(self, event: Event) -> None:
        """Take an event."""

    def put(self, metric: Metric) -> None:
        """Take a metric."""

    def close(self) -> None:
        """Pass on what is held back, and let go. The last call."""


Factory = Callable[[], EventHandler]


def check_name(name: str) -> None:
    """Raise `UnknownEventHandler` unless there is such a handler, without loading it."""
    if name not in BUILT_IN:
        _find(name)


def factory(name: str, file: str | None) -> Factory | None:
    """Return what makes the handler of a checked name; ``None`` for ``null``.

    ``file`` is the absolute path of the file of ``jsonl``.
    """
    if name == JSON_LINES:
        assert file is not None, "checked with the configuration"
        return lambda: JsonLinesHandler(file)
    if name in BUILT_IN:
        return None if name == NULL else ConsoleHandler
    return lambda: cast("EventHandler", _find(name).load()())


def _find(name: str) -> Any:
    found = {each: point for each, point in installed(GROUP).items() if each not in BUILT_IN}
    if name not in found:
        raise UnknownEventHandler(name, (*BUILT_IN, *sorted(found)))
    return found[name]


class ConsoleHandler:
    """Writes each event and metric as one line of JSON to standard error."""

    def handle(self, item: Item) -> None:
        """Write an event or a metric."""
        self._write(f"{item.to_json()}\n")

    put = handle

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""

    def _write(self, line: str) -> None:
        sys.stderr.write(line)  # in one call, so that the log's lines don't get between
        sys.stderr.flush()


class JsonLinesHandler(ConsoleHandler):
    """Appends each event and metric as one line of JSON to a private file.

    Several agents of a host may share it: a lock keeps lines whole and lets one at a time rename
    a full file to ``<path>.1``. Every call raises ``OSError`` if it can't be done.
    """

    def __init__(self, path: str, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file = open_private(path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: str) -> None:
        while not self._append(line.encode()):
            # It was full, or another agent has renamed it, or it was removed.
            os.close(self._file)
            self._file = open_private(self._path)

    def _append(self, data: bytes) -> bool:
        """Append a line; return False if it belongs into a new file."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            status = os.fstat(self._file)
            try:
                is_at_path = os.path.samestat(status, os.stat(self._path))  # noqa: PTH116
            except FileNotFoundError:
                is_at_path = False
            if not is_at_path:
                return False
            if status.st_size and status.st_size + len(data) > self._bytes_max:
                os.replace(self._path, f"{self._path}.1")  # noqa: PTH105 - no Path is held
                return False
            if os.write(self._file, data) < len(data):
                os.ftruncate(self._file, status.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            return True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def open_private(path: str) -> int:
    """Open a regular file for appending; made readable for its owner only. Raises ``OSError``."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file
