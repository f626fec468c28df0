"""Waiting, in tests, for what another process does.

A test can be told of a change in its own process, but not of one in somebody
else's; so these look again every few milliseconds, until a deadline that is far
longer than the wait should ever be.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIME_FACTOR = float(os.environ.get("DRUMBEAT_TEST_TIME_FACTOR", "1"))
# The unit of every duration in tests, so that one knob suits a slow machine.
MS = 0.001 * TIME_FACTOR

_LOOK_AGAIN_S = 0.005


def _failure(predicate: Callable[[], object], timeout_s: float, seen: object) -> str:
    name = getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {timeout_s:g} s: {name}; seen last: {seen!r}"


async def wait_until(
    predicate: Callable[[], T], timeout_s: float, describe: Callable[[], object] | None = None
) -> T:
    """Return the first truthy value of ``predicate``; the loop runs on meanwhile.

    Args:
        predicate: Looked at every few milliseconds; its errors pass through.
        timeout_s: How long to wait, in seconds; a multiple of ``MS``.
        describe: What to show if it stays falsy; the predicate's last value if not given.

    Raises:
        AssertionError: The value was still falsy after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(predicate, timeout_s, describe() if describe else value))
        await asyncio.sleep(_LOOK_AGAIN_S)
    return value


def wait_until_sync(
    predicate: Callable[[], T], timeout_s: float, describe: Callable[[], object] | None = None
) -> T:
    """Do what ``wait_until`` does, in a test without a loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(predicate, timeout_s, describe() if describe else value))
        time.sleep(_LOOK_AGAIN_S)
    return value
