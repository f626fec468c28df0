"""Pure. Which members are connected, how often they beat, and which are given up when."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from drumbeat.coordinator.core.effects import Direct
from drumbeat.coordinator.core.events import BeatReceived
from drumbeat.coordinator.core.membership.load import Load
from drumbeat.coordinator.core.model import AgentIdentity, Beat, FailureRecord
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.observe.observer import Observer
from drumbeat.coordinator.observe.steps.worker_progress import Whereabouts
from drumbeat.deadlines import Deadlines
from drumbeat.model import GpuUse, GroupState, Health, HealthState, Standby

# How many heartbeat intervals a member may be silent before it is suspect: one beat
# is late now and then, and what waits for a suspect waits no longer than needed.
SUSPECT_INTERVALS = 1.5
# More than two intervals fit into a lease, so that one late beat costs nothing.
INTERVAL_PER_LEASE_MAX = 0.4
# Those who wait in a large run beat so much less often, but at least once in two leases. Hosts
# that die meanwhile are found by their connections.
WAITING_INTERVALS = 2
# Members that come back together, as to a coordinator that was restarted, have up to so many times
# as long, or so long for each of them, if it takes that long to let them all in: 10,000 took two
# minutes on two slow cores.
RETURN_GRACES_MAX = 4
RETURN_S = 0.02
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
        self._at = self._at_before = math.inf

    def instant(self, uptime_s: float, *, now: float) -> float:
        """Return when a message was sent that has this uptime and arrives ``now``."""
        if now - self._since > WINDOW_S:
            self._since, self._at_before, self._at = now, self._at, math.inf
        self._at = min(self._at, now - uptime_s)
        return min(self._at, self._at_before) + uptime_s


@dataclass(slots=True, kw_only=True)
class Presence:
    """One member's connection."""

    session_id: str | None = None
    heard_at: float | None = None  # in this life of the coordinator
    silent_since: float = 0.0  # it was heard or opened its session
    # End of the grace of a broken stream. It holds until a beat follows a hello, for one that had
    # to wait until it was read says nothing of now.
    missed_until: float = 0.0
    # Until that beat: whether its grace ends sooner once others have come back to a new leader.
    is_prompt: bool = False
    # Until that beat: whether many come back with it, which takes as long as it takes.
    is_among_many: bool = False
    # By then: how long the coordinator had stood still, and was given to read what had come.
    stalled_before: float = 0.0
    read_before: float = 0.0
    beat: Beat = field(default_factory=lambda: Beat(state=GroupState.IDLE))
    pushed: Direct | None = None  # what this session was sent last
    master_port_spent: int = 0  # its latest port that a round has used
    version: str = ""  # of which readers are told, with the labels
    labels: dict[str, str] = field(default_factory=dict)
    devices: str = ""
    birth: Birth = field(default_factory=Birth)
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    failure: FailureRecord | None = None  # the latest that a beat told in short
    gpus: GpuUse | None = None  # what they did last; None: not known

    @property
    def is_waiting(self) -> bool:
        """Whether it stands by, holds no workers, and so may be silent for longer."""
        is_told = self.pushed is not None and isinstance(self.pushed.state, Standby)
        return is_told and self.beat.state is GroupState.IDLE


class RunMembers:
    """Presences of a run's members, their leases and graces. Instants are one clock's.

    A member is ``connected`` (holds a session; its lease runs) or ``missed`` (its
    stream broke, or a restarted coordinator remembers it; its grace runs). A
    connected member that was silent for ``SUSPECT_INTERVALS`` is one of the
    ``suspects``, until it is heard or its lease ends: perhaps its machine is dead. Of the
    ``unfit`` the latest beat says that health checks run on their hosts, or have failed.

    Time for which the coordinator stood still counts in no silence, because beats
    could not be read. Nor does some time to read what has come meanwhile, up to a
    lease in one silence: one that is always late would never give a member up.
    """

    def __init__(self, policy: Policy, *, agents: int = 0, load: Load | None = None) -> None:
        self.load = load or Load(policy)
        self._policy = policy
        self._stretch, self._load_stretch = 1, self.load.stretch
        self._set_pace()
        self._is_pace_new = False
        self.observer = Observer()
        self.presences: dict[str, Presence] = {}
        self.connected: set[str] = set()
        self.suspects: set[str] = set()
        self.missed: set[str] = set()
        self.unfit: dict[str, Health] = {}  # connected members, in the order in which they became
        self.unhealthy_count = 0  # of them, those of which a check has failed
        self.changed: dict[str, None] = {}  # whose place in the sets above is another one
        self.latest_arrival = 0.0  # when the latest member was admitted
        self._deadlines: Deadlines[str] = Deadlines()
        self._stalled_s = 0.0
        self._reading_s = 0.0
        self._rejoined_at: float | None = None  # the latest to come back to a new leader
        self._returned_at = -math.inf  # the latest missed member to come back
        self.follow(agents, now=0.0)

    def follow(self, agents: int, *, now: float) -> bool:
        """Take in how many agents the run has; return whether they beat at another pace now.

        With each doubling beyond ``agents_at_base_pace`` the reconnect delay doubles, and so
        does the interval, as far as the lease allows. The lease is the same at any size: a
        large run finds its silent hosts as fast as a small one. Only those who wait beat less
        often than that, and have longer. A stretched pace is tightened only when most agents have
        gone, so that a few who come and go change nothing. Beyond that `Load` stretches the
        interval and the lease of all runs.
        """
        stretch, room = self._stretch, self._policy.agents_at_base_pace * self._stretch
        while agents > room:
            stretch, room = stretch * 2, room * 2
        while stretch > 1 and agents < room // 4:
            stretch, room = stretch // 2, room // 2
        self._change_pace(stretch, now=now)
        is_new, self._is_pace_new = self._is_pace_new, False
        return is_new

    @property
    def present_count(self) -> int:
        """How many members can be seated now."""
        if self.suspects and self.unfit:
            return len(self.connected) - len(self.suspects.union(self.unfit))
        return len(self.connected) - len(self.suspects) - len(self.unfit)

    @property
    def met_count(self) -> int:
        """How many members had a session in this life of the coordinator. Linear in members."""
        return sum(presence.silent_since > 0.0 for presence in self.presences.values())

    @property
    def return_max_s(self) -> float:
        """How long members have at most that come back together."""
        grace_s = self._policy.return_grace_s(self.pace)
        return max(RETURN_GRACES_MAX * grace_s, grace_s + RETURN_S * len(self.presences))

    def returned_at(self, incarnations: Container[str]) -> float:
        """Return until when those of these who are to come back with many have; 0: all have.

        It may be later once that has come. Linear.
        """
        missed = (i for i in self.missed if i in incarnations and self.presences[i].is_among_many)
        return max((self._deadlines.of(i) or 0.0 for i in missed), default=0.0)

    def is_present(self, incarnation: str) -> bool:
        """Return whether a member can be seated now: connected, heard of late, and fit."""
        is_absent = incarnation in self.suspects or incarnation in self.unfit
        return incarnation in self.connected and not is_absent

    def is_available(self, incarnation: str) -> bool:
        """Return whether a member is present, or will be unless its health checks fail."""
        health = self.unfit.get(incarnation)
        is_unhealthy = health is not None and health.state is HealthState.UNHEALTHY
        return (
            incarnation in self.connected and incarnation not in self.suspects and not is_unhealthy
        )

    def take_over(self, agents: Mapping[str, AgentIdentity], *, now: float) -> None:
        """Wait for all members of a journal, as `Policy.return_grace_s` and `rejoin_s` say."""
        self.expect(agents, until=now + self._policy.return_grace_s(self.pace))
        for incarnation, agent in agents.items():
            is_prompt = self._policy.is_successor and agent.knows_several
            self.presences[incarnation].is_prompt = is_prompt

    def expect(self, incarnations: Iterable[str], *, until: float) -> None:
        """Give members without a session this long to come back, unless they have longer."""
        for incarnation in incarnations:
            presence = self.presences.setdefault(incarnation, Presence())
            presence.is_prompt, presence.is_among_many = False, True
            self._miss(incarnation, presence, max(until, presence.missed_until))

    def directed(self, incarnation: str, push: Direct, *, now: float) -> None:
        """Note what a member's session is sent. One that is to work has its lease from ``now``."""
        presence = self.presences[incarnation]
        was_waiting, presence.pushed = presence.is_waiting, push
        is_slow = was_waiting and self.pace.waiting_interval_s > 0.0
        if is_slow and not presence.is_waiting and incarnation not in self.suspects:
            self._restart_lease(incarnation, presence, now)

    def attach(self, incarnation: str, session_id: str, *, now: float) -> str | None:
        """Give a member a session; return the one it replaces, if any."""
        presence = self.presences.setdefault(incarnation, Presence())
        replaced, presence.session_id = presence.session_id, session_id
        presence.pushed = None
        self.connected.add(incarnation)
        self.changed[incarnation] = None
        if incarnation in self.missed:
            self.missed.remove(incarnation)
            self._returned_at = now
        if presence.is_prompt:
            self._rejoined(now)
        self._restart_lease(incarnation, presence, now)
        return replaced

    def detach(self, incarnation: str, session_id: str, *, until: float) -> bool:
        """Start the grace of a member whose stream broke; ``False`` if it has a newer one."""
        presence = self.current(incarnation, session_id)
        if presence is None:
            return False
        presence.session_id = None
        self._miss(incarnation, presence, max(until, presence.missed_until))
        return True

    def current(self, incarnation: str, session_id: str) -> Presence | None:
        """Return the presence that holds this session, ``None`` if the session is stale."""
        presence = self.presences.get(incarnation)
        return presence if presence is not None and presence.session_id == session_id else None

    def heard(
        self, incarnation: str, beat: Beat, *, sent_at: float, now: float, is_hello: bool = False
    ) -> Presence:
        """Take a beat in and renew the lease."""
        presence = self.presences[incarnation]
        presence.heard_at, presence.beat = now, beat.compared()
        self._judge(incarnation, beat.health)
        if not is_hello:
            presence.missed_until = 0.0
            presence.is_prompt = presence.is_among_many = False
        if beat.workers:
            presence.whereabouts.take(beat.round_id, beat.workers, now=sent_at)
        if beat.gpus is not None:
            presence.gpus = beat.gpus
        if beat.pids:
            presence.whereabouts.take_pids(beat.round_id, beat.pids)
        self._restart_lease(incarnation, presence, now)
        self.observer.heard(incarnation, beat, sent_at=sent_at, now=now)
        return presence

    def take_quietly(self, event: BeatReceived, *, awaited: Container[str], now: float) -> bool:
        """Take in a beat that repeats the one before it; return whether it was one.

        A word of those who are ``awaited`` is news.
        """
        presence = self.current(event.incarnation, event.session_id)
        if presence is None or event.incarnation in self.suspects or event.incarnation in awaited:
            return False
        if not event.beat.repeats(presence.beat) or self.observer.is_due(now):
            return False
        sent_at = self.sent_at(event.incarnation, event.uptime_s, now=now)
        self.heard(event.incarnation, event.beat, sent_at=sent_at, now=now)
        return True

    def sent_at(self, incarnation: str, uptime_s: float | None, *, now: float) -> float:
        """Return when a message that arrived ``now`` was sent, as far as can be told."""
        presence = self.presences.get(incarnation)
        if presence is None or uptime_s is None:
            return now
        return presence.birth.instant(uptime_s, now=now)

    def forget(self, incarnation: str) -> None:
        """Drop what is known of a member."""
        self.presences.pop(incarnation, None)
        self.observer.forget(incarnation)
        self._judge(incarnation, None)
        for group in (self.connected, self.suspects, self.missed):
            group.discard(incarnation)
        self.changed[incarnation] = None
        self._deadlines.clear(incarnation)

    def stood_still(self, seconds: float) -> None:
        """Take in that the coordinator read nothing for so long, and deadlines passed.

        Reading what waits takes as much again, but no more than a member needs for a beat.
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
        assert self.unfit.keys() <= self.connected, "unfit without a session"
        unhealthy = [h for h in self.unfit.values() if h.state is HealthState.UNHEALTHY]
        assert len(unhealthy) == self.unhealthy_count, "unhealthy members are not counted"
        self.observer.check_invariants()

    def next_deadline(self) -> float | None:
        """Return when the next member becomes suspect or is given up."""
        return self._deadlines.next()

    def pop_expired(self, *, now: float) -> list[str]:
        """Return the members whose lease or grace is over; note who has become suspect."""
        self.load.ease(now=now)
        self._change_pace(self._stretch, now=now)
        return [
            incarnation
            for incarnation in self._deadlines.pop_due(now)
            if self._is_over(incarnation, now)
        ]

    def why_over(self, incarnation: str) -> str:
        """Say why a member is given up that `pop_expired` returned."""
        presence = self.presences[incarnation]
        if presence.session_id is not None:
            return f"nothing was heard of it for {self._patience(presence)[1]:g} s"
        if presence.is_prompt and self._rejoined_at is not None:
            return "it did not come back to the new leader, as other agents did"
        return "its connection broke and it did not come back"

    def _set_pace(self) -> None:
        base, stretch = self._policy.base_pace, self._stretch
        longest_s = max(base.heartbeat_interval_s, INTERVAL_PER_LEASE_MAX * base.lease_s)
        interval_s = min(base.heartbeat_interval_s * stretch, longest_s) * self._load_stretch
        waiting_s = min(WAITING_INTERVALS * stretch * base.heartbeat_interval_s, 2 * base.lease_s)
        self.pace = replace(
            base,
            heartbeat_interval_s=interval_s,
            lease_s=base.lease_s * self._load_stretch,
            reconnect_delay_max_s=base.reconnect_delay_max_s * stretch,
            waiting_interval_s=max(waiting_s, interval_s) if stretch > 1 else 0.0,
        )
        self._suspect_s = min(SUSPECT_INTERVALS * interval_s, self.pace.lease_s)

    def _change_pace(self, stretch: int, *, now: float) -> None:
        """Set the pace for a run of this size, and for the load of the coordinator."""
        before = self._stretch, self._load_stretch
        self._stretch, self._load_stretch = stretch, self.load.stretch
        if (self._stretch, self._load_stretch) == before:
            return
        self._set_pace()
        self._is_pace_new = True
        is_faster = self._stretch * self._load_stretch < math.prod(before)
        for incarnation in self.connected - self.suspects if is_faster else ():
            # Silent at the former pace, which was slower.
            self._restart_lease(incarnation, self.presences[incarnation], now)

    def _patience(self, presence: Presence) -> tuple[float, float]:
        """Return after which silences a connected member is suspect, and is given up."""
        waiting_s = self.pace.waiting_interval_s
        if not waiting_s or not presence.is_waiting:
            return self._suspect_s, self.pace.lease_s
        lease_s = max(waiting_s / INTERVAL_PER_LEASE_MAX, self.pace.lease_s)
        return min(SUSPECT_INTERVALS * waiting_s, lease_s), lease_s

    def _restart_lease(self, incarnation: str, presence: Presence, now: float) -> None:
        presence.silent_since = now
        presence.stalled_before, presence.read_before = self._stalled_s, self._reading_s
        if incarnation in self.suspects:
            self.suspects.remove(incarnation)
            self.changed[incarnation] = None
        self._deadlines.set(incarnation, now + self._suspect_s)

    def _judge(self, incarnation: str, health: Health | None) -> None:
        """Note whether a member may be seated, as its host says."""
        before = self.unfit.get(incarnation)
        if before != health:
            self.changed[incarnation] = None
        self.unhealthy_count -= before is not None and before.state is HealthState.UNHEALTHY
        if health is None or health.state is HealthState.HEALTHY:
            self.unfit.pop(incarnation, None)
            return
        self.unfit[incarnation] = health
        self.unhealthy_count += health.state is HealthState.UNHEALTHY

    def _miss(self, incarnation: str, presence: Presence, until: float) -> None:
        presence.missed_until = until
        presence.stalled_before, presence.read_before = self._stalled_s, self._reading_s
        self.connected.discard(incarnation)
        self.suspects.discard(incarnation)
        self._judge(incarnation, None)
        self.changed[incarnation] = None
        self.missed.add(incarnation)
        self._deadlines.set(incarnation, self._grace_end(presence))

    def _rejoined(self, now: float) -> None:
        """Note that a member has come back to a new leader; the others are to follow soon."""
        is_first, self._rejoined_at = self._rejoined_at is None, now
        for incarnation in self.missed if is_first else ():
            self._deadlines.set(incarnation, self._grace_end(self.presences[incarnation]))

    def _grace_end(self, presence: Presence) -> float:
        """Return when the grace of a missed member ends, as others have come back so far.

        Together with others it is not given up while the coordinator still lets them in.
        """
        until, rejoin_s = presence.missed_until, self._policy.rejoin_s(self.pace)
        if presence.is_prompt and self._rejoined_at is not None:
            return min(until, self._rejoined_at + rejoin_s)
        if presence.is_among_many and self._returned_at > until - rejoin_s:
            grace_s = self._policy.return_grace_s(self.pace)
            latest = until - grace_s + self.return_max_s
            until = max(until, min(latest, self._returned_at + grace_s))
        return until

    def _is_over(self, incarnation: str, now: float) -> bool:
        """Return whether a member has to be given up; wait on if not."""
        presence = self.presences[incarnation]
        deaf_s = self._stalled_s - presence.stalled_before
        deaf_s += min(self._reading_s - presence.read_before, self.pace.lease_s)
        until = self._grace_end(presence)
        if presence.session_id is not None:
            suspect_s, lease_s = self._patience(presence)
            until = presence.silent_since + suspect_s
            if now >= until + deaf_s:
                self.suspects.add(incarnation)
                self.changed[incarnation] = None
            if incarnation in self.suspects:
                until = presence.silent_since + lease_s
            if now >= until + deaf_s and self.load.explains_silence(now=now):
                self._change_pace(self._stretch, now=now)
                until = presence.silent_since + self._patience(presence)[1]
        if now >= until + deaf_s:
            return True
        self._deadlines.set(incarnation, until + deaf_s)
        return False
