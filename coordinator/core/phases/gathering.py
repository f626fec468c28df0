"""Pure. A run without a round: since when it gathers, and whether the round can close."""

from __future__ import annotations

from typing import assert_never

from coordinator.core.phases.context import RunContext
from coordinator.core.phases.leader import LeaderPort, Lineup
from coordinator.core.phases.phase import End, RunPhase, StartRound
from coordinator.core.phases.rendezvous import Close, GiveUp, Rendezvous, Wait, close_round


class Gathering(RunPhase):
    """Waits for agents, then for a port of the leader.

    Telling all who wait how it goes is linear in them: arrivals and losses only schedule it.
    """

    def __init__(self, run: RunContext, *, now: float, done: dict[str, int]) -> None:
        super().__init__(run, now=now, done=done)
        self._since = now
        self._quorum_since: float | None = None
        self._is_reforming = run.state.round is not None
        self._leader_port = LeaderPort(run.state, run.members)
        self._progress_at: float | None = None

    def admitted(self, *, now: float) -> None:
        self._schedule_progress(now)

    def disconnected(self, incarnation: str, *, now: float) -> None:
        self._schedule_progress(now)

    def lost(self, incarnation: str, reason: str, *, now: float) -> bool:
        self._schedule_progress(now)
        return False

    def review(self, *, now: float, judged_at: float) -> StartRound | End | None:
        """Close the round if it can, with its leader's port."""
        if self._progress_at is not None and judged_at >= self._progress_at:
            self._progress_at = None
            self.run.publisher.everyone()
        result: Close | Lineup | GiveUp | Wait = self._rendezvous(judged_at)
        closing = ""
        if isinstance(result, Close):
            closing, result = result.reason, self._leader_port.lineup(now=judged_at)
        match result:
            case Lineup() as lineup:
                return StartRound(lineup, closing)
            case GiveUp(reason, cause):
                return End(cause=cause, reason=reason)
            case Wait() as wait:
                self.wait = wait
                instants = (wait.until, self._progress_at)
                self.review_at = min((at for at in instants if at is not None), default=None)
                return None
            case _:
                assert_never(result)

    def _rendezvous(self, now: float) -> Close | Wait | GiveUp:
        spec, members = self.state.spec, self.members
        connected, missed = len(members.connected), len(members.missed)
        if connected + missed < spec.agents_min:
            self._is_reforming = False
        if connected < spec.agents_min:
            self._quorum_since = None
        elif self._quorum_since is None:
            self._quorum_since = now
        rendezvous = Rendezvous(
            agents_present=members.present_count,
            agents_missed=missed,
            agents_suspect=len(members.suspects),
            since=self._since,
            quorum_since=self._quorum_since,
            latest_arrival=members.latest_arrival,
            is_reforming=self._is_reforming,
        )
        return close_round(spec, rendezvous, now=now)

    def _schedule_progress(self, now: float) -> None:
        if self._progress_at is None:
            self._progress_at = now + self.run.policy.progress_interval_s
