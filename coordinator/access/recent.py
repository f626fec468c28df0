"""Shell. What happened lately, in memory, as messages that tell their age."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

ENTRIES_MAX = 500  # the latest


class Recent:
    """The latest messages. They have a field ``age``."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Any]] = deque(maxlen=ENTRIES_MAX)

    def add(self, message: Any) -> None:
        """Add what happened now."""
        self._kept.append((time.monotonic_ns(), message))

    def __iter__(self) -> Iterator[Any]:
        now = time.monotonic_ns()
        for at, message in self._kept:
            message.age.FromNanoseconds(now - at)
            yield message
