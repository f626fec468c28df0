"""Pure. How often the agents of a run beat: a matter of that run alone, and of its size."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.model import Pace

# More than two intervals fit into a lease, so that one late beat costs nothing.
INTERVAL_PER_LEASE_MAX = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRules:
    """Up to ``agents_at_base`` agents of a run keep the pace ``base``.

    With each doubling beyond it the reconnect delay doubles, and so does the
    interval, as far as the lease allows. The lease is the same at any size: a
    large run finds its silent hosts as fast as a small one.
    """

    base: Pace
    agents_at_base: int

    def stretch(self, agents: int, before: int = 1) -> int:
        """Return the factor for so many agents; one that was needed ``before`` is kept a while."""
        stretch = before
        while agents > self.agents_at_base * stretch:
            stretch *= 2
        while stretch > 1 and agents < self.agents_at_base * stretch // 4:
            stretch //= 2
        return stretch

    def pace(self, stretch: int) -> Pace:
        """Return the pace that is stretched by this factor."""
        base = self.base
        longest_s = max(base.heartbeat_interval_s, INTERVAL_PER_LEASE_MAX * base.lease_s)
        return Pace(
            heartbeat_interval_s=min(base.heartbeat_interval_s * stretch, longest_s),
            lease_s=base.lease_s,
            reconnect_delay_max_s=base.reconnect_delay_max_s * stretch,
        )
