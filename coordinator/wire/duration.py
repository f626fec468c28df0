"""Shell. Durations of messages to seconds and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """Write a duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def duration_or_none(seconds: float | None) -> Duration | None:
    """Write a duration that may not be known."""
    return None if seconds is None else duration(seconds)


def seconds_of(message: Duration) -> float:
    """Read a duration."""
    return message.seconds + message.nanos / 1e9
