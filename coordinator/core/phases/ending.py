"""Pure. A run that has failed: whom it still waits for before its verdict."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.core.membership.leases import Membership
from coordinator.core.run.policy import RunPolicy
from coordinator.core.run.state import RunState


class EndingWatch:
    """Notes which members still have live workers or failure records that are not in."""

    def __init__(
        self, state: RunState, members: Membership, policy: RunPolicy, *, now: float
    ) -> None:
        self._state = state
        self._members = members
        self._policy = policy
        self._unfinished: set[str] = set()
        self._since = now

    def begin(self, *, now: float) -> None:
        """Begin to wait. Linear in members."""
        self._since = now
        self._unfinished = {i for i in self._members.presences if not self._is_finished(i)}

    def resume(self) -> None:
        """Go on with the ending of an earlier life of the coordinator: all are missed."""
        self._unfinished = set(self._state.members)

    def note(self, incarnation: str) -> None:
        """Stop waiting for a member that has nothing left to stop or to say."""
        if self._is_finished(incarnation):
            self._unfinished.discard(incarnation)

    def forget(self, incarnation: str) -> None:
        """Stop waiting for a member that is given up."""
        self._unfinished.discard(incarnation)

    def review(self, unheard: Collection[str], *, now: float) -> float | None:
        """Return until when to wait at most, ``None`` if the verdict is due.

        ``unheard`` are participants that may have been lost before the failure.
        """
        until = self._since + self._state.spec.shutdown_timeout_s + self._policy.report_wait_s
        return until if (self._unfinished or unheard) and now < until else None

    def _is_finished(self, incarnation: str) -> bool:
        presence = self._members.presences.get(incarnation)
        if presence is None or presence.session_id is None:
            return presence is None
        heard = self._state.failures_heard.get(incarnation, 0)
        return presence.beat.workers_alive == 0 and heard >= presence.beat.failures_written


def verdict_wanted_until(state: RunState, policy: RunPolicy) -> float | None:
    """Return until when members of an ended run may come for the verdict; ``None`` if none can."""
    if not state.members or state.ended_at is None:
        return None
    return state.ended_at + state.spec.coordinator_grace_s + policy.restart_grace_s
