"""Shell. Signs that the main thread gets on, and what happens without them.

The interpreter is asked, once per interval, to run a function of ours in the main
thread: it does so as soon as that thread executes Python. That is the automatic sign.
``ping`` is the user's, and is waited for once it was given in an iteration.
"""

from __future__ import annotations

import ctypes
import math
import threading
from time import monotonic
from typing import TYPE_CHECKING

from worker_sdk.inprocess.restart.agent_link import HARD_SCOPE, HEARTBEAT_SCOPE
from worker_sdk.inprocess.restart.interrupt import UNINTERRUPTIBLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_sdk.inprocess.restart.agent_link import BoardLimits


STALL_S = 1.0
"""A tick that comes later than this says that the whole process, or its host, stood still."""


class Progress:
    """When the main thread last gave a sign."""

    __slots__ = ("auto_at", "ping_at")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin anew: pings are not expected before the first."""
        self.ping_at = math.inf
        self.auto_at = monotonic()

    @property
    def since(self) -> float:
        """The oldest instant at which all expected signs had been given."""
        return min(self.auto_at, self.ping_at)

    def excuse(self, time_s: float) -> None:
        """Leave out a time in which no sign could be given."""
        self.auto_at += time_s
        self.ping_at += time_s


class _Sign:
    """The function that the interpreter is asked to run; there is one for the process.

    It lives as long as the process: a request may be answered after its iteration.
    """

    is_asked = False
    receiver: Progress | None = None

    @classmethod
    def ask(cls) -> None:
        """Have it run, unless it was asked and has not run yet."""
        if not cls.is_asked:
            cls.is_asked = True  # before it is asked: the answer may come in between
            if _add_pending_call(_give, None) != 0:
                cls.is_asked = False


def _give_sign(_: int | None) -> int:
    receiver = _Sign.receiver
    if receiver is not None:
        receiver.auto_at = monotonic()
    _Sign.is_asked = False
    return 0


_Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_give = _Function(_give_sign)
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = (_Function, ctypes.c_void_p)
_add_pending_call.restype = ctypes.c_int
# An exception raised in it would only be printed.
UNINTERRUPTIBLE.add(_give_sign.__code__)


class Ticker:
    """A thread that asks for signs, judges the soft timeout and moves the agent's limits.

    The monitor can't do so: it waits for atomic code, and runs the user's ``abort``.
    ``on_silence`` is called once per iteration, on this thread, when the soft timeout is over.
    """

    def __init__(
        self,
        timing: dict[str, float],
        limits: BoardLimits,
        progress: Progress,
        on_silence: Callable[[], None],
    ) -> None:
        self._timing = timing
        self._limits = limits
        self._progress = progress
        self._on_silence = on_silence
        self._lock = threading.Lock()
        self._is_running = self._is_judging = self._is_stopped = False
        self._armed_since: float | None = None
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="worker_sdk progress", daemon=True)

    def start(self) -> None:
        """Start the thread; from here on the heartbeat is kept."""
        _Sign.receiver = self._progress
        self._limits.arm(HEARTBEAT_SCOPE, self._timing["heartbeat_timeout"])
        self._thread.start()

    def run(self, *, is_judging: bool) -> None:
        """Expect signs from here on; if ``is_judging`` the soft timeout counts as well."""
        with self._lock:
            self._progress.start()
            self._is_running, self._is_judging = True, is_judging
            self._arm()
        self._changed.set()

    def pause(self) -> None:
        """Expect no signs: the main thread waits for others, in code of ours."""
        with self._lock:
            self._is_running = self._is_judging = False
            self._armed_since = None
            self._limits.disarm(HARD_SCOPE)

    def close(self) -> None:
        """End the thread, and forget all limits."""
        self._is_stopped = True
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.pause()
        self._limits.disarm(HEARTBEAT_SCOPE)
        if _Sign.receiver is self._progress:
            _Sign.receiver = None

    def _arm(self) -> None:
        """Move the limits to the latest sign; without a new one they stay, and say how long."""
        since = self._progress.since
        if since != self._armed_since:
            self._armed_since = since
            left_s = max(since + self._timing["hard_timeout"] - monotonic(), 0.001)
            self._limits.arm(HARD_SCOPE, left_s, self._timing["termination_grace_time"])

    def _tick(self) -> None:
        due = monotonic()
        while True:
            self._changed.wait(max(due - monotonic(), 0))
            self._changed.clear()
            if self._is_stopped:
                return
            now = monotonic()
            self._limits.arm(HEARTBEAT_SCOPE, self._timing["heartbeat_timeout"])
            with self._lock:
                due = now + self._step(now, now - due)

    def _step(self, now: float, lateness_s: float) -> float:
        """Do what is due; return for how long nothing else is."""
        interval_s = self._timing["progress_watchdog_interval"]
        if not self._is_running:
            return interval_s
        if lateness_s > STALL_S:
            self._progress.excuse(lateness_s)
        if self._limits.is_suspended():
            self._progress.excuse(monotonic() - self._progress.since)
        _Sign.ask()
        self._arm()
        if not self._is_judging:
            return interval_s
        left_s = self._progress.since + self._timing["soft_timeout"] - now
        if left_s > 0:
            return min(interval_s, left_s)
        self._is_judging = False
        self._on_silence()
        return interval_s
