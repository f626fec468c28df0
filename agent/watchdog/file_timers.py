"""Shell. The FIFO that torch's ``FileTimerClient`` writes to, served for unmodified scripts.

The client opens it anew for each request and does not wait: while nobody has it open,
or when it is full, the caller gets an exception. So this process holds it open for as
long as it lives, for writing as well, has it enlarged, and empties it as soon as
something is in it; what was read is worked off in small portions.

A request names a process and a time of the wall clock. The time becomes a duration
the moment it is read, so a clock that is set later changes nothing. The process may
be one below the worker, a loader of data say; its timers go with it, and the signal of
one that expires is for that process, as in torch.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.errors import TimerFileUnusable
from agent.watchdog.core.events import TimerAcquired, TimerReleased
from agent.watchdog.file_timer_requests import FileTimerRequest, Lines, latest, parse
from worker_sdk.context import FILE_TIMER_ENABLE, FILE_TIMER_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.watchdog.core.model import WorkerKey

log = structlog.get_logger()

FIFO_NAME = "file-timers"

PIPE_BYTES = 1024 * 1024
"""Asked of the kernel, and what it grants anybody by default: about 9,000 requests."""

PIPE_BYTES_MIN = 64 * 1024
"""What a FIFO has anyway."""

READ_BYTES = 64 * 1024

BACKLOG_BYTES_MAX = 4 * PIPE_BYTES
"""What may wait here to be worked off; then the rest waits in the FIFO."""

LINES_PER_TURN = 500
"""Worked off at once, in a few milliseconds; then the loop's other business has its turn."""

HOLD_S = 1.0
"""How long requests of a process nobody knows are kept: the agent may yet be told of it."""

HELD_MAX = 1024
DESCENDANTS_MAX = 256
SCOPES_MAX = 1024
"""Timers one process below a worker may have open."""

PARENTS_MAX = 32
"""How far below its worker a process may be."""

TimerEvent = TimerAcquired | TimerReleased


def requested_path(environment: Mapping[str, str], directory: Path) -> Path | None:
    """Return where the agent shall serve file timers, None if it shall not.

    Args:
        environment: The agent's own.
        directory: A private folder, for a FIFO of which nobody has said where it is to be.
    """
    if environment.get(FILE_TIMER_ENABLE) != "1":
        return None
    # Absolute, since workers may work somewhere else.
    return Path(environment.get(FILE_TIMER_PATH) or directory / FIFO_NAME).absolute()


@dataclass(slots=True)
class _Descendant:
    """A process below a worker that has used timers. ``pidfd`` tells of its end."""

    worker: WorkerKey
    pidfd: int
    scopes: set[str] = field(default_factory=set)


class FileTimers:
    """Serves one FIFO to all workers of this host. Belongs to one event loop.

    Args:
        path: Where the FIFO is to be; absolute.
        on_event: Called on the loop for what workers ask; must not raise.
        resolve: Returns whose process a pid is: that of a worker itself, no deeper.
        wall_clock: What clients count on, in seconds.
        parent_of: Returns the parent of a process; OSError if there is no such process.
    """

    def __init__(
        self,
        path: Path,
        on_event: Callable[[TimerEvent], None],
        resolve: Callable[[int], WorkerKey | None],
        *,
        wall_clock: Callable[[], float] = time.time,
        parent_of: Callable[[int], int] | None = None,
    ) -> None:
        self._path = path
        self._on_event = on_event
        self._resolve = resolve
        self._wall_clock = wall_clock
        self._parent_of = parent_of or _parent_of
        self._fd: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines = Lines()
        self._turn: asyncio.Handle | None = None
        self._descendants: dict[int, _Descendant] = {}
        # The latest request about each timer, with the loop's time of its expiry.
        self._held: dict[tuple[int, str], tuple[FileTimerRequest, float]] = {}
        self._hold: asyncio.TimerHandle | None = None
        self._told: set[str] = set()

    def environment(self) -> dict[str, str]:
        """Return what workers need to find the FIFO."""
        return {FILE_TIMER_ENABLE: "1", FILE_TIMER_PATH: str(self._path)}

    def open(self) -> None:
        """Make the FIFO and begin to serve it; to be called on the loop.

        A FIFO that is there already is replaced.

        Raises:
            TimerFileUnusable: Something else is there, or none can be made.
        """
        assert self._fd is None, "is open"
        self._loop = asyncio.get_running_loop()
        try:
            _clear(self._path)
            os.mkfifo(self._path, 0o600)
            # For writing as well: clients come and go, and none must meet a FIFO without
            # a reader, nor the reader an end.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TimerFileUnusable(str(self._path), error.strerror or str(error)) from error
        _enlarge(self._fd)
        self._loop.add_reader(self._fd, self._on_readable)

    def close(self) -> None:
        """Stop to serve, and remove the FIFO. Harmless if it is closed."""
        if self._fd is None or self._loop is None:
            return
        self._loop.remove_reader(self._fd)
        with suppress(OSError):
            # It may be another agent's by now.
            if os.path.samestat(self._path.lstat(), os.fstat(self._fd)):
                self._path.unlink()
        os.close(self._fd)
        self._fd = None
        for handle in (self._turn, self._hold):
            if handle is not None:
                handle.cancel()
        for descendant in self._descendants.values():
            self._loop.remove_reader(descendant.pidfd)
            os.close(descendant.pidfd)
        self._descendants.clear()
        self._held.clear()

    def catch_up(self) -> None:
        """Pass on all that was written until now, before anybody is said to be late."""
        if self._fd is None:
            return
        self._fill()
        while self._lines.has_line:
            self._work_portion_off()

    def workers_changed(self) -> None:
        """Look again whose requests those of unknown processes are; ``resolve`` knows more now."""
        for key, (request, due) in list(self._held.items()):
            if self._apply(request, due):
                del self._held[key]

    def send_signal(self, pid: int, signum: int) -> None:
        """Send a signal to a process below a worker; one that has gone does not get it."""
        descendant = self._descendants.get(pid)
        if descendant is None:
            return
        try:
            signal.pidfd_send_signal(descendant.pidfd, signum)
        except ProcessLookupError:
            pass
        except OSError as error:
            log.warning("signal failed", reason=error.strerror, pid=pid, signal=signum)

    def _on_readable(self) -> None:
        self._fill()
        if self._turn is None:
            self._work()

    def _fill(self) -> None:
        """Read all there is, so that nobody meets a full FIFO."""
        assert self._fd is not None
        while self._lines.bytes_held < BACKLOG_BYTES_MAX:
            try:
                chunk = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            self._lines.feed(chunk)
            if len(chunk) < READ_BYTES:
                return

    def _work(self) -> None:
        """Work a portion off, and have the rest worked off in the loop's next turns."""
        assert self._loop is not None
        self._work_portion_off()
        self._turn = self._loop.call_soon(self._work) if self._lines.has_line else None

    def _work_portion_off(self) -> None:
        assert self._loop is not None
        requests = []
        for line in self._lines.take(LINES_PER_TURN):
            try:
                request = parse(line)
            except ValueError as error:
                self._tell("a file timer request was not understood", str(error))
                continue
            if request.has_odd_signal:
                why = f"process {request.pid} named one that this system does not have"
                self._tell("a file timer sends SIGKILL instead of its signal", why)
            requests.append(request)
        offset = self._loop.time() - self._wall_clock()
        for request in latest(requests):
            self._take(request, due=(request.expires_at or 0.0) + offset)

    def _take(self, request: FileTimerRequest, due: float) -> None:
        """Pass a request on, or keep it until its process is known. ``due``: loop's time."""
        assert self._loop is not None
        key = (request.pid, request.scope)
        if self._apply(request, due):
            self._held.pop(key, None)
            return
        if len(self._held) >= HELD_MAX and key not in self._held:
            self._tell("a file timer is not watched", "too many are of processes that nobody knows")
            return
        self._held[key] = (request, due)
        if self._hold is None:
            self._hold = self._loop.call_later(HOLD_S, self._end_hold)

    def _end_hold(self) -> None:
        self._hold = None
        self.workers_changed()
        if self._held:
            request, _ = next(iter(self._held.values()))
            self._tell(
                "a file timer is not watched", f"process {request.pid} is not below a worker"
            )
        self._held.clear()

    def _apply(self, request: FileTimerRequest, due: float) -> bool:
        """Pass a request on; return whether that is settled. One of a dead process is."""
        assert self._loop is not None
        worker, scope = self._resolve(request.pid), request.scope
        if worker is None:
            try:
                descendant = self._descendants.get(request.pid) or self._adopt(request.pid)
            except ProcessLookupError:
                return True
            except OSError as error:
                self._tell("a file timer is not watched", str(error))
                return True
            if descendant is None:
                return False
            worker = descendant.worker
            # Processes of one worker do not know of each other's names.
            scope = f"{scope} (process {request.pid})"
            if request.expires_at is None:
                descendant.scopes.discard(scope)
            elif len(descendant.scopes) < SCOPES_MAX:
                descendant.scopes.add(scope)
            else:
                self._tell("a file timer is not watched", f"process {request.pid} has too many")
                return True
        if request.expires_at is None:
            self._on_event(TimerReleased(worker=worker, scope=scope))
        else:
            timeout_s = max(0.0, due - self._loop.time())
            acquired = TimerAcquired(
                worker=worker,
                scope=scope,
                timeout_s=timeout_s,
                signal=request.signal,
                pid=request.pid if request.pid in self._descendants else 0,
            )
            self._on_event(acquired)
        return True

    def _adopt(self, pid: int) -> _Descendant | None:
        """Find the worker that ``pid`` is below, and watch for the end of ``pid``.

        Raises:
            OSError: The process has gone, or can't be watched.
        """
        assert self._loop is not None
        # First of all, so that it is this process that is looked at below.
        pidfd = os.pidfd_open(pid)
        worker = self._worker_above(pid)
        if worker is None or len(self._descendants) >= DESCENDANTS_MAX:
            os.close(pidfd)
            if worker is None:
                return None
            raise OSError(f"more than {DESCENDANTS_MAX} processes below workers use timers")
        descendant = self._descendants[pid] = _Descendant(worker, pidfd)
        self._loop.add_reader(pidfd, self._on_gone, pid)
        return descendant

    def _worker_above(self, pid: int) -> WorkerKey | None:
        for _ in range(PARENTS_MAX):
            try:
                pid = self._parent_of(pid)
            except OSError:  # a process between has just ended, or is hidden
                return None
            if pid <= 1:
                return None
            worker = self._resolve(pid)
            if worker is not None:
                return worker
        return None

    def _on_gone(self, pid: int) -> None:
        assert self._loop is not None
        descendant = self._descendants.pop(pid)
        self._loop.remove_reader(descendant.pidfd)
        os.close(descendant.pidfd)
        for scope in sorted(descendant.scopes):
            self._on_event(TimerReleased(worker=descendant.worker, scope=scope))

    def _tell(self, what: str, why: str) -> None:
        """Say ``what``, a fixed phrase, once: it may come thousands of times a second."""
        if what not in self._told:
            self._told.add(what)
            path = str(self._path)
            log.warning(what, message=f"{what}: {why} ({path})", reason=why, path=path)


def _clear(path: Path) -> None:
    """Remove a FIFO that an earlier agent left.

    Raises:
        TimerFileUnusable: Something else is there.
        OSError: It can't be removed.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISFIFO(mode):
        raise TimerFileUnusable(str(path), "there is something else than a FIFO")
    path.unlink()


def _enlarge(fd: int) -> None:
    """Give the FIFO as much room as the system allows, at most ``PIPE_BYTES``."""
    size = PIPE_BYTES
    while size > PIPE_BYTES_MIN:
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            size //= 2
        else:
            return


def _parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has none here."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has gone") from error
    # The name, in parentheses, may hold anything.
    return int(text.rpartition(")")[2].split()[1])
