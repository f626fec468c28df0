"""Pure. A run that gathers: since when, for whom it waits, and who leads what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.membership.leases import Membership
from coordinator.core.model import AgentIdentity
from coordinator.core.phases.ranks import next_order
from coordinator.core.phases.rendezvous import Close, Gathering, GiveUp, Wait, close_round
from coordinator.core.run.state import RunState


class GatheringWatch:
    """Notes who comes and goes while a run gathers, and asks whether the round can close.

    ``latest_arrival`` is when the latest member came, in whatever phase.
    """

    def __init__(self, state: RunState, members: Membership, *, now: float) -> None:
        self.latest_arrival = now
        self._state = state
        self._members = members
        self._since = now
        self._quorum_since: float | None = None
        self._is_reforming = state.round is not None

    def begin(self, *, now: float) -> None:
        """Gather again: a round has just ended, and nobody new is expected."""
        self._since, self._quorum_since, self._is_reforming = now, None, True

    def review(self, *, now: float) -> Close | Wait | GiveUp:
        """Return whether the round can close at ``now``."""
        spec, members = self._state.spec, self._members
        connected, missed = len(members.connected), len(members.missed)
        if connected + missed < spec.agents_min:
            self._is_reforming = False
        if connected < spec.agents_min:
            self._quorum_since = None
        elif self._quorum_since is None:
            self._quorum_since = now
        gathering = Gathering(
            agents_present=members.present_count,
            agents_missed=missed,
            agents_suspect=len(members.suspects),
            since=self._since,
            quorum_since=self._quorum_since,
            latest_arrival=self.latest_arrival,
            is_reforming=self._is_reforming,
        )
        return close_round(spec, gathering, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """Who takes part in the next round, by group rank, and the port its leader holds."""

    order: list[AgentIdentity]
    port: int

    @property
    def leader(self) -> AgentIdentity:
        """Who gets group rank 0."""
        return self.order[0]


class Leading:
    """Finds the leader of the next round, and waits for one that holds no port for it."""

    def __init__(self, state: RunState, members: Membership) -> None:
        self._state = state
        self._members = members
        self._portless: str | None = None
        self._portless_since: float | None = None

    def port_of(self, incarnation: str) -> int:
        """Return the port this agent holds for a round it leads; 0 if none, or a used one."""
        port = self._members.presences[incarnation].beat.master_port
        address = self._state.members[incarnation].address
        return 0 if (address, port) in self._state.masters_spent else port

    def lineup(self, *, now: float) -> Lineup | Wait | GiveUp:
        """Return who takes part if the round starts ``now``. Linear unless a port is awaited."""
        state, leader = self._state, self._portless
        # Looking for an order is linear: not at every event while a port is awaited.
        is_present = self._members.is_present
        if leader is not None and is_present(leader) and not self.port_of(leader):
            return self._await_port(leader, now)
        present = [agent for i, agent in state.members.items() if is_present(i)]
        order = next_order(present, state.group_ranks(), agents_max=state.spec.agents_max)
        leader = order[0].incarnation
        port = state.spec.master_port or self.port_of(leader)
        return Lineup(order=order, port=port) if port else self._await_port(leader, now)

    def port_for(self, leader: str, *, what: str, now: float) -> int | Wait | GiveUp:
        """Return the port this agent holds for ``what`` it is to lead, or wait for one."""
        return self.port_of(leader) or self._await_port(leader, now, what)

    def forget(self) -> None:
        """Wait for nobody's port any more."""
        self._portless = self._portless_since = None

    def _await_port(self, leader: str, now: float, what: str = "the round") -> Wait | GiveUp:
        host, limit = self._state.members[leader].name, self._state.spec.join_timeout_s
        if leader != self._portless or self._portless_since is None:
            self._portless, self._portless_since = leader, now  # its own time, not its forerunner's
        until = self._portless_since + limit
        if now >= until:
            why = f"{host}, which leads {what}, held no free port for {limit:g} s"
            return GiveUp(reason=why)
        return Wait(reason=f"waiting for a free port of {host}", agents_wanted=0, until=until)
