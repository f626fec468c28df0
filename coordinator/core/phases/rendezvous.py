"""Pure. When a round closes: the one question every gathering asks."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model import RunSpec, VerdictCause
from drumbeat.format import are, count

# Agents that lost their connection a moment ago, or are silent, are waited for, but
# among many there is always one; they don't hold a round up for longer than this.
AWAITED_MAX_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What counts for closing a round. Instants are the coordinator's clock.

    ``agents_present`` hold a session and were heard of late. ``agents_missed`` lost
    theirs so recently that they may be back at once. ``agents_suspect`` hold one but
    are silent. ``is_reforming`` says that a round has just ended and no new agent
    is expected.
    """

    agents_present: int
    agents_missed: int
    agents_suspect: int = 0
    since: float
    quorum_since: float | None
    latest_arrival: float
    is_reforming: bool


@dataclass(frozen=True, slots=True)
class Close:
    """Close the round now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Not yet; look again at ``until`` if nothing happens before (``None``: never)."""

    reason: str
    agents_wanted: int
    until: float | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The join timeout is over."""

    reason: str
    cause: VerdictCause = VerdictCause.AGENTS_MISSING


def close_round(spec: RunSpec, gathering: Rendezvous, *, now: float) -> Close | Wait | GiveUp:
    """Decide whether the round can close at ``now``.

    Closes at ``agents_max`` at once. From ``agents_min`` on it makes a last
    call: it waits ``last_call_s`` at most, and no longer than a tenth of it
    after the latest arrival. A round that only lost agents makes no last call.
    An agent whose stream broke a moment ago is waited for, its grace is short, and
    one that is silent until it is heard or its lease ends: of many machines that
    die at once the first one's end must not make a round with all the others.
    Source: torch elastic ``_RendezvousJoinOp``; differs: docs/adr/0004-closing-a-round.md.
    """
    present, awaited = gathering.agents_present, gathering.agents_missed + gathering.agents_suspect
    if awaited and present < spec.agents_max:
        until = _awaited_until(spec, gathering, now=now)
        if now < until:
            return Wait(reason=_awaited(gathering), agents_wanted=awaited, until=until)
    if present >= spec.agents_max:
        agents = count(spec.agents_max, "agent")
        return Close(reason=f"{spec.agents_max} of {agents} {are(spec.agents_max)} there")
    if present < spec.agents_min:
        return _wait_for_quorum(spec, gathering, now=now)
    if gathering.is_reforming:
        left = f"{count(present, 'agent')} {are(present)} left"
        return Close(reason=f"{left}, {spec.agents_min} {are(spec.agents_min)} enough")
    return _last_call(spec, gathering, now=now)


def _quorum_since(gathering: Rendezvous, now: float) -> float:
    return now if gathering.quorum_since is None else gathering.quorum_since


def _join_deadline(spec: RunSpec, gathering: Rendezvous) -> float:
    return gathering.since + spec.join_timeout_s


def _awaited_until(spec: RunSpec, gathering: Rendezvous, *, now: float) -> float:
    """Return until when missed and silent agents can hold up the round."""
    if gathering.agents_present >= spec.agents_min:
        return _quorum_since(gathering, now) + AWAITED_MAX_S
    deadline = _join_deadline(spec, gathering)
    return deadline if now < deadline else deadline + AWAITED_MAX_S


def _awaited(gathering: Rendezvous) -> str:
    """Say which agents hold the round up."""
    missed, suspect = gathering.agents_missed, gathering.agents_suspect
    total = gathering.agents_present + missed + suspect
    if not suspect:
        return f"{missed} of {count(total, 'agent')} lost their connection a moment ago"
    lost = f" and {missed} lost their connection" if missed else ""
    return f"{suspect} of {count(total, 'agent')} went silent{lost} a moment ago"


def _wait_for_quorum(spec: RunSpec, gathering: Rendezvous, *, now: float) -> Wait | GiveUp:
    present, wanted = gathering.agents_present, spec.agents_min
    deadline = _join_deadline(spec, gathering)
    if now >= deadline:
        return GiveUp(
            reason=f"join timeout: {present} of {count(wanted, 'agent')} "
            f"after {spec.join_timeout_s:g} s"
        )
    return Wait(
        reason=f"{present} of {count(wanted, 'agent')}, waiting for {wanted - present}",
        agents_wanted=wanted - present,
        until=deadline,
    )


def _last_call(spec: RunSpec, gathering: Rendezvous, *, now: float) -> Close | Wait:
    present, room = gathering.agents_present, spec.agents_max - gathering.agents_present
    deadline = last_call_deadline(
        spec, first=_quorum_since(gathering, now), latest=gathering.latest_arrival
    )
    if now >= deadline:
        return Close(reason=f"last call is over with {present} of {spec.agents_max} agents")
    return Wait(
        reason=f"{count(present, 'agent')} {are(present)} enough, last call for {room} more",
        agents_wanted=room,
        until=deadline,
    )


def last_call_deadline(spec: RunSpec, *, first: float, latest: float) -> float:
    """Return when a last call ends that began at ``first``, with the ``latest`` arrival."""
    return min(first + spec.last_call_s, latest + spec.last_call_quiet_s)
