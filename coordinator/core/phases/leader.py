"""Pure. Who leads a round or an iteration, and the port that rank 0 will listen on."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.membership.leases import Membership
from coordinator.core.model import AgentIdentity, VerdictCause
from coordinator.core.phases.ranks import next_order
from coordinator.core.phases.rendezvous import GiveUp, Wait
from coordinator.core.run.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """Who takes part in the next round, by group rank, and the port its leader holds."""

    order: list[AgentIdentity]
    port: int

    @property
    def leader(self) -> AgentIdentity:
        """Who gets group rank 0."""
        return self.order[0]


def port_of(state: RunState, members: Membership, incarnation: str) -> int:
    """Return the port this agent holds for a round it leads; 0 if none, or a used one."""
    port = members.presences[incarnation].beat.master_port
    return 0 if (state.members[incarnation].address, port) in state.masters_spent else port


class LeaderPort:
    """Finds the leader of one round or iteration, and waits until it holds a port."""

    def __init__(self, state: RunState, members: Membership) -> None:
        self._state = state
        self._members = members
        self._portless: str | None = None
        self._portless_since = 0.0

    def lineup(self, *, now: float) -> Lineup | Wait | GiveUp:
        """Return who takes part if the round starts ``now``. Linear unless a port is awaited."""
        state, members, leader = self._state, self._members, self._portless
        # Looking for an order is linear: not at every event while a port is awaited.
        is_here = leader is not None and members.is_present(leader)
        if leader is not None and is_here and not port_of(state, members, leader):
            return self._wait(leader, "the round", now)
        present = [agent for i, agent in state.members.items() if members.is_present(i)]
        order = next_order(present, state.group_ranks(), agents_max=state.spec.agents_max)
        leader = order[0].incarnation
        port = state.spec.master_port or port_of(state, members, leader)
        return Lineup(order=order, port=port) if port else self._wait(leader, "the round", now)

    def port_for(self, leader: str, *, what: str, now: float) -> int | Wait | GiveUp:
        """Return the port this agent holds for ``what`` it is to lead, or wait for one."""
        return port_of(self._state, self._members, leader) or self._wait(leader, what, now)

    def _wait(self, leader: str, what: str, now: float) -> Wait | GiveUp:
        host, limit = self._state.members[leader].name, self._state.spec.join_timeout_s
        if leader != self._portless:
            self._portless, self._portless_since = leader, now  # its own time, not its forerunner's
        until = self._portless_since + limit
        if now >= until:
            return GiveUp(
                f"{host}, which leads {what}, held no free port for {limit:g} s",
                VerdictCause.PORT_MISSING,
            )
        return Wait(reason=f"waiting for a free port of {host}", agents_wanted=0, until=until)
