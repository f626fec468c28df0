"""Pure. Durations as they are written and read: ``90``, ``30s``, ``500ms``, "1 min 30 s"."""

import math
import re

SECOND = 1_000_000_000  # in nanoseconds
DURATION_MAX_S = 30 * 24 * 3600.0  # that a setting takes; more is a slip of the unit
ALLOWED = "a number of seconds, or a number with the unit ms, s, m or h (30, 30s, 1.5m, 2h, 500ms)"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[ ]?(ms|s|m|h)?", re.ASCII)
_SECONDS_OF_UNIT = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TEXT_LENGTH_MAX = 32  # far longer than any duration; keeps absurd numbers out of float()


def nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(seconds * SECOND)


def parse_duration(text: str) -> float:
    """Seconds that ``text`` stands for; a number without a unit means seconds.

    Raises ``ValueError`` for anything else; the message says what is allowed.
    """
    stripped = text.strip()
    match = _DURATION.fullmatch(stripped) if len(stripped) <= _TEXT_LENGTH_MAX else None
    if match is None:
        raise ValueError(f"{text[:_TEXT_LENGTH_MAX]!r} is not a duration: give {ALLOWED}")
    number, unit = match.groups()
    return float(number) * _SECONDS_OF_UNIT[unit or "s"]


def short_duration(seconds: float) -> str:
    """Write a duration as ``parse_duration`` reads it: "5m", "500ms"."""
    for unit in ("h", "m", "s"):
        if seconds and seconds % _SECONDS_OF_UNIT[unit] == 0:
            return f"{seconds / _SECONDS_OF_UNIT[unit]:g}{unit}"
    return f"{seconds * 1000:g}ms" if seconds else "0s"


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units, rounded: "1 min 30 s", "250 ms"."""
    if not math.isfinite(seconds) or seconds == 0:
        return f"{seconds:g} s"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    # Each bound is compared with the rounded value, so that no "60 s" appears.
    if round(seconds * 1000) < 1000:
        milliseconds = seconds * 1000
        return f"{round(milliseconds) or f'{milliseconds:.2g}'} ms"
    if round(seconds) < 60:
        return f"{seconds:.0f} s" if round(seconds, 1) >= 10 else f"{round(seconds, 1):g} s"
    number, size, major, minor = round(seconds), 60, "min", "s"
    if number >= 3600:
        number, size, major, minor = round(seconds / 60), 60, "h", "min"
    if number >= 24 * 60 and major == "h":
        number, size, major, minor = round(seconds / 3600), 24, "d", "h"
    whole, rest = divmod(number, size)
    return f"{whole} {major} {rest} {minor}" if rest else f"{whole} {major}"
