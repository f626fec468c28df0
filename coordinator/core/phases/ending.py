"""Pure. The end of a run: whom a failed one waits for, and until when a verdict is kept."""

from __future__ import annotations

from drumbeat.coordinator.core.failures.root_cause import explains, root_causes
from drumbeat.coordinator.core.failures.verdict import known_failures
from drumbeat.coordinator.core.model import Beat, VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext, RunPhase
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.records import MembersForgotten, RoundEnd, RoundEnded, RunEnded


class Ending(RunPhase):
    """The run has failed or was stopped; waits for workers to stop and for failure records."""

    def __init__(self, run: RunContext, *, now: float) -> None:
        super().__init__(run, now=now)
        self._until = now + run.state.spec.shutdown_timeout_s + run.policy.report_wait_s
        self._unfinished = {i for i in run.members.presences if not self._is_finished(i)}
        # Whose machine was lost before the failure that decided the run.
        self._lost_before: str | None = None

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        self.recorded(incarnation)

    def recorded(self, incarnation: str) -> None:
        if self._is_finished(incarnation):
            self._unfinished.discard(incarnation)

    def lost(self, incarnation: str, reason: str, *, was_silent: bool, now: float) -> bool:
        self._unfinished.discard(incarnation)
        if was_silent:
            self._lost_before = incarnation
        return False

    def review(self, *, now: float, judged_at: float) -> RunEnded | RoundEnded | None:
        """Give the verdict once all is said, or take the failure back: with another round."""
        state, current = self.state, self.state.round
        assert current is not None, "a run without a round fails at once"
        round_id = current.round_id
        if self._lost_before is not None and not state.stop_reason:
            lost = reasons.round_lost(current, [self._lost_before])
            reason = f"{lost}, not heard since before this: {state.reason}"
            return RoundEnded(cause=RoundEnd.AGENT_LOST, reason=reason, at_s=now)
        if (self._unfinished or self.run.silent.charged) and judged_at < self._until:
            self.review_at = self._until
            return None
        if state.failing_cause is VerdictCause.STOPPED or self._lost_before is not None:
            return self.run.ended(VerdictCause.STOPPED, state.stop_reason, now=now)
        reason, causes = state.reason, root_causes(known_failures(state, self.members), round_id)
        if not explains(state.hang, causes, round_id):
            reason = reasons.run_failed(reason, causes, state.where)
        return self.run.ended(state.failing_cause, reason, now=now)

    def _is_finished(self, incarnation: str) -> bool:
        presence = self.members.presences.get(incarnation)
        if presence is None or presence.session_id is None:
            return presence is None
        heard = self.state.failures_heard.get(incarnation, 0)
        return presence.beat.workers_alive == 0 and heard >= presence.beat.failures_written


class Ended(RunPhase):
    """The run has its verdict; members may come for it for a while."""

    def __init__(self, run: RunContext, *, now: float) -> None:
        super().__init__(run, now=now)
        for incarnation in list(run.members.missed):
            run.members.forget(incarnation)
        if not run.state.members:
            self.review_at = None

    def disconnected(self, incarnation: str, *, now: float) -> None:
        """Forget a member: it has its verdict."""
        self.members.forget(incarnation)

    def review(self, *, now: float, judged_at: float) -> None:
        """Forget the members once none of them can come for the verdict any more."""
        state, self.review_at = self.state, None
        if not state.members or state.ended_at is None:
            return
        grace_s = state.spec.coordinator_grace_s + self.run.policy.restart_grace_s
        if judged_at >= state.ended_at + grace_s:
            self.run.commit(MembersForgotten())
        else:
            self.review_at = state.ended_at + grace_s
