"""Pure. How a run is: what one should know of it first, from what is decided and observed.

In constant time for a run of any size, so that lists of runs have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.observer import account
from drumbeat.text.durations import SECOND, format_duration, nanoseconds
from drumbeat.text.format import are, count

# Without a step for so long there is no progress, unless steps take longer: so many times one.
STILL_S, STILL_STEPS = 30.0, 5.0
# Restarts in a row without a new farthest step.
STUCK_RESTARTS = 2
# A run that trained so little of its time is slowed down by something, once it has run so long.
EFFECTIVE_LEAST, KNOWN_LEAST_S = 0.5, 600.0
_ENDINGS = {VerdictCause.SUCCEEDED: "SUCCEEDED", VerdictCause.STOPPED: "STOPPED"}


class HealthState(StrEnum):
    """How a run is. The values are those of the protocol."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    CRASH_LOOP = "CRASH_LOOP"
    NO_PROGRESS = "NO_PROGRESS"
    HANGING = "HANGING"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


# Those first that one should look at.
ATTENTION = (
    *(HealthState.CRASH_LOOP, HealthState.HANGING, HealthState.NO_PROGRESS, HealthState.FAILED),
    *(HealthState.DEGRADED, HealthState.WAITING, HealthState.HEALTHY, HealthState.STOPPED),
    HealthState.SUCCEEDED,
)


class RunHealth(NamedTuple):
    """How a run is, why, and the account of its time."""

    state: HealthState
    reason: str
    ledger: Ledger


def health_of(state: RunState, run: Run | IsolatedRun | None, *, now: float) -> RunHealth:
    """Return how a run is at ``now``. ``run`` is its core, for what is not journaled."""
    observer = None if run is None else run.members.observer
    ledger = account(state.observed, observer, now=now)
    if state.phase in (Phase.ENDING, Phase.ENDED):
        cause = state.failing_cause if state.verdict is None else state.verdict.cause
        reason = state.reason if state.verdict is None else state.verdict.reason
        return RunHealth(outcome(cause), reason, ledger)
    doing = _activity(state, run, now)
    if (hang := state.current_hang) is not None:
        lasted = format_duration(max(0.001, now - hang.since_s))
        return RunHealth(HealthState.HANGING, f"hanging for {lasted}: {hang.summary}", ledger)
    if loop := _loop(state, now):
        return RunHealth(HealthState.CRASH_LOOP, f"{loop}; {doing}", ledger)
    if still := _stillness(state, run, ledger, now):
        return RunHealth(HealthState.NO_PROGRESS, f"{still}; {doing}", ledger)
    if state.phase is Phase.GATHERING:
        return RunHealth(HealthState.WAITING, doing, ledger)
    troubles = list(_troubles(state, run, ledger))
    health = HealthState.DEGRADED if troubles else HealthState.HEALTHY
    return RunHealth(health, "; ".join([doing, *troubles]), ledger)


def outcome(cause: VerdictCause) -> HealthState:
    """Return how a run is that has ended so."""
    return HealthState(_ENDINGS.get(cause, "FAILED"))


def _activity(state: RunState, run: Run | IsolatedRun | None, now: float) -> str:
    """Say what a run does now, apart from what went before."""
    if state.phase is Phase.GATHERING or state.round is None:
        return f"waiting for its next round: {state.reason if run is None else run.reason(now)}"
    times, round_id = state.observed.times, state.round.round_id
    lasted = format_duration(max(0.001, now - (times.began or 0) / SECOND))
    place = f"round {round_id} for {lasted}"
    if state.round.is_preflight:
        return f"checking its hosts (preflight), {place}"
    iterations = state.iterations
    if iterations is not None and iterations.iteration > 0:
        place = f"round {round_id}, iteration {iterations.iteration}, for {lasted}"
    marks = None if run is None else run.members.observer.meter.marks
    is_starting = marks is not None and marks.running is None and marks.began is None
    return f"{'starting' if is_starting else 'training'}, {place}"


def _loop(state: RunState, now: float) -> str:
    """Say that a run fails again and again; empty if it does not."""
    failures = state.observed.failures
    if (loop_s := failures.loop_s(now)) is None:
        return ""
    group, times = failures.groups[-1], state.observed.ledger.failures
    what = f"{group.cause} {group.count} times" if group.count == times else f"failed {times} times"
    what += f", the last {len(failures.recent)} within {format_duration(max(0.001, loop_s))}"
    if 1 < group.count < times:
        what += f"; {group.cause} {group.count} times"
    hosts = 0 if state.round is None else state.round.group_world_size
    why = failures.host_advice() or group.advice(hosts)
    return f"{what}: {why}" if why else what


def _stillness(state: RunState, run: Run | IsolatedRun | None, ledger: Ledger, now: float) -> str:
    """Say that a run gets no further; empty if it does, or tells nothing of it."""
    step, farthest = None if ledger.marks is None else ledger.marks.step, state.restarts.farthest
    is_past = step is not None and farthest is not None and step > farthest
    if state.restarts.stuck >= STUCK_RESTARTS and not is_past:
        return state.restarts.describe_stuck()
    if run is None or state.phase is not Phase.RUNNING:
        return ""
    observer = run.members.observer
    if (progress := observer.meter.marks.progress) is None:
        return ""
    times, step_s = observer.step_times, 0.0
    if times is not None and len(times.columns) > 1:
        step_s = times.medians(times.columns[-2])[0]  # it is known: no reader waits for it
    still_s = (nanoseconds(now) - progress) / SECOND
    least_s = max(STILL_S, STILL_STEPS * step_s) if step_s == step_s else STILL_S  # noqa: PLR0124
    if still_s < least_s:
        return ""
    usual = f"; a step takes {format_duration(step_s)}" if step_s > 0 else ""
    return f"no worker has made progress for {format_duration(still_s)}{usual}"


def _troubles(state: RunState, run: Run | IsolatedRun | None, ledger: Ledger) -> Iterator[str]:
    """Say why a run that trains is slower than it could be, or has less than it should."""
    slow = state.observed.slow if run is None else run.members.observer.slow or state.observed.slow
    if slow:
        shown = [str(slow[rank]) for rank in sorted(slow)[:1]]
        more = f" and {count(len(slow) - 1, 'more rank')}" if len(slow) > 1 else ""
        yield f"slow: {shown[0]}{more}"
    if run is not None:
        members = run.members
        if away := len(members.missed) + len(members.suspects):
            yield f"{count(away, 'host')} {are(away)} silent"
        if number := members.unhealthy_count:
            yield f"{count(number, 'host')} {are(number)} unhealthy"
    if len(state.seats) < len(state.founders):
        yield f"{len(state.seats)} of the {len(state.founders)} hosts that it began with"
    ratio, known_s = ledger.ratio, ledger.whole / SECOND
    if ratio is not None and ratio < EFFECTIVE_LEAST and known_s >= KNOWN_LEAST_S:
        yield f"trained {100 * ratio:.0f}% of {format_duration(known_s)}"
