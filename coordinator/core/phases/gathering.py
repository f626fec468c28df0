"""Pure. A run without a round: since when it gathers, and whether the round can close."""

from __future__ import annotations

from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext, RunPhase
from drumbeat.coordinator.core.phases.ranks import next_order
from drumbeat.coordinator.core.phases.rendezvous import (
    GiveUp,
    LeaderPort,
    Rendezvous,
    Wait,
    close_round,
)
from drumbeat.coordinator.core.phases.seating import candidates
from drumbeat.coordinator.core.restarts.decision import waiting
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.records import RoundStarted, RunEnded


class Gathering(RunPhase):
    """Waits for agents, then for a port of the leader.

    Telling all who wait how it goes is linear in them: arrivals and losses only schedule it, the
    later, the more of them wait.
    """

    def __init__(self, run: RunContext, *, now: float) -> None:
        super().__init__(run, now=now)
        run.seating.follow_left_out()
        since = max(now, run.state.restarts.until_s)
        self._rendezvous = Rendezvous(since=since, is_reforming=run.state.round is not None)
        self._leader_port = LeaderPort(run.state)
        self._stopping: list[str] = []  # who will have no seat, and still has workers
        self._stopped_by: float | None = None
        self._news_since: float | None = None  # those who wait were not told of it

    def connected(self, incarnation: str, *, now: float) -> None:
        if self._news_since is None:
            self._news_since = now

    disconnected = connected

    def lost(self, incarnation: str, reason: str, *, was_silent: bool, now: float) -> bool:
        self.connected(incarnation, now=now)
        return False

    def resumed(self, *, now: float) -> None:
        self._rendezvous.since = max(now, self.state.restarts.until_s)
        self._leader_port.resumed(now=now)

    def review(self, *, now: float, judged_at: float) -> RoundStarted | RunEnded | None:
        """Close the round if it can, with its leader's port."""
        if self.state.stop_reason:
            return self.run.ended(VerdictCause.STOPPED, self.state.stop_reason, now=now)
        tell_at = self._tell_at()
        if tell_at is not None and judged_at >= tell_at:
            self._news_since = tell_at = None
            self.run.tell_all()
        result = waiting(self.state, now=judged_at) or self._close(judged_at)
        match self._start(result, now, judged_at) if isinstance(result, str) else result:
            case Wait() as wait:
                self.wait = wait
                instants = (wait.until, tell_at)
                self.review_at = min((at for at in instants if at is not None), default=None)
                return None
            case GiveUp(reason, cause):
                return self.run.ended(cause, reason, now=now)
            case started:
                return started

    def _tell_at(self) -> float | None:
        """Return when all who wait are told how it goes; ``None``: they know."""
        policy, waiting_count = self.run.policy, len(self.members.connected)
        if self._news_since is None:
            return None
        interval_s = waiting_count / policy.progress_messages_per_s
        return self._news_since + max(policy.progress_interval_s, interval_s)

    def _close(self, now: float) -> str | Wait | GiveUp:
        spec, facts = self.state.spec, self._rendezvous
        facts.latest_arrival = self.members.latest_arrival
        connected = self.run.seating.count(facts)
        if connected + facts.agents_missed < spec.agents_min:
            facts.is_reforming = False
        if connected - facts.agents_checking < spec.agents_min:
            facts.quorum_since = None
        elif facts.quorum_since is None:
            facts.quorum_since = now
        return close_round(spec, facts, now=now)

    def _start(self, closing: str, now: float, judged_at: float) -> RoundStarted | Wait | GiveUp:
        """Start the round unless its leader holds no port. Linear unless one is awaited."""
        run, state, spec, members = self.run, self.state, self.state.spec, self.members
        # Who can have a seat again by now ends the workers there itself.
        stopping = [i for i in self._stopping if not members.is_present(i)]
        if (wait := self._wait_for_workers(stopping, now=judged_at)) is not None:
            return wait
        awaited = self._leader_port.awaited
        # Looking for an order is linear: not at every event while a port is awaited.
        if awaited is not None and members.is_present(awaited) and not run.port_of(awaited):
            return self._leader_port.wait_for(awaited, "the round", now=judged_at)
        order = next_order(
            candidates(state, members),
            state.seats,
            agents_max=spec.agents_max,
            block_size=spec.block_size,
        )
        leader = order[0]
        port = spec.master_port or run.port_of(leader.incarnation)
        if not port:
            return self._leader_port.wait_for(leader.incarnation, "the round", now=judged_at)
        if (until := run.unsettled_until(judged_at)) is not None:
            return Wait(reason="waiting whether more hosts fail", agents_wanted=0, until=until)
        seated = {agent.incarnation for agent in order}
        others = [i for i in members.presences if i not in seated]
        if (wait := self._wait_for_workers(others, now=judged_at)) is not None:
            return wait
        is_preflight = bool(spec.preflight) and not state.is_preflight_over
        closing = f"preflight: {closing}" if is_preflight else closing
        return RoundStarted(
            round_id=state.next_round_id,
            participants=tuple(agent.incarnation for agent in order),
            master_addr=spec.master_addr or leader.address,
            master_port=port,
            reason=state.reason if state.next_round_id else closing,
            closing=closing,
            at_s=now,
            is_preflight=is_preflight,
        )

    def _wait_for_workers(self, others: list[str], *, now: float) -> Wait | None:
        """Wait for the workers of agents that will have no seat: others get their ranks.

        A host has as long to stop them as at the end of a run.
        """
        self._stopping = [i for i in others if self._has_workers(i)]
        names = [self.state.members[i].name for i in self._stopping]
        names += self.run.departed.with_workers()
        if not names:
            return None
        if self._stopped_by is None:
            spec, policy = self.state.spec, self.run.policy
            self._stopped_by = now + spec.shutdown_timeout_s + policy.report_wait_s
        if now >= self._stopped_by:
            return None
        hosts = reasons.listed(names, len(names))
        reason = f"waiting for the workers of {hosts} to end"
        return Wait(reason=reason, agents_wanted=0, until=self._stopped_by)

    def _has_workers(self, incarnation: str) -> bool:
        presence = self.members.presences.get(incarnation)
        if presence is None or presence.session_id is None:
            return False
        return presence.beat.workers_alive > 0
