"""Pure. Who was silent when a round failed: perhaps lost before, and the cause of it."""

from __future__ import annotations

from coordinator.core.membership.leases import Membership
from coordinator.core.model import Round


class SilentAtFailure:
    """Participants not heard since the latest failure, each with the restarts charged meanwhile.

    If one of them turns out to be lost, the failure was perhaps a consequence of that,
    so its restarts are given back.
    """

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}

    def note(
        self, current: Round, members: Membership, *, since: float | None, charged: int
    ) -> None:
        """Note who is silent as a round that failed at ``since`` ends. Linear."""
        presences = members.presences
        silent = [
            i
            for i in current.seats.keys() & presences.keys()
            if since is not None and presences[i].silent_since < since
        ]
        self.charged = {i: self.charged.get(i, 0) + charged for i in silent}

    def heard(self, incarnation: str) -> None:
        """Take in that an agent lives."""
        self.charged.pop(incarnation, None)

    def take_back(self, incarnation: str) -> int | None:
        """Return the restarts that the loss of this agent gives back, once for all agents.

        ``None`` if it was heard after the latest failure.
        """
        returned = self.charged.get(incarnation)
        if returned is not None:
            self.charged.clear()
        return returned
