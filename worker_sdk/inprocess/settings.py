"""Pure. The durations and counts that a user gives, checked."""

import itertools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

Duration = timedelta | float
"""A ``timedelta``, or seconds."""

DURATION_MAX_S = 365 * 24 * 3600.0

# Durations of a `Wrapper`: the left one must be below the right one.
_BELOW = (
    ("soft_timeout", "hard_timeout"),
    ("hard_timeout", "barrier_timeout"),
    ("monitor_process_interval", "barrier_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("monitor_process_interval", "heartbeat_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)
_ALSO = ("completion_timeout", "last_call_wait", "termination_grace_time")


def timing(given: Mapping[str, Any]) -> dict[str, float]:
    """Return a wrapper's durations in seconds; raises ``TypeError`` and ``ValueError``."""
    names = [*dict.fromkeys(itertools.chain(*_BELOW)), *_ALSO]
    values = {
        name: seconds(name, given[name], is_0_allowed=name == "last_call_wait") for name in names
    }
    for less, more in _BELOW:
        if not values[less] < values[more]:
            raise ValueError(
                f"{less} must be below {more}, but {less} is {values[less]:g} s"
                f" and {more} is {values[more]:g} s"
            )
    return values


def seconds(name: str, value: object, *, is_0_allowed: bool = False) -> float:
    """Return a duration in seconds; raises ``TypeError`` and ``ValueError``."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, not {value!r}")
    # Written so that what is not a number is refused.
    if not (0 < given <= DURATION_MAX_S or (given == 0 and is_0_allowed)):
        least = "at least" if is_0_allowed else "above"
        limit = f"{least} 0 s and at most {DURATION_MAX_S:g} s"
        raise ValueError(f"{name} must be {limit}, not {value!r}")
    return float(given)


def count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value``; raises ``TypeError`` and ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value
