"""Pure. The port that rank 0 of a round or an iteration will listen on."""

from __future__ import annotations

from coordinator.core.model import VerdictCause
from coordinator.core.phases.context import RunContext
from coordinator.core.phases.rendezvous import GiveUp, Wait


class LeaderPort:
    """Waits until the leader of one round or iteration holds a port; each has its own time.

    ``awaited`` is the leader that holds none.
    """

    def __init__(self, run: RunContext) -> None:
        self.awaited: str | None = None
        self._since = 0.0
        self._run = run

    def wait_for(self, leader: str, what: str, *, now: float) -> Wait | GiveUp:
        """Wait for a port of this agent, which leads ``what``."""
        if leader != self.awaited:
            self.awaited, self._since = leader, now
        host = self._run.state.members[leader].name
        limit_s = self._run.state.spec.join_timeout_s
        until = self._since + limit_s
        if now >= until:
            reason = f"{host}, which leads {what}, held no free port for {limit_s:g} s"
            return GiveUp(reason, VerdictCause.PORT_MISSING)
        return Wait(reason=f"waiting for a free port of {host}", agents_wanted=0, until=until)
