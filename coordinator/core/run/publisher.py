"""Pure. Who has to be told what to do, and is told only what is news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.core.effects import Direct, SetPace
from coordinator.core.membership.leases import Membership
from coordinator.core.model import Desired, Pace
from coordinator.core.phases.rendezvous import Wait
from coordinator.core.run.desired_state import desired_state
from coordinator.core.run.state import RunState


class Publisher:
    """Collects who may not know its desired state; ``effects`` then pushes what changed.

    Telling everyone costs time linear in members.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._untold: set[str] = set()
        self._is_for_all = False

    def one(self, incarnation: str) -> None:
        """Tell one member."""
        self._untold.add(incarnation)

    def some(self, incarnations: Iterable[str]) -> None:
        """Tell several members."""
        self._untold.update(incarnations)

    def everyone(self) -> None:
        """Tell all members."""
        self._is_for_all = True

    def pace(self, pace: Pace) -> list[SetPace]:
        """Give all members another pace, and return the pushes. Linear in members."""
        self._members.set_pace(pace)
        return [SetPace(session_id=i, pace=pace) for i in self._members.sessions()]

    def effects(
        self,
        state: RunState,
        wait: Wait | None,
        released: Mapping[str, str],
        *,
        now: float,
    ) -> list[Direct]:
        """Return what to push, and begin anew. ``released``: by the exit barrier, and why."""
        if not self._untold and not self._is_for_all:
            return []  # as after most events
        whom = list(self._members.presences) if self._is_for_all else sorted(self._untold)
        self._untold, self._is_for_all = set(), False
        pushes = (self._push(incarnation, state, wait, released, now) for incarnation in whom)
        return [push for push in pushes if push is not None]

    def _push(
        self,
        incarnation: str,
        state: RunState,
        wait: Wait | None,
        released: Mapping[str, str],
        now: float,
    ) -> Direct | None:
        presence = self._members.presences.get(incarnation)
        if presence is None or presence.session_id is None:
            return None
        present = self._members.present_count
        why = released.get(incarnation)
        wanted = desired_state(
            state, incarnation, wait=wait, present=present, released=why, now=now
        )
        desired = Desired(state=wanted, master_port_spent=presence.master_port_spent)
        if desired == presence.pushed:
            return None
        presence.pushed = desired
        return Direct(session_id=presence.session_id, desired=desired)
