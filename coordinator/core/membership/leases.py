"""Pure. Which members are connected, and which are given up when."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from coordinator.core.events import BeatReceived
from coordinator.core.membership.clock_offset import Birth
from coordinator.core.model import Beat, Desired, FailureRecord, GroupState, Pace
from coordinator.core.progress.worker_progress import Whereabouts
from drumbeat.deadlines import Deadlines

# How many heartbeat intervals a member may be silent before it is suspect: one beat
# is late now and then, and what waits for a suspect waits no longer than needed.
SUSPECT_INTERVALS = 1.5


@dataclass(slots=True, kw_only=True)
class Presence:
    """One member's connection.

    ``session_id`` is ``None`` while the member has none, ``heard_at`` until it
    was heard in this life of the coordinator. ``silent_since`` is when it was last
    heard or opened its session, ``missed_until`` when the grace of a broken stream
    ends. ``stalled_before`` is how long the coordinator had stood still by then, and
    ``read_before`` what it was given to read what had come.
    ``pushed`` is the desired state that this session was sent last.
    ``master_port_spent`` is its latest port that a round has used. ``whereabouts``
    are those of its workers. ``failure`` is the latest that a beat told in short,
    placed on the coordinator's clock.
    """

    session_id: str | None = None
    heard_at: float | None = None
    silent_since: float = 0.0
    missed_until: float = 0.0
    stalled_before: float = 0.0
    read_before: float = 0.0
    beat: Beat = field(default_factory=lambda: Beat(state=GroupState.IDLE))
    pushed: Desired | None = None
    master_port_spent: int = 0
    birth: Birth = field(default_factory=Birth)
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    failure: FailureRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A member has to be given up. ``session_id`` is the session to end, if it has one."""

    incarnation: str
    session_id: str | None
    reason: str


class Membership:
    """Presences of a run's members, their leases and graces. Instants are one clock's.

    A member is ``connected`` (holds a session; its lease runs) or ``missed`` (its
    stream broke, or a restarted coordinator remembers it; its grace runs). A
    connected member that was silent for ``SUSPECT_INTERVALS`` is one of the
    ``suspects``, until it is heard or its lease ends: perhaps its machine is dead.

    Time for which the coordinator stood still counts in no silence, because beats
    could not be read. Nor does some time to read what has come meanwhile, up to a
    lease in one silence: one that is always late would never give a member up.
    """

    def __init__(self, pace: Pace) -> None:
        self.set_pace(pace)
        self.presences: dict[str, Presence] = {}
        self.connected: set[str] = set()
        self.suspects: set[str] = set()
        self.missed: set[str] = set()
        self.latest_arrival = 0.0
        """When the latest member was admitted."""
        self._deadlines: Deadlines[str] = Deadlines()
        self._stalled_s = 0.0
        self._reading_s = 0.0

    def set_pace(self, pace: Pace) -> None:
        """Let this pace hold from each member's next beat on."""
        self.pace = pace
        self._suspect_s = min(SUSPECT_INTERVALS * pace.heartbeat_interval_s, pace.lease_s)

    @property
    def present_count(self) -> int:
        """How many members can be seated now."""
        return len(self.connected) - len(self.suspects)

    def is_present(self, incarnation: str) -> bool:
        """Return whether a member can be seated now: connected, and heard of late."""
        return incarnation in self.connected and incarnation not in self.suspects

    def remember(self, incarnations: Iterable[str], *, until: float) -> None:
        """Expect members of an earlier life of the coordinator to come back."""
        for incarnation in incarnations:
            self.presences[incarnation] = Presence()
            self._miss(incarnation, until)

    def expect_missed(self, *, until: float) -> None:
        """Give the missed this long, unless they have longer. Linear in them."""
        for incarnation in self.missed:
            presence = self.presences[incarnation]
            presence.missed_until = max(presence.missed_until, until)
            self._deadlines.set(incarnation, presence.missed_until)

    def attach(self, incarnation: str, session_id: str, *, now: float) -> str | None:
        """Give a member a session; return the one it replaces, if any."""
        presence = self.presences.setdefault(incarnation, Presence())
        replaced, presence.session_id = presence.session_id, session_id
        presence.pushed = None
        self.connected.add(incarnation)
        self.missed.discard(incarnation)
        self._restart_lease(incarnation, presence, now)
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
        presence.heard_at, presence.beat = now, beat
        if beat.workers:
            presence.whereabouts.take(beat.round_id, beat.workers, now=now)
        self._restart_lease(incarnation, presence, now)
        return presence

    def take_quietly(self, event: BeatReceived, *, awaited: Container[str], now: float) -> bool:
        """Take in a beat that repeats the one before it, and return whether it was one.

        Nothing follows from it but that its agent is alive; a word of those who are
        ``awaited`` is news.
        """
        presence = self.current(event.incarnation, event.session_id)
        if presence is None or event.incarnation in self.suspects or event.incarnation in awaited:
            return False
        if not event.beat.repeats(presence.beat):
            return False
        self.sent_at(event.incarnation, event.uptime_s, now=now)
        self.heard(event.incarnation, event.beat, now=now)
        return True

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
        self.suspects.discard(incarnation)
        self.missed.discard(incarnation)
        self._deadlines.clear(incarnation)

    def stood_still(self, seconds: float) -> None:
        """Take in that the coordinator read nothing for so long, and deadlines passed.

        What waits to be read takes time as well: as much again, but no more than
        a member needs for its next beat.
        """
        self._stalled_s += seconds
        self._reading_s += min(seconds, self._suspect_s)

    def sessions(self) -> list[str]:
        """Return the sessions of all connected members, in a fixed order."""
        return sorted(p.session_id for p in self.presences.values() if p.session_id is not None)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        holders = {i for i, p in self.presences.items() if p.session_id is not None}
        assert holders == self.connected, "connected members are not those with sessions"
        assert not self.connected & self.missed, "connected and missed at once"
        assert self.suspects <= self.connected, "suspect without a session"

    def next_deadline(self) -> float | None:
        """Return when the next member becomes suspect or is given up."""
        return self._deadlines.next()

    def pop_expired(self, *, now: float) -> list[Expiry]:
        """Return the members whose lease or grace is over; note who has become suspect."""
        due = self._deadlines.pop_due(now)
        return [self._expiry(incarnation) for incarnation in due if self._is_over(incarnation, now)]

    def _restart_lease(self, incarnation: str, presence: Presence, now: float) -> None:
        presence.silent_since = now
        presence.stalled_before, presence.read_before = self._stalled_s, self._reading_s
        self.suspects.discard(incarnation)
        self._deadlines.set(incarnation, now + self._suspect_s)

    def _is_over(self, incarnation: str, now: float) -> bool:
        """Return whether a member has to be given up; wait on if not."""
        presence = self.presences[incarnation]
        deaf_s = self._stalled_s - presence.stalled_before
        deaf_s += min(self._reading_s - presence.read_before, self.pace.lease_s)
        if presence.session_id is None:
            until = presence.missed_until
        else:
            if now >= presence.silent_since + self._suspect_s + deaf_s:
                self.suspects.add(incarnation)
            is_suspect = incarnation in self.suspects
            patience_s = self.pace.lease_s if is_suspect else self._suspect_s
            until = presence.silent_since + patience_s
        if now >= until + deaf_s:
            return True
        self._deadlines.set(incarnation, until + deaf_s)
        return False

    def _expiry(self, incarnation: str) -> Expiry:
        session_id = self.presences[incarnation].session_id
        if session_id is None:
            reason = "its connection broke and it did not come back"
        else:
            reason = f"nothing was heard of it for {self.pace.lease_s:g} s"
        return Expiry(incarnation=incarnation, session_id=session_id, reason=reason)

    def _miss(self, incarnation: str, until: float) -> None:
        presence = self.presences[incarnation]
        presence.missed_until = until
        presence.stalled_before, presence.read_before = self._stalled_s, self._reading_s
        self.connected.discard(incarnation)
        self.suspects.discard(incarnation)
        self.missed.add(incarnation)
        self._deadlines.set(incarnation, until)
