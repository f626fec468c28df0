"""Shell. Who takes an agent's events and metrics: our handlers, and installed packages'.

A package offers one as an entry point of the group ``drumbeat.event_handlers``: a class or
function that is called without arguments and returns the handler. It has a thread of its own:
whatever it does, the agent only ever fills a bounded queue.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import structlog

from drumbeat.agent.errors import UnknownEventHandler
from drumbeat.agent.host.installation import installed
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry import Event, EventHandler, Item, Metric
from drumbeat.agent.telemetry.facts import AgentFacts, Fact
from drumbeat.agent.telemetry.observer import Observer
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.text.format import describe

if TYPE_CHECKING:
    from drumbeat.agent.telemetry.metrics.collected import LookNow
    from drumbeat.agent.telemetry.metrics.endpoint import Endpoint

log = structlog.get_logger()

GROUP = "drumbeat.event_handlers"
BUILT_IN = NULL, CONSOLE, JSON_LINES = "null", "console", "jsonl"

FILE_BYTES_MAX = 64 * 1024 * 1024  # at which ``JsonLinesHandler`` renames its file
QUEUE_MAX = 10_000  # items that wait for the handler; more are dropped and counted
CLOSE_TIMEOUT_S = 2.0  # how long the end of an agent waits for its handler to take what is left
DROPPED = "telemetry.dropped"


def check_name(name: str) -> None:
    """Raise `UnknownEventHandler` unless there is such a handler, without loading it."""
    if name not in BUILT_IN:
        _find(name)


def make_handler(name: str, file: str | None) -> EventHandler:
    """Return a new handler of a checked name other than ``null``; ``file`` is that of ``jsonl``."""
    if name == JSON_LINES:
        assert file is not None, "checked with the configuration"
        return JsonLinesHandler(file)
    return ConsoleHandler() if name == CONSOLE else cast("EventHandler", _find(name).load()())


def _find(name: str) -> Any:
    points = {known: point for known, point in installed(GROUP).items() if known not in BUILT_IN}
    if name not in points:
        raise UnknownEventHandler(name, (*BUILT_IN, *sorted(points)))
    return points[name]


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
            status, there = os.fstat(self._file), None
            with suppress(FileNotFoundError):
                there = os.stat(self._path)  # noqa: PTH116
            if there is None or not os.path.samestat(status, there):
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


class Telemetry:
    """The telemetry of one agent. Costs nothing without a handler and a port for metrics."""

    def __init__(self, config: AgentConfig, facts: AgentFacts, *, host: str) -> None:
        make = partial(make_handler, config.event_handler, config.event_log_file)
        epoch_s = time.time() - time.monotonic()
        self._observer = Observer(config, facts, host=host, epoch_s=epoch_s)
        self._relay = None if config.event_handler == NULL else Relay(make)
        self._config = config
        self._endpoint: Endpoint | None = None

    def serve(self, look: LookNow, gpus: Sequence[Gpu]) -> None:
        """Answer scrapes from now on, if there is a port; ``look`` says how the agent is."""
        if self._config.metrics_port is not None:
            # Needs a package that is there only for those who ask for it.
            from drumbeat.agent.telemetry.metrics.endpoint import Endpoint  # noqa: PLC0415

            self._endpoint = Endpoint(self._config, look, gpus)

    def take(self, facts: Iterable[Fact], *, now: float) -> None:
        """Pass on what has happened."""
        for fact in facts:
            if self._relay is not None:
                self._relay.send(self._observer.items(fact, now=now))
            if self._endpoint is not None:
                self._endpoint.metrics.take(fact)

    async def close(self) -> None:
        """Let the handler finish, for a bounded time."""
        if self._relay is not None:
            await asyncio.to_thread(self._relay.close)
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)


class Relay:
    """A bounded queue and the thread that empties it into a handler, which ``make`` makes there.

    ``dropped`` counts items that found the queue full, or no handler; ``failed`` calls of the
    handler that raised.
    """

    def __init__(self, make: Callable[[], EventHandler], *, queue_max: int = QUEUE_MAX) -> None:
        self.dropped = self.failed = 0
        self._queue: Queue[Item | None] = Queue(queue_max)
        # A daemon: a handler that never returns must not keep the process alive.
        self._thread = Thread(target=self._run, args=(make,), name="telemetry", daemon=True)
        self._thread.start()

    def send(self, items: Iterable[Item]) -> None:
        """Hand items over, before `close`. Never blocks on the handler and never raises."""
        for item in items:
            if self._queue.full():  # nothing else fills it
                self.dropped += 1
            else:
                self._queue.put_nowait(item)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the handler take what is left, for at most ``timeout_s``, and say what is missing."""
        until = time.monotonic() + timeout_s
        with suppress(Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(max(0.0, until - time.monotonic()))
        left = max(self._queue.qsize(), self._thread.is_alive())
        if self.dropped or self.failed or left:
            missing = f"{self.dropped} items dropped, {self.failed} refused by the handler"
            reason = f"{missing}, {left} not taken within {timeout_s:g} s"
            log.warning("telemetry incomplete", reason=reason)

    def _run(self, make: Callable[[], EventHandler]) -> None:
        try:
            handler = make()
        except Exception as error:  # noqa: BLE001 - foreign code, of which training is independent
            log.warning("event handler not available", reason=describe(error))
            while self._queue.get() is not None:
                self.dropped += 1
            return
        while (item := self._queue.get()) is not None:
            self._call(handler.handle if isinstance(item, Event) else handler.put, item)
        if self.dropped:
            self._call(handler.put, Metric(name=DROPPED, value=self.dropped))
        self._call(handler.close)

    def _call(self, method: Callable[..., None], *items: Item) -> None:
        try:
            method(*items)
        except Exception as error:  # noqa: BLE001
            self.failed += 1
            if self.failed == 1:  # once: a disk that is full stays full
                log.warning("event handler failed", reason=describe(error))
