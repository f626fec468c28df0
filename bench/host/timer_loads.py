"""What the benchmarks of timers have workers do, the same on both sides.

Imports nothing but the standard library: it runs within the workers.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import FrameType

Expires = Callable[[float, str, int | None], AbstractContextManager[object]]
"""Opens a timer: seconds, name, signal or None for the usual one."""

Figures = dict[str, float]

COST_PAIRS = 5_000
COST_PAIRS_AT_ONCE = 150
COST_PAUSE_S = 0.09
"""What torch's server keeps up with, so that its clients are not timed while they fail."""

TICK_S = 0.01
SUSTAINED_LIMIT_S = 2.0
SUSTAINED_SETTLE_S = SUSTAINED_LIMIT_S + 2.0
"""A timer whose release was lost has expired by then."""

OPEN_TIMERS = 100
OPEN_AT_ONCE = 10
OPEN_PAUSE_S = 0.02
EXPIRY_AFTER_S = 0.2
EXPIRY_WAIT_S = 5.0

LOAD_PAIRS_PER_S = 100
LOAD_HEARTBEATS_PER_S = 10


class Expired(Exception):
    """The signal of a timer has come."""


class Pace:
    """Lets a loop run at a constant rate, however long each turn takes."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_at = time.monotonic()

    def wait(self) -> None:
        """Return when the next turn is due."""
        self._next_at += self._period_s
        time.sleep(max(0.0, self._next_at - time.monotonic()))


def cost(expires: Expires) -> Figures:
    """Time pairs of acquire and release, in microseconds."""

    def pair(_number: int) -> None:
        with expires(60.0, "x", None):
            pass

    return call_cost(pair)


def call_cost(call: Callable[[int], object]) -> Figures:
    """Time calls, in microseconds, with pauses, so that no side is at its limit."""
    clock = time.perf_counter_ns
    samples: list[float] = []
    exceptions = 0
    for number in range(COST_PAIRS):
        begun = clock()
        try:
            call(number)
        except OSError:
            exceptions += 1
        else:
            samples.append((clock() - begun) / 1e3)
        if number % COST_PAIRS_AT_ONCE == COST_PAIRS_AT_ONCE - 1:
            time.sleep(COST_PAUSE_S)
    return {
        "p50": statistics.median(samples),
        "p99": statistics.quantiles(samples, n=100)[98],
        "exceptions": exceptions,
    }


def sustained(expires: Expires, pairs_per_s: float, seconds: float) -> Figures:
    """Open and close timers at a rate, then wait until one that stayed open has expired."""
    pace, exceptions, done = Pace(TICK_S), 0, 0
    pairs_at_once = round(pairs_per_s * TICK_S)
    begun = time.monotonic()
    for _ in range(round(seconds / TICK_S)):
        for number in range(pairs_at_once):
            try:
                with expires(SUSTAINED_LIMIT_S, f"step-{number}", None):
                    pass
            except OSError:
                exceptions += 1
            else:
                done += 1
        pace.wait()
    took = time.monotonic() - begun
    time.sleep(SUSTAINED_SETTLE_S)
    return {"pairs_per_s": done / took, "exceptions": exceptions}


@dataclass(slots=True)
class Alarm:
    """Notes when the signal of a timer comes, and interrupts the wait for it."""

    is_awaited: bool = False
    came_at: float = 0.0
    strays: int = 0

    def on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        self.came_at = time.monotonic()
        if self.is_awaited:
            self.is_awaited = False
            raise Expired
        self.strays += 1


def open_many(expires: Expires, stack: ExitStack) -> None:
    """Open all timers but one, so slowly that all workers together overflow nothing."""
    for number in range(OPEN_TIMERS - 1):
        stack.enter_context(expires(3600.0, f"open-{number}", signal.SIGUSR1))
        if number % OPEN_AT_ONCE == 0:
            time.sleep(OPEN_PAUSE_S)
            stack.callback(time.sleep, OPEN_PAUSE_S)  # and so when they are closed


def expire_one(expires: Expires, alarm: Alarm, after_s: float) -> float | None:
    """Let a timer expire; return how late its signal was in milliseconds, None if never."""
    # Counted from before the call: what that takes counts as well.
    due = time.monotonic() + after_s
    try:
        alarm.is_awaited = True
        with expires(after_s, "short", signal.SIGUSR1):
            time.sleep(after_s + EXPIRY_WAIT_S)
    except Expired:
        return (alarm.came_at - due) * 1e3
    finally:
        alarm.is_awaited = False
    return None


def expiry(
    expires: Expires, rank: int, seconds: float, *, others_stay: bool
) -> dict[str, list[float] | int]:
    """Let one of many open timers expire again and again; return how late its signals were.

    Args:
        expires: Opens a timer.
        rank: Which worker this is.
        seconds: When to stop.
        others_stay: Whether the other timers outlast the expiry of one.
    """
    alarm = Alarm()
    signal.signal(signal.SIGUSR1, alarm.on_signal)
    late_ms: list[float] = []
    turn = missed = exceptions = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with ExitStack() as stack:
                open_many(expires, stack)
                is_first = True
                while is_first or (others_stay and time.monotonic() < end):
                    is_first = False
                    turn += 1
                    # Not in step with the other workers, nor with any period.
                    after_s = EXPIRY_AFTER_S + (rank * 37 + turn * 13) % 100 / 1e3
                    late = expire_one(expires, alarm, after_s)
                    if late is None:
                        missed += 1
                    else:
                        late_ms.append(late)
        except OSError:
            exceptions += 1
    return {
        "late_ms": late_ms,
        "missed": missed,
        "exceptions": exceptions,
        "strays": alarm.strays,
    }


def load(expires: Expires, heartbeat: Callable[[int], None] | None, seconds: float) -> Figures:
    """Use timers and heartbeats as a training loop with short steps would."""
    pace = Pace(1 / LOAD_PAIRS_PER_S)
    for turn in range(round(seconds * LOAD_PAIRS_PER_S)):
        with expires(60.0, "step", None):
            pass
        if heartbeat is not None and turn % (LOAD_PAIRS_PER_S // LOAD_HEARTBEATS_PER_S) == 0:
            heartbeat(turn)
        pace.wait()
    return {}
