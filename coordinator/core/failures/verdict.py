"""Pure. How a run ended, as all its agents are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.core.failures.root_cause import make_report
from coordinator.core.model import FailureRecord, Verdict, VerdictCause
from coordinator.core.run import reasons
from coordinator.core.run.state import RunState


def make_verdict(
    state: RunState,
    failures: Iterable[FailureRecord],
    done: Mapping[str, int],
    *,
    cause: VerdictCause,
    reason: str,
) -> Verdict:
    """Return the verdict on a run, with a report on its last round if that failed.

    ``failures`` are those that count, ``done`` the workers of each participant that
    had ended well before.
    """
    report = None
    if state.round is not None and cause is not VerdictCause.SUCCEEDED:
        earlier = [e.reason for e in state.history if reasons.is_loss(e.decision, e.reason)]
        report = make_report(
            failures,
            state.round.round_id,
            world_size=state.round.world_size,
            done=sum(done.values()),
            where=state.where,
            earlier=earlier,
        )
    return Verdict(
        cause=cause,
        reason=reasons.with_budget(
            reason,
            used=state.restarts_used,
            allowed=state.spec.restarts_max,
            in_process=state.iterations_restarted,
        ),
        restart_count=state.restart_count,
        round_id=state.round_id,
        report=report,
    )
