"""Pure. How often the agents of a run beat: a matter of that run alone, and of its size."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model import Pace

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

    def pace(self, stretch: int) -> Pace:
        """Return the pace that is stretched by this factor."""
        base = self.base
        longest_s = max(base.heartbeat_interval_s, INTERVAL_PER_LEASE_MAX * base.lease_s)
        return Pace(
            heartbeat_interval_s=min(base.heartbeat_interval_s * stretch, longest_s),
            lease_s=base.lease_s,
            reconnect_delay_max_s=base.reconnect_delay_max_s * stretch,
        )


class RunPace:
    """The pace of one run, as its agents come and go.

    One that is stretched is tightened only when most of them have gone, so that a
    few who come and go change nothing.
    """

    def __init__(self, rules: PaceRules, *, agents: int) -> None:
        self._rules = rules
        self._stretch = 1
        self.pace = rules.pace(1)
        self.follow(agents)

    def follow(self, agents: int) -> Pace | None:
        """Return the new pace if so many agents need another."""
        room = self._rules.agents_at_base * self._stretch
        before = self._stretch
        while agents > room:
            self._stretch, room = self._stretch * 2, room * 2
        while self._stretch > 1 and agents < room // 4:
            self._stretch, room = self._stretch // 2, room // 2
        if self._stretch == before:
            return None
        self.pace = self._rules.pace(self._stretch)
        return self.pace
