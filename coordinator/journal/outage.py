"""Pure. An outage of the journal: when to retry, and when to log it."""

from __future__ import annotations

# The first retry comes soon. Later ones are spread out, up to a delay that is short compared to the
# time it takes to make room on a disk.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
# An outage is logged again after this time, then after twice that, and so on.
REMIND_FIRST_S = 60.0


class Outage:
    """One outage, from the first write that failed. ``now`` is seconds of one clock."""

    def __init__(self, *, now: float) -> None:
        self.reason = ""
        self._began_at = now
        self._retry_s = RETRY_FIRST_S
        self._remind_after_s = REMIND_FIRST_S

    def failed(self, reason: str, *, now: float) -> bool:
        """Handle a failure; return whether to log it."""
        is_news, self.reason = reason != self.reason, reason
        is_due = self.lasted_s(now=now) >= self._remind_after_s
        if is_due:
            self._remind_after_s *= 2
        return is_news or is_due

    def next_retry_s(self) -> float:
        """Return how long to wait before the next try."""
        delay, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return delay

    def lasted_s(self, *, now: float) -> float:
        """Return how long it has lasted."""
        return now - self._began_at
