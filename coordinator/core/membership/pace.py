"""Pure. How often the agents of a run beat: a matter of that run alone, and of its size."""

from __future__ import annotations

from coordinator.core.model import Pace
from coordinator.core.policy import Policy

# More than two intervals fit into a lease, so that one late beat costs nothing.
INTERVAL_PER_LEASE_MAX = 0.4


class RunPace:
    """The pace of one run, as its agents come and go.

    Up to ``agents_at_base_pace`` agents keep ``base_pace``. With each doubling beyond it
    the reconnect delay doubles, and so does the interval, as far as the lease allows. The
    lease is the same at any size: a large run finds its silent hosts as fast as a small one.
    A pace that is stretched is tightened only when most agents have gone, so that a few
    who come and go change nothing.
    """

    def __init__(self, policy: Policy, *, agents: int) -> None:
        self._policy = policy
        self._stretch = 1
        self.follow(agents)

    @property
    def pace(self) -> Pace:
        """What holds now."""
        base, stretch = self._policy.base_pace, self._stretch
        longest_s = max(base.heartbeat_interval_s, INTERVAL_PER_LEASE_MAX * base.lease_s)
        return Pace(
            heartbeat_interval_s=min(base.heartbeat_interval_s * stretch, longest_s),
            lease_s=base.lease_s,
            reconnect_delay_max_s=base.reconnect_delay_max_s * stretch,
        )

    def follow(self, agents: int) -> bool:
        """Take in how many agents there are; return whether they need another pace."""
        before, room = self._stretch, self._policy.agents_at_base_pace * self._stretch
        while agents > room:
            self._stretch, room = self._stretch * 2, room * 2
        while self._stretch > 1 and agents < room // 4:
            self._stretch, room = self._stretch // 2, room // 2
        return self._stretch != before
