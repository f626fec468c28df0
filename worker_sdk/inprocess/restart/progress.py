"""Shell. Signs that the main thread gets on, and what happens without them.

The interpreter is asked to run a function of ours in the main thread, which it does as soon as that
executes Python: the automatic sign. ``ping`` is the user's.
"""

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from worker_sdk import runtime
from worker_sdk.board import layout
from worker_sdk.board.board import REFUSED
from worker_sdk.inprocess.restart.interrupt import UNINTERRUPTIBLE

# A tick later than this, or than so much of a short soft timeout, says that the whole process, or
# its host, stood still.
STALL_S, STALL_SHARE = 1.0, 0.2
HARD_SCOPE = "inprocess hard timeout"
HEARTBEAT_SCOPE = "inprocess heartbeat"
_KINDS = {HARD_SCOPE: layout.KIND_HARD_TIMEOUT, HEARTBEAT_SCOPE: layout.KIND_HEARTBEAT}


@dataclass(slots=True)
class Progress:
    """When the main thread last gave each sign; pings are not expected before the first."""

    auto_at: float = 0.0
    ping_at: float = math.inf
    is_asked: bool = False

    @property
    def since(self) -> float:
        """When all expected signs had last been given."""
        return min(self.auto_at, self.ping_at)

    def excuse(self, time_s: float) -> None:
        """Leave out a time in which no sign could be given."""
        self.auto_at += time_s
        self.ping_at += time_s


PROGRESS = Progress()
"""The process's, which is in one call at a time: a sign may come after the call that asked."""


def _give_sign(_: int | None) -> int:
    PROGRESS.auto_at = monotonic()
    PROGRESS.is_asked = False
    return 0


_Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_give = _Function(_give_sign)
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = (_Function, ctypes.c_void_p)
_add_pending_call.restype = ctypes.c_int
# An exception raised in it would only be printed.
UNINTERRUPTIBLE.add(_give_sign.__code__)


class BoardLimits:
    """Limits that the agent keeps, by ending the process; made by the main thread."""

    def __init__(self) -> None:
        self._main = runtime.start().threads.mine

    def arm(self, scope: str, after_s: float, grace_s: float = 0.0) -> None:
        """Start one anew; ``grace_s`` counts from SIGTERM to SIGKILL if the agent's is longer."""
        board = runtime.start()
        if not board.free:
            self.disarm(scope)  # else there would be no slot for its renewal
        earlier, after_ns = board.own.get(scope, REFUSED), round(after_s * 1e9)
        board.own[scope] = board.open_slot(
            scope, after_ns, after_ns, layout.SIGNAL_DEFAULT, _KINDS[scope], round(grace_s * 1e9)
        )
        if earlier != REFUSED:
            board.close_slot(earlier)

    def disarm(self, scope: str) -> None:
        """Forget one."""
        board = runtime.start()
        if (slot := board.own.pop(scope, REFUSED)) != REFUSED:
            board.close_slot(slot)

    def clear(self) -> None:
        """Forget all timers and sections of the process; for the main thread."""
        runtime.clear_scopes()
        self._main = runtime.start().threads.mine

    def is_suspended(self) -> bool:
        """Return whether the main thread is in a section, which has a limit of its own."""
        return self._main.sections > 0


class Ticker:
    """A thread that asks for signs, judges the soft timeout and moves the agent's limits.

    The monitor can't: it waits for atomic code, and runs the user's ``abort``. ``on_silence``
    is called once per iteration, on this thread, when the soft timeout is over.
    """

    def __init__(
        self, timing: dict[str, float], limits: BoardLimits, on_silence: Callable[[], None]
    ) -> None:
        self._timing, self._limits, self._on_silence = timing, limits, on_silence
        self._lock = threading.Lock()
        self._is_running = self._is_judging = False
        self._armed_since: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="worker_sdk progress", daemon=True)
        self.start = self._thread.start

    def run(self, *, is_judging: bool) -> None:
        """Expect signs from here on; if ``is_judging`` the soft timeout counts as well."""
        with self._lock:
            PROGRESS.auto_at, PROGRESS.ping_at = monotonic(), math.inf
            self._is_running, self._is_judging = True, is_judging
            self._arm()

    def pause(self) -> None:
        """Expect no signs: the main thread waits for others, in code of ours."""
        with self._lock:
            self._is_running = self._is_judging = False
            self._armed_since = None
            self._limits.disarm(HARD_SCOPE)

    def close(self) -> None:
        """End the thread, and forget all limits."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.pause()
        self._limits.disarm(HEARTBEAT_SCOPE)

    def _arm(self) -> None:
        """Move the limits to the latest sign; without one the hard one stays, and says how long."""
        self._limits.arm(HEARTBEAT_SCOPE, self._timing["heartbeat_timeout"])
        since = PROGRESS.since
        if since != self._armed_since:
            self._armed_since = since
            left_s = max(since + self._timing["hard_timeout"] - monotonic(), 0.001)
            self._limits.arm(HARD_SCOPE, left_s, self._timing["termination_grace_time"])

    def _tick(self) -> None:
        due = monotonic()
        while not self._stopped.wait(max(due - monotonic(), 0)):
            now = monotonic()
            with self._lock:
                due = now + self._step(now, now - due)

    def _step(self, now: float, lateness_s: float) -> float:
        """Do what is due; return for how long nothing else is."""
        interval_s = self._timing["progress_watchdog_interval"]
        if not self._is_running:
            self._limits.arm(HEARTBEAT_SCOPE, self._timing["heartbeat_timeout"])
            return interval_s
        if lateness_s > min(STALL_S, STALL_SHARE * self._timing["soft_timeout"]):
            PROGRESS.excuse(lateness_s)
        if self._limits.is_suspended():
            PROGRESS.excuse(monotonic() - PROGRESS.since)
        if not PROGRESS.is_asked:
            PROGRESS.is_asked = True  # before it is asked: the answer may come in between
            if _add_pending_call(_give, None) != 0:
                PROGRESS.is_asked = False
        self._arm()
        if not self._is_judging:
            return interval_s
        left_s = PROGRESS.since + self._timing["soft_timeout"] - now
        if left_s > 0:
            return min(interval_s, left_s)
        self._is_judging = False
        self._on_silence()
        return interval_s
