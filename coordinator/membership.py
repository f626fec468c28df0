"""Pure. Which members are connected, and which are given up when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.model import Beat, Desired, GroupState, Pace
from coordinator.progress import Whereabouts
from coordinator.uptime import Birth
from drumbeat.deadlines import Deadlines


@dataclass(slots=True, kw_only=True)
class Presence:
    """One member's connection.

    ``session_id`` is ``None`` while the member has none, ``heard_at`` until it
    was heard in this life of the coordinator. ``pushed`` is the desired state
    that this session was sent last. ``master_port_spent`` is its latest port
    that a round has used. ``is_excused``: its silence was put down to a stall of
    the coordinator. ``whereabouts`` are those of its workers.
    """

    session_id: str | None = None
    heard_at: float | None = None
    beat: Beat = field(default_factory=lambda: Beat(state=GroupState.IDLE))
    pushed: Desired | None = None
    master_port_spent: int = 0
    birth: Birth = field(default_factory=Birth)
    is_excused: bool = False
    whereabouts: Whereabouts = field(default_factory=Whereabouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A member has to be given up. ``session_id`` is the session to end, if it has one."""

    incarnation: str
    session_id: str | None
    reason: str


class Membership:
    """Presences of a run's members, their leases and graces. Instants are one clock's.

    A member is ``connected`` (holds a session; its lease runs) or ``missed`` (its
    stream broke, or a restarted coordinator remembers it; its grace runs).
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.presences: dict[str, Presence] = {}
        self.connected: set[str] = set()
        self.missed: set[str] = set()
        self._deadlines: Deadlines[str] = Deadlines()

    def remember(self, incarnations: Iterable[str], *, until: float) -> None:
        """Expect members of an earlier life of the coordinator to come back."""
        for incarnation in incarnations:
            self.presences[incarnation] = Presence()
            self._miss(incarnation, until)

    def attach(self, incarnation: str, session_id: str, *, now: float) -> str | None:
        """Give a member a session; return the one it replaces, if any."""
        presence = self.presences.setdefault(incarnation, Presence())
        replaced, presence.session_id = presence.session_id, session_id
        presence.pushed = None
        self.connected.add(incarnation)
        self.missed.discard(incarnation)
        self._deadlines.set(incarnation, now + self.pace.lease_s)
        return replaced

    def detach(self, incarnation: str, session_id: str, *, until: float) -> bool:
        """Start the grace of a member whose stream broke; ``False`` if it has a newer one."""
        presence = self.presences.get(incarnation)
        if presence is None or presence.session_id != session_id:
            return False
        presence.session_id = None
        self._miss(incarnation, until)
        return True

    def current(self, incarnation: str, session_id: str) -> Presence | None:
        """Return the presence that holds this session, ``None`` if the session is stale."""
        presence = self.presences.get(incarnation)
        return presence if presence is not None and presence.session_id == session_id else None

    def heard(self, incarnation: str, beat: Beat, *, now: float) -> Presence:
        """Take a beat in and renew the lease."""
        presence = self.presences[incarnation]
        presence.heard_at, presence.beat, presence.is_excused = now, beat, False
        if beat.workers:
            presence.whereabouts.take(beat.round_id, beat.workers, now=now)
        self._deadlines.set(incarnation, now + self.pace.lease_s)
        return presence

    def sent_at(self, incarnation: str, uptime_s: float | None, *, now: float) -> float:
        """Return when a message that arrived ``now`` was sent, as far as can be told."""
        presence = self.presences.get(incarnation)
        if presence is None or uptime_s is None:
            return now
        presence.birth.sample(uptime_s, now=now)
        return presence.birth.instant(uptime_s)

    def forget(self, incarnation: str) -> None:
        """Drop what is known of a member."""
        self.presences.pop(incarnation, None)
        self.connected.discard(incarnation)
        self.missed.discard(incarnation)
        self._deadlines.clear(incarnation)

    def renew(self, *, now: float, grace_s: float = 0.0) -> None:
        """Give every connected member a full lease from now on, and the missed this grace.

        A longer time that somebody was given stays. Linear in members.
        """
        for incarnation, presence in self.presences.items():
            self._renew(incarnation, presence, now=now, grace_s=grace_s)

    def excuse(self, *, now: float, grace_s: float) -> None:
        """Renew those who may have spoken while nobody listened; each once in a silence.

        Otherwise a coordinator that is always late would never give anybody up.
        """
        for incarnation, presence in self.presences.items():
            if not presence.is_excused:
                presence.is_excused = True
                self._renew(incarnation, presence, now=now, grace_s=grace_s)

    def sessions(self) -> list[str]:
        """Return the sessions of all connected members, in a fixed order."""
        return sorted(p.session_id for p in self.presences.values() if p.session_id is not None)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        holders = {i for i, p in self.presences.items() if p.session_id is not None}
        assert holders == self.connected, "connected members are not those with sessions"
        assert not self.connected & self.missed, "connected and missed at once"

    def next_deadline(self) -> float | None:
        """Return when the next lease or grace is over."""
        return self._deadlines.next()

    def pop_expired(self, *, now: float) -> list[Expiry]:
        """Return the members whose lease or grace is over."""
        return [self._expiry(incarnation) for incarnation in self._deadlines.pop_due(now)]

    def _renew(self, incarnation: str, presence: Presence, *, now: float, grace_s: float) -> None:
        if presence.session_id is not None:
            self._deadlines.set(incarnation, now + self.pace.lease_s)
        elif (until := self._deadlines.get(incarnation)) is not None:
            self._deadlines.set(incarnation, max(until, now + grace_s))

    def _expiry(self, incarnation: str) -> Expiry:
        session_id = self.presences[incarnation].session_id
        if session_id is None:
            reason = "its connection broke and it did not come back"
        else:
            reason = f"nothing was heard of it for {self.pace.lease_s:g} s"
        return Expiry(incarnation=incarnation, session_id=session_id, reason=reason)

    def _miss(self, incarnation: str, until: float) -> None:
        self.connected.discard(incarnation)
        self.missed.add(incarnation)
        self._deadlines.set(incarnation, until)
