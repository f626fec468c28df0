"""Shell. Counts what callers hold of something that is limited, in all and each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from drumbeat.coordinator.core.tokens.caller import TRUSTED, Caller
from drumbeat.coordinator.errors import LimitReached
from drumbeat.coordinator.limits import Limits


class Shares:
    """Bounds one thing by ``<what>_max`` and ``<what>_per_caller_max`` of the limits.

    Callers that are not authenticated are not told apart: only the first one bounds them.
    """

    def __init__(self, what: str, limits: Limits) -> None:
        self._all, self._of_one = f"{what}_max", f"{what}_per_caller_max"
        self._most: int = getattr(limits, self._all)
        self._most_of_one: int = getattr(limits, self._of_one)
        self._held = Counter[str]()

    @contextmanager
    def held(self, caller: Caller) -> Iterator[None]:
        """Count one more of a caller while the context is open. Raises ``LimitReached``."""
        if self._held.total() >= self._most:
            raise LimitReached(self._all, self._most)
        if caller != TRUSTED and self._held[caller.name] >= self._most_of_one:
            raise LimitReached(self._of_one, self._most_of_one)
        self._held[caller.name] += 1
        try:
            yield
        finally:
            self._held[caller.name] -= 1
            if not self._held[caller.name]:
                del self._held[caller.name]
