"""Pure. Whether a run restarts after a failure, when, and whether that is charged."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from drumbeat.coordinator.core.failures.root_cause import signature
from drumbeat.coordinator.core.inprocess.records import IterationPhase
from drumbeat.coordinator.core.model import FailureRecord, HangDiagnosis, VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.phases.rendezvous import Wait
from drumbeat.coordinator.core.restarts.tally import Attempt
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.inprocess import InterruptionKind
from drumbeat.restart_rules import RestartAction, RestartRule, RootCause, parse_rules
from drumbeat.text.format import count

# Collectives that moved for so long count as progress of a round.
MOVED_MIN_S = 30.0
# Workers that did nothing wrong but to make no progress.
HANGS = frozenset(
    {
        InterruptionKind.SOFT_TIMEOUT,
        InterruptionKind.HARD_TIMEOUT,
        InterruptionKind.UNRESPONSIVE,
    }
)


def attempted(run: RunContext, causes: Sequence[FailureRecord] = ()) -> Attempt:
    """Return how far the round that runs has come. Linear in agents."""
    state, round_id = run.state, run.state.round_id
    presences, known = run.members.presences.values(), state.restarts.farthest
    if _is_preflight(run):  # its steps, if it names any, are none of training
        return Attempt(farthest=known, cause=signature(causes[0]) if causes else "")
    steps = [presence.whereabouts.highest_step(round_id) for presence in presences]
    step = max((reached for reached in steps if reached is not None), default=None)
    beats = [presence.beat for presence in presences if presence.beat.round_id == round_id]
    moved_s = max((beat.collectives_moved_s for beat in beats), default=0.0)
    is_new = step is not None and (known is None or step > known)
    iterations = state.iterations
    # Of restarts in process the time between two of them would count, too.
    has_moved = moved_s >= MOVED_MIN_S and (iterations is None or iterations.iteration < 0)
    is_over = iterations is not None and iterations.phase is IterationPhase.INTERRUPTED
    return Attempt(
        farthest=step if is_new else known,
        has_progressed=is_new or has_moved or state.has_saved,
        step=step,
        cause=signature(causes[0]) if causes else "",
        is_counted=is_over,
    )


def interrupted(run: RunContext, iteration: int, cause: str, *, now: float) -> Attempt:
    """Return what an iteration that was interrupted means for the next one. Linear in agents."""
    return _delayed(run, replace(attempted(run), cause=cause), f"iteration {iteration + 1}", now)


def is_stuck(state: RunState) -> bool:
    """Return whether so many restarts brought no new step that the run is to end."""
    limit = state.spec.no_progress_limit
    return bool(limit) and state.restarts.stuck >= limit


def after_failure(
    run: RunContext,
    causes: Sequence[FailureRecord],
    what: str,
    *,
    hang: HangDiagnosis | None,
    now: float,
) -> RoundEnded | EndingStarted:
    """Return what follows from the failure of a round: another round, or the end of the run."""
    state, spec = run.state, run.state.spec
    attempt = attempted(run, causes)
    tally = state.restarts.after(attempt)
    rule, cause = _matching_rule(run, causes, hang)
    if rule is not None and rule.action is RestartAction.FAIL:
        reason = f"{what}; {rule} ends the run"
        return EndingStarted(reason=reason, at_s=now, cause=VerdictCause.FAILED_BY_RULE)
    if spec.no_progress_limit and tally.stuck >= spec.no_progress_limit:
        reason = f"{what}; {tally.describe_stuck()}"
        return EndingStarted(reason=reason, at_s=now, cause=VerdictCause.NO_PROGRESS)
    is_free, notes = _is_free(run, rule, cause, what, now=now)
    used = state.restarts_used_at(now)
    if not is_free and used >= spec.restarts_max:
        reason = reasons.budget_spent("; ".join([what, *notes]), state)
        return EndingStarted(reason=reason, at_s=now)
    label = f"restart {used + 1} of {spec.restarts_max}"
    if is_free:
        label = f"free restart {state.restarts.free + 1} of {spec.free_restarts_max}"
    attempt = _delayed(run, replace(attempt, is_free=is_free), label, now)
    wait = f" in {attempt.until_s - now:g} s" if attempt.until_s else ""
    if in_process := state.iterations_restarted:
        wait += f"; {count(in_process, 'restart')} in process"
    reason = "; ".join([what, *notes, f"{label}{wait}"])
    return RoundEnded(cause=RoundEnd.WORKER_FAILED, reason=reason, at_s=now, attempt=attempt)


def waiting(state: RunState, *, now: float) -> Wait | None:
    """Return the wait for the next round or iteration, ``None`` if it may begin."""
    tally = state.restarts
    if now >= tally.until_s:
        return None
    reason = f"waiting before {tally.label}: {_why_waiting(state)}"
    return Wait(reason=reason, agents_wanted=0, until=tally.until_s)


def describe_wait(state: RunState, *, now: float) -> str:
    """Say how long the next round or iteration still waits; empty if it may begin."""
    left_s = state.restarts.until_s - now
    return f"{state.restarts.label} in {left_s:.1f} s: {_why_waiting(state)}" if left_s > 0 else ""


def _why_waiting(state: RunState) -> str:
    iterations = state.iterations if state.phase is Phase.RUNNING else None
    reason = state.reason if iterations is None else iterations.reason
    return reason.partition(f"; {state.restarts.label}")[0]


def _delayed(run: RunContext, attempt: Attempt, label: str, now: float) -> Attempt:
    """Return an attempt that failed with when the next one may begin, and what that is called."""
    delay_s = run.state.restarts.after(attempt).delay_s(run.state.spec.restart_delay_max_s)
    return replace(attempt, label=label, until_s=now + delay_s if delay_s else 0.0)


def _is_free(
    run: RunContext, rule: RestartRule | None, cause: str, what: str, *, now: float
) -> tuple[bool, list[str]]:
    """Return whether a restart is not charged, and what is to be said of it."""
    most = run.state.spec.free_restarts_max
    if rule is None or rule.action is RestartAction.RESTART:
        return False, []
    notes = [str(rule)]
    if rule.action is RestartAction.EXCLUDE:
        done = run.exclude(cause, f"{what}; {rule}", now) if cause else ""
        notes = [f"{rule}: {done or 'the host could not be excluded'}"]
        if not done:
            return False, notes
    if run.state.restarts.free >= most:
        return False, [*notes, f"all {most} free restarts are used"]
    return True, notes


def _is_preflight(run: RunContext) -> bool:
    return run.state.round is not None and run.state.round.is_preflight


def _matching_rule(
    run: RunContext, causes: Sequence[FailureRecord], hang: HangDiagnosis | None
) -> tuple[RestartRule | None, str]:
    """Return the first rule that matches a root cause, and the agent of that cause.

    Rules are written for training: none judges the preflight.
    """
    if _is_preflight(run):
        return None, ""
    known = [(_root_cause(run, cause), cause.incarnation) for cause in causes]
    if not known and hang is not None:  # no rank in particular causes it
        known = [(RootCause(is_hang=True), "")]
    for rule in parse_rules(run.state.spec.restart_rules) if known else ():
        for cause, incarnation in known:
            if rule.matches(cause):
                return rule, incarnation
    return None, ""


def _root_cause(run: RunContext, record: FailureRecord) -> RootCause:
    presence = run.members.presences.get(record.incarnation)
    return RootCause(
        exit_code=record.exit_code,
        signal_name=record.signal_name,
        is_hang=record.hang is not None or record.interruption in HANGS,
        is_out_of_memory=record.is_out_of_memory,
        matched_rules=record.matched_rules,
        labels={} if presence is None else presence.labels,
    )
