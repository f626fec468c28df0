"""Pure. A rate limit that allows a burst."""

from __future__ import annotations


class RateLimit:
    """Admits ``per_s`` a second, after a burst of ``at_once``."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._interval_s, self._burst_s = 1.0 / per_s, at_once / per_s
        self._due = float("-inf")

    def take(self, *, now: float) -> float:
        """Take the next turn; return in how many seconds it comes."""
        self._due = max(self._due, now) + self._interval_s
        return max(0.0, self._due - self._burst_s - now)

    def give_back(self) -> None:
        """Give back a turn whose request is gone."""
        self._due -= self._interval_s
