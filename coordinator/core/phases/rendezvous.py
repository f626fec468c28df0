"""Pure. When a round closes: the one question every gathering asks."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from drumbeat.coordinator.core.model import RunSpec, VerdictCause
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.text.format import are, count

# Agents that lost their connection a moment ago, or are silent, are waited for, but
# among many there is always one; they don't hold a round up for longer than this.
AWAITED_MAX_S = 30.0
# Health checks are awaited for the time of a last call, and for this long if that is shorter: else
# a host that failed and is healthy would miss the next round by a moment.
CHECKS_AWAITED_MIN_S = 1.0


@dataclass(slots=True, kw_only=True)
class Rendezvous:
    """What counts for closing a round. Instants are the coordinator's clock."""

    since: float
    agents_present: int = 0  # hold a session and were heard of late
    agents_missed: int = 0  # lost theirs so recently that they may be back at once
    agents_suspect: int = 0  # hold one but are silent
    agents_checking: int = 0  # hold one, and run their health checks
    unfit: str = ""  # which agents check their health or are unhealthy, and why; blocks that wait
    latest_arrival: float = 0.0
    quorum_since: float | None = None  # None: too few are connected
    is_reforming: bool = False  # a round has just ended, and no new agent is expected


class Wait(Struct, frozen=True, kw_only=True):
    """Not yet; look again at ``until`` if nothing happens before (``None``: never)."""

    reason: str
    agents_wanted: int
    until: float | None


class GiveUp(Struct, frozen=True):
    """The join timeout is over."""

    reason: str
    cause: VerdictCause = VerdictCause.AGENTS_MISSING


def close_round(spec: RunSpec, gathering: Rendezvous, *, now: float) -> str | Wait | GiveUp:
    """Decide whether the round can close at ``now``; a string says why it does.

    Closes at ``agents_max`` at once. From ``agents_min`` on it makes a last call: it waits
    ``last_call_s`` at most, and no longer than a tenth of it after the latest arrival. A round
    that only lost agents makes no last call. An agent whose stream broke a moment ago is waited
    for, its grace is short, and one that is silent until it is heard or its lease ends: of many
    machines that die at once the first one's end must not make a round with all the others.
    Health checks are waited for as long as a last call lasts, also by a round that lost agents.
    Source: torch elastic ``_RendezvousJoinOp``; differs: docs/adr/0004-closing-a-round.md.
    """
    present, wanted = gathering.agents_present, spec.agents_min - gathering.agents_present
    quorum_since = now if gathering.quorum_since is None else gathering.quorum_since
    deadline = gathering.since + spec.join_timeout_s
    if present >= spec.agents_max:
        agents = count(spec.agents_max, "agent")
        return f"{spec.agents_max} of {agents} {are(spec.agents_max)} there"
    if awaited := gathering.agents_missed + gathering.agents_suspect:
        until = deadline if now < deadline else deadline + AWAITED_MAX_S
        until = quorum_since + AWAITED_MAX_S if wanted <= 0 else until
        if now < until:
            return Wait(reason=_awaited(gathering), agents_wanted=awaited, until=until)
    if wanted > 0:
        known = f"{present} of {count(spec.agents_min, 'agent')}"
        unfit = f", {gathering.unfit}" if gathering.unfit else ""
        if now >= deadline:
            return GiveUp(f"join timeout: {known} after {spec.join_timeout_s:g} s{unfit}")
        reason = f"{known}{unfit or f', waiting for {wanted}'}"
        return Wait(reason=reason, agents_wanted=wanted, until=deadline)
    return _last_call(spec, gathering, quorum_since, now)


def _awaited(gathering: Rendezvous) -> str:
    """Say which agents hold the round up."""
    missed, suspect = gathering.agents_missed, gathering.agents_suspect
    total = count(gathering.agents_present + missed + suspect, "agent")
    if not suspect:
        return f"{missed} of {total} lost their connection a moment ago"
    lost = f" and {missed} lost their connection" if missed else ""
    return f"{suspect} of {total} went silent{lost} a moment ago"


def _last_call(spec: RunSpec, gathering: Rendezvous, quorum_since: float, now: float) -> str | Wait:
    """Wait for health checks and for agents that may still come."""
    present, latest = gathering.agents_present, gathering.latest_arrival
    checked_by = quorum_since + max(spec.last_call_s, CHECKS_AWAITED_MIN_S)
    if gathering.agents_checking and now < checked_by:
        reason = f"{count(present, 'agent')} {are(present)} enough, but {gathering.unfit}"
        return Wait(reason=reason, agents_wanted=gathering.agents_checking, until=checked_by)
    if gathering.is_reforming:
        left = f"{count(present, 'agent')} {are(present)} left"
        return f"{left}, {spec.agents_min} {are(spec.agents_min)} enough"
    deadline = last_call_deadline(spec, first=quorum_since, latest=latest)
    if now >= deadline:
        return f"last call is over with {present} of {spec.agents_max} agents"
    room = spec.agents_max - present
    unfit = f"; {gathering.unfit}" if gathering.unfit else ""
    reason = f"{count(present, 'agent')} {are(present)} enough, last call for {room} more{unfit}"
    return Wait(reason=reason, agents_wanted=room, until=deadline)


def last_call_deadline(spec: RunSpec, *, first: float, latest: float) -> float:
    """Return when a last call ends that began at ``first``, a quiet tenth after the ``latest``."""
    return min(first + spec.last_call_s, latest + spec.last_call_s / 10)


class LeaderPort:
    """Waits until the leader of one round or iteration holds a port for its rank 0.

    ``awaited`` is the leader that holds none; each has its own time.
    """

    def __init__(self, state: RunState) -> None:
        self.awaited: str | None = None
        self._since = 0.0
        self._state = state

    def resumed(self, *, now: float) -> None:
        """Give who is waited for all of its time again."""
        self._since = now

    def wait_for(self, leader: str, what: str, *, now: float) -> Wait | GiveUp:
        """Wait for a port of this agent, which leads ``what``."""
        if leader != self.awaited:
            self.awaited, self._since = leader, now
        host, limit_s = self._state.members[leader].name, self._state.spec.join_timeout_s
        until = self._since + limit_s
        if now >= until:
            reason = f"{host}, which leads {what}, held no free port for {limit_s:g} s"
            return GiveUp(reason, VerdictCause.PORT_MISSING)
        return Wait(reason=f"waiting for a free port of {host}", agents_wanted=0, until=until)
