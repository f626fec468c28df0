"""Shell. The FIFO that torch's ``FileTimerClient`` writes to, served for unmodified scripts.

The client opens it anew for each request, one line of JSON, and does not wait: without a reader,
or with a full FIFO, the caller gets an exception. So this process holds it open, has it enlarged,
and empties it at once. Only while workers start requests wait: whose they are is not known yet.

A request's time of the wall clock becomes a duration the moment it is read, so a clock that is
set later changes nothing. Its process may be one below the worker, a data loader say, which then
gets the signal, as in torch; timers that it leaves behind are void, as is found when they expire.

Source of the fields and their meaning:
``torch/distributed/elastic/timer/file_based_local_timer.py`` (2.13.0).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import signal
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import UnionType
from typing import NamedTuple

import structlog

from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.errors import TimerFileUnusable
from drumbeat.agent.watchdog.stacks import lineage
from worker_sdk.context import FILE_TIMER_ENABLE, FILE_TIMER_PATH
from worker_sdk.interpreter.signal_numbers import is_signal

log = structlog.get_logger()

# Asked of the kernel, and what it grants any user by default: about 9,000 requests.
PIPE_BYTES = 1024 * 1024
# Read and worked off at once, in a few milliseconds; then the loop's other business goes on.
READ_BYTES = 64 * 1024
# PIPE_BUF of Linux: what the client limits itself to, for a longer line could be torn.
LINE_BYTES_MAX = 4096
WALL_MAX_S = 1e300  # from here on it is the end of time


class FileTimerRequest(NamedTuple):
    """One line. ``expires_at`` is the sender's wall clock; None: the timer is released."""

    pid: int
    scope: str
    expires_at: float | None
    signal: int


class FileTimers:
    """Serves one FIFO, to one worker or to all of this host. Belongs to one event loop.

    ``submit`` may raise ``TooManyTimers`` and ``WorkerIsGone``; ``worker_with`` returns the worker
    that is the process of a pid, if that is served here; clients count on ``wall_clock``. Raises
    ``TimerFileUnusable`` if there is something else than a FIFO of an earlier agent, or none can
    be made.
    """

    def __init__(
        self,
        path: Path,
        submit: Callable[[msg.TimerAcquired | msg.TimerReleased], None],
        worker_with: Callable[[int], msg.WorkerKey | None],
        *,
        room_bytes: int = PIPE_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        # What workers need to find the FIFO.
        self.environment = {FILE_TIMER_ENABLE: "1", FILE_TIMER_PATH: str(path)}
        self._submit = submit
        self._worker_with = worker_with
        self._wall_clock = wall_clock
        self._rest = b""
        self._requests: dict[tuple[int, str], FileTimerRequest] = {}
        self._warned: set[str] = set()
        self._loop = asyncio.get_running_loop()
        try:
            with suppress(FileNotFoundError):
                if not stat.S_ISFIFO(path.lstat().st_mode):
                    raise TimerFileUnusable(str(path), "there is something else than a FIFO")
                path.unlink()
            os.mkfifo(path, 0o600)
            # For writing as well: clients come and go, and none must meet a FIFO without
            # a reader, nor the reader an end.
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TimerFileUnusable(str(path), error.strerror or str(error)) from error
        for halved in range(4):  # as much room as the system allows; a FIFO has a 16th anyway
            with suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, room_bytes >> halved)
                break

    def pause(self) -> None:
        """Let requests wait in the FIFO: ``worker_with`` does not know their processes yet."""
        self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read requests as they come."""
        self._loop.add_reader(self._fd, self._read)

    def catch_up(self) -> None:
        """Pass on all that was written until now."""
        for _ in range(PIPE_BYTES // READ_BYTES + 1):
            if not self._read():
                return

    def close(self) -> None:
        """Stop to serve, and remove the FIFO. Harmless if it is closed."""
        if self._fd < 0:
            return
        self.pause()
        with suppress(OSError):
            # It may be another agent's by now.
            if os.path.samestat(self._path.lstat(), os.fstat(self._fd)):
                self._path.unlink()
        os.close(self._fd)
        self._fd = -1

    def _read(self) -> bool:
        """Pass on a portion; return whether there may be more."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: LINE_BYTES_MAX + 1]  # so much that it is refused when it is complete
        for line in lines:
            try:
                request = parse(line)
            except ValueError as error:
                self._warn("a file timer request was not understood", str(error))
            else:  # only the last one about a timer counts: it undoes those before
                self._requests[request.pid, request.scope] = request
        # Passing one on may have more of them read, and passed on, meanwhile.
        while self._requests:
            try:
                self._pass_on(self._requests.pop(next(iter(self._requests))))
            except msg.WorkerIsGone:
                pass
            except msg.TooManyTimers as refusal:
                self._warn("a file timer is not watched", str(refusal))
        return len(data) == READ_BYTES

    def _pass_on(self, request: FileTimerRequest) -> None:
        scope, signum, pid = request.scope, request.signal, 0
        try:
            owners = ((pid, self._worker_with(pid)) for pid in lineage(request.pid))
            owner_pid, worker = next(filter(itemgetter(1), owners), (0, None))
        except OSError:
            return  # it has gone
        if worker is None:
            self._warn(
                "a file timer is not watched", f"process {request.pid} is not below a worker"
            )
            return
        if owner_pid != request.pid:  # processes of one worker do not know of each other's names
            pid, scope = request.pid, f"{scope} (process {request.pid})"
        if request.expires_at is None:
            self._submit(msg.TimerReleased(worker=worker, scope=scope))
            return
        if signum > 0 and not is_signal(signum):
            why = f"process {request.pid} named one that this system does not have"
            self._warn("a file timer sends SIGKILL instead of its signal", why)
            signum = int(signal.SIGKILL)  # the client's default
        left_s = max(0.0, request.expires_at - self._wall_clock())
        self._submit(
            msg.TimerAcquired(worker=worker, scope=scope, timeout_s=left_s, signal=signum, pid=pid)
        )

    def _warn(self, event: str, why: str) -> None:
        """Log ``event``, a fixed phrase, once: it may come thousands of times a second."""
        if event not in self._warned:
            self._warned.add(event)
            message = f"{event}: {why} ({self._path})"
            log.warning(event, message=message, reason=why, path=str(self._path))


def requested_path(environment: Mapping[str, str], directory: Path) -> Path | None:
    """Return where to serve file timers, by default in ``directory``; None: nowhere."""
    if environment.get(FILE_TIMER_ENABLE) != "1":
        return None
    # Absolute, since workers may work somewhere else.
    return Path(environment.get(FILE_TIMER_PATH) or directory / "file-timers").absolute()


def parse(line: bytes) -> FileTimerRequest:
    """Return the request in ``line``. Raises ``ValueError`` that says why it is none."""
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"longer than {LINE_BYTES_MAX} bytes")
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - a matter of content here
    scope = fields.get("scope_id")
    if not isinstance(scope, str):
        raise ValueError("scope_id is no text")  # noqa: TRY004 - as above
    at = _number(fields, "expiration_time", int | float, -math.inf, math.inf)
    return FileTimerRequest(
        pid=int(_number(fields, "pid", int, 1, 2**31 - 1)),
        scope=scope.encode("utf-8", "replace").decode(),  # half a surrogate pair can't be sent on
        # A timer that expires at the end of time needs no watching.
        expires_at=float(at) if 0 <= at < WALL_MAX_S else None,
        signal=int(_number(fields, "signal", int, -(2**31), 2**31 - 1)),
    )


def _number(
    fields: dict[str, object], name: str, kind: type[int] | UnionType, least: float, most: float
) -> float:
    value = fields.get(name)
    if isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise ValueError(f"{name} is no number from {least} to {most}")
