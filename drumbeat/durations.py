"""Pure. Durations as they are written and read: ``90``, ``30s``, ``500ms``, "1 min 30 s"."""

import math
import re

DURATION_MAX_S = 30 * 24 * 3600.0
"""Longest duration a setting takes: a month. More is a slip of the unit."""

ALLOWED = "a number of seconds, or a number with the unit ms, s, m or h (30, 30s, 1.5m, 2h, 500ms)"
"""What a duration may look like, for messages."""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[ ]?(ms|s|m|h)?", re.ASCII)
_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT_LENGTH_MAX = 32  # far longer than any duration; keeps absurd numbers out of float()


def parse_duration(text: str) -> float:
    """Seconds that ``text`` stands for; a number without a unit means seconds.

    Raises:
        ValueError: ``text`` is anything else; the message says what is allowed.
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
    if not math.isfinite(seconds):
        return f"{seconds} s"
    size = abs(seconds)
    # Each bound is compared with the rounded value, so that no "60 s" appears.
    if round(size * 1000) < 1000:
        text = _format_below_a_second(size)
    elif round(size, 1) < 10:
        text = f"{round(size, 1):g} s"
    elif round(size) < 60:
        text = f"{round(size)} s"
    elif round(size) < 3600:
        text = _format_pair(round(size), 60, "min", "s")
    elif round(size / 60) < 24 * 60:
        text = _format_pair(round(size / 60), 60, "h", "min")
    else:
        text = _format_pair(round(size / 3600), 24, "d", "h")
    return f"-{text}" if seconds < 0 else text


def _format_below_a_second(seconds: float) -> str:
    milliseconds = seconds * 1000
    if seconds == 0:
        return "0 s"
    return f"{round(milliseconds)} ms" if round(milliseconds) >= 1 else f"{milliseconds:.2g} ms"


def _format_pair(count: int, size: int, major_unit: str, minor_unit: str) -> str:
    major, minor = divmod(count, size)
    return f"{major} {major_unit} {minor} {minor_unit}" if minor else f"{major} {major_unit}"
