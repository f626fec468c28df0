"""Pure. How fast strangers are served: as fast as they like for a moment, then at one rate."""

from __future__ import annotations


class Pace:
    """A rate for all of them together, and how many may come at once before it counts."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._interval_s, self._burst_s = 1.0 / per_s, at_once / per_s
        self._due = float("-inf")

    def take(self, *, now: float) -> float:
        """Let one more come; return after how many seconds it is its turn."""
        self._due = max(self._due, now) + self._interval_s
        return max(0.0, self._due - self._burst_s - now)

    def give_back(self) -> None:
        """Let the next one have the turn of one that has gone before it."""
        self._due -= self._interval_s
