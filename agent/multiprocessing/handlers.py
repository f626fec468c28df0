"""Shell. Workers that are commands, one by one, as torch's contexts show them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerProcess:
    """The process of a worker, with the part of ``subprocess.Popen`` that makes sense here.

    Not a child of this process: its supervisor reaps it, and tells its exit code.

    Args:
        pid: Its process id.
        args: What it runs.
        look: Waits so many seconds (None: as long as it takes) for its exit code.
    """

    def __init__(
        self, pid: int, args: tuple[str, ...], look: Callable[[float | None], int | None]
    ) -> None:
        self.pid = pid
        self.args = args
        self._look = look

    @property
    def returncode(self) -> int | None:
        """Return its exit code, None while it runs; a signal's number, negated."""
        return self.poll()

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time, in seconds.
            SignalException: See `PContext.start`.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


class SubprocessHandler:
    """One worker of a `SubprocessContext`.

    Attributes:
        local_rank_id: Its local rank.
        proc: Its process.
    """

    def __init__(self, local_rank_id: int, proc: WorkerProcess) -> None:
        self.local_rank_id = local_rank_id
        self.proc = proc

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group that the worker leads."""
        if self.proc.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
