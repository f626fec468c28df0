"""Pure. The round before the first one: a check on all hosts, which may name hosts to leave out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from drumbeat.coordinator.core.model import Beat, Round, VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext, Transition
from drumbeat.coordinator.core.phases.seating import count_seatable
from drumbeat.coordinator.core.restarts.tally import Attempt
from drumbeat.coordinator.core.run.reasons import listed, named
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnd, RoundEnded
from drumbeat.model import GroupState
from drumbeat.text.durations import format_duration
from drumbeat.text.format import are, count

# Once a worker has failed, others that end because of it may still name hosts.
WORD_S = 3.0
_OVER = (GroupState.SUCCEEDED, GroupState.FAILED)


class Preflight:
    """What the preflight says, and until when it may take; with a new coordinator from then on.

    A round that is no preflight has no findings.
    """

    def __init__(self, run: RunContext, current: Round, *, now: float) -> None:
        self._run, self._round = run, current
        self._until = now + run.state.spec.preflight_timeout_s
        self._failed_since: float | None = None
        self._named: dict[str, str] = {}  # incarnations, with the rank and why
        self._unfinished = set(current.seats)
        self._odd = ""  # a line that names none, in words
        self.hung = ""  # what took too long, in words
        self.review_at = self._until

    def heard(self, incarnation: str, beat: Beat) -> None:
        """Take in what a participant says of it."""
        if beat.state in _OVER and not beat.workers_alive:
            self._unfinished.discard(incarnation)
        seats = list(self._round.seats.values()) if beat.preflight else []
        for finding in beat.preflight:
            if not finding.ranks:
                self._odd = f"; not understood: {finding.reason}"
            for rank in finding.ranks:
                if rank >= self._round.world_size:
                    self._odd = f"; there is no rank {rank} ({finding.reason})"
                    continue
                seat = seats[bisect_right(seats, rank, key=lambda seat: seat.rank_first) - 1]
                why = f"rank {rank}: {finding.reason}"
                self._named.setdefault(seat.agent.incarnation, why)

    def lost(self, incarnation: str) -> None:
        """Take in that a participant says nothing any more."""
        self._unfinished.discard(incarnation)

    def is_judged(self, failed: Collection[str], *, is_done: bool, judged_at: float) -> bool:
        """Return whether it is over: all have ended well, or it failed or took too long."""
        if not self._round.is_preflight or (is_done and not self._unfinished):
            return True
        if judged_at >= self._until:
            over = format_duration(self._run.state.spec.preflight_timeout_s)
            slow = [self._round.seats[i].agent.name for i in sorted(self._unfinished)]
            who = listed(slow, len(slow)) or "some workers"
            self.hung = f"{named(self._round)} hung: {who} not done after {over}"
            return True
        if failed and self._failed_since is None:
            self._failed_since = judged_at
        if self._failed_since is not None:
            self.review_at = min(self._failed_since + WORD_S, self._until)
        return bool(failed) and (not self._unfinished or judged_at >= self.review_at)

    def verdict(self, *, is_done: bool, now: float) -> Transition | None:
        """Return what follows of one that is over; ``None`` if it is to be repeated.

        Never are so many left out that too few would stay.
        """
        if not self._round.is_preflight or not (is_done or self._named):
            return None
        state, seats, out = self._run.state, self._round.seats, dict(self._named)
        agents = count(len(seats), "agent")
        reason = f"preflight passed on {agents}{self._odd}"
        if out:
            who = listed((f"{seats[i].agent.name} ({why})" for i, why in out.items()), len(out))
            reason = f"preflight left out {len(out)} of {agents}: {who}{self._odd}"
            staying = (agent for i, agent in state.members.items() if i not in out)
            left = count_seatable(staying, state.spec.block_size)
            if left < state.spec.agents_min:
                reason = f"{reason}; {left} {are(left)} left of at least {state.spec.agents_min}"
                cause = VerdictCause.AGENTS_MISSING
                return EndingStarted(reason=reason, at_s=now, cause=cause)
        return RoundEnded(
            cause=RoundEnd.PREFLIGHT_OVER,
            reason=reason,
            at_s=now,
            left_out=out,
            attempt=Attempt(has_progressed=True),
        )
