"""Pure. Durations as users give them."""

from __future__ import annotations

import math
from datetime import timedelta

Duration = timedelta | float
"""A ``timedelta``, or seconds."""

LONGEST_S = 365 * 24 * 3600.0


def seconds(name: str, value: object, *, is_0_allowed: bool = False) -> float:
    """Return a duration in seconds.

    Raises:
        TypeError: It is neither a timedelta nor a number.
        ValueError: It is not above 0 (or not at least 0), or over a year.
    """
    if isinstance(value, timedelta):
        given = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        given = float(value)
    else:
        raise TypeError(f"{name} must be a timedelta or a number of seconds, not {value!r}")
    if math.isnan(given) or given < 0 or given > LONGEST_S or (given == 0 and not is_0_allowed):
        least = "at least" if is_0_allowed else "above"
        raise ValueError(f"{name} must be {least} 0 s and at most {LONGEST_S:g} s, not {value!r}")
    return given
