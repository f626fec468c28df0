"""Pure. When something happened on a host, on the coordinator's clock, however late it is told."""

from __future__ import annotations

import math

# Two clocks drift apart by some 20 µs a second: older messages must not count,
# and among those of this long there is one that was quick.
WINDOW_S = 30.0


class Birth:
    """The instant at which an agent began, as its quickest messages of late tell it.

    A message says how long its agent has been running. Whatever it took on its
    way makes the agent seem younger, so the earliest instant is the closest.
    """

    def __init__(self) -> None:
        self._since = -math.inf
        self._at = math.inf
        self._at_before = math.inf

    def sample(self, uptime_s: float, *, now: float) -> None:
        """Take in that a message which arrived at ``now`` was sent at this uptime."""
        if now - self._since > WINDOW_S:
            self._since, self._at_before, self._at = now, self._at, math.inf
        self._at = min(self._at, now - uptime_s)

    def instant(self, uptime_s: float) -> float:
        """Return when the agent had this uptime. There must have been a sample."""
        return min(self._at, self._at_before) + uptime_s
