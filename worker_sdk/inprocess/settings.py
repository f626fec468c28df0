"""Pure. The numbers a ``Wrapper`` is given, and how they must relate."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import timedelta

Duration = timedelta | float
"""A ``timedelta``, or seconds."""

DURATION_MAX_S = 365 * 24 * 3600.0

# The left one must be below the right one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All durations, in seconds, under the names the user knows them by."""

    monitor_thread_interval: float
    monitor_process_interval: float
    heartbeat_interval: float
    progress_watchdog_interval: float
    soft_timeout: float
    hard_timeout: float
    heartbeat_timeout: float
    barrier_timeout: float
    completion_timeout: float
    last_call_wait: float
    termination_grace_time: float

    @classmethod
    def checked(cls, given: dict[str, Duration]) -> Timing:
        """Return them in seconds; raises ``TypeError`` and ``ValueError``."""
        values = {
            name: seconds(name, given[name], is_0_allowed=name == "last_call_wait")
            for name in (field.name for field in fields(cls))
        }
        for less, more in _BELOW:
            if not values[less] < values[more]:
                raise ValueError(
                    f"{less} must be below {more}, but {less} is {values[less]:g} s"
                    f" and {more} is {values[more]:g} s"
                )
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a restart in process is no longer worth it."""

    iterations_max: int | None = None
    """Iterations of one call, the first included; ``None``: any number."""
    world_size_min: int = 1
    active_world_size_min: int = 1

    @classmethod
    def checked(cls, max_iterations: int | None, min_world: int, min_active: int) -> Limits:
        """Return the limits a user gave; raises ``TypeError`` and ``ValueError``."""
        if max_iterations is not None:
            count("max_iterations", max_iterations)
        return cls(
            iterations_max=max_iterations,
            world_size_min=count("min_world_size", min_world),
            active_world_size_min=count("min_active_world_size", min_active),
        )

    def stricter(self, other: Limits) -> Limits:
        """Return the limits that hold where both do."""
        iterations = [n for n in (self.iterations_max, other.iterations_max) if n is not None]
        return Limits(
            iterations_max=min(iterations, default=None),
            world_size_min=max(self.world_size_min, other.world_size_min),
            active_world_size_min=max(self.active_world_size_min, other.active_world_size_min),
        )


def seconds(name: str, value: object, *, is_0_allowed: bool = False) -> float:
    """Return a duration in seconds; raises ``TypeError`` and ``ValueError``."""
    if isinstance(value, timedelta):
        given = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        given = float(value)
    else:
        raise TypeError(f"{name} must be a timedelta or a number of seconds, not {value!r}")
    is_allowed = 0 <= given <= DURATION_MAX_S and (given > 0 or is_0_allowed)
    if math.isnan(given) or not is_allowed:
        least = "at least" if is_0_allowed else "above"
        limit = f"{least} 0 s and at most {DURATION_MAX_S:g} s"
        raise ValueError(f"{name} must be {limit}, not {value!r}")
    return given


def count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value``; raises ``TypeError`` and ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value
