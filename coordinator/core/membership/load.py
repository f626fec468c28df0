"""Pure. Whether members seem silent because the coordinator can't read as much as all of them say.

The connection of a dead host breaks within 0.9 of the lease. So if many members are silent for a
lease while their connections hold, their beats wait to be read. To give them up would restart
their work, and their return would cost even more than their beats.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from drumbeat.coordinator.core.policy import Policy

# Steps of a pace that became too fast again are held for twice as long, up to this.
HELD_MAX_S = 3600.0


class Load:
    """How many times as long intervals and leases are while all members together say too much.

    It doubles when a lease ends while many are suspect, and halves after some time. Instants are
    one clock's.
    """

    def __init__(self, policy: Policy) -> None:
        self.count_members: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns how many members of all runs are suspect, and how many are connected."""
        self.stretch = 1
        self._policy, self._held_s = policy, policy.stretch_held_s
        self._eases_at = math.inf
        self._has_eased = False

    def explains_silence(self, *, now: float) -> bool:
        """Return whether the coordinator is behind, now that a member was silent for a lease.

        If so, all have longer from now on.
        """
        if self.stretch >= self._policy.stretch_max:
            return False
        suspect, connected = self.count_members()
        if suspect < max(self._policy.behind_min, self._policy.behind_share * connected):
            return False
        if self._has_eased:
            self._held_s, self._has_eased = min(2 * self._held_s, HELD_MAX_S), False
        self.stretch, self._eases_at = 2 * self.stretch, now + self._held_s
        return True

    def ease(self, *, now: float) -> None:
        """Take half of it back, once it has held for long enough."""
        if now >= self._eases_at:
            self.stretch, self._has_eased = self.stretch // 2, True
            self._eases_at = now + self._held_s if self.stretch > 1 else math.inf
