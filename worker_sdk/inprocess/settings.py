"""Pure. The numbers a ``Wrapper`` is given, and how they must relate."""

from __future__ import annotations

from dataclasses import dataclass, fields

from worker_sdk.inprocess.durations import Duration, seconds

_AT_LEAST_0 = ("last_call_wait",)

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
        """Return them in seconds.

        Raises:
            TypeError: One is no duration.
            ValueError: One is out of range, or two don't go together.
        """
        values = {
            field.name: seconds(field.name, given[field.name], is_0_allowed=_is_0(field.name))
            for field in fields(cls)
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

    def stricter(self, other: Limits) -> Limits:
        """Return the limits that hold where both do."""
        iterations = [n for n in (self.iterations_max, other.iterations_max) if n is not None]
        return Limits(
            iterations_max=min(iterations, default=None),
            world_size_min=max(self.world_size_min, other.world_size_min),
            active_world_size_min=max(self.active_world_size_min, other.active_world_size_min),
        )


def count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value``.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def checked_limits(max_iterations: int | None, min_world: int, min_active: int) -> Limits:
    """Return the limits a user gave under these names.

    Raises:
        TypeError: One is no integer.
        ValueError: One is below 1.
    """
    if max_iterations is not None:
        count("max_iterations", max_iterations)
    return Limits(
        iterations_max=max_iterations,
        world_size_min=count("min_world_size", min_world),
        active_world_size_min=count("min_active_world_size", min_active),
    )


def _is_0(name: str) -> bool:
    return name in _AT_LEAST_0
