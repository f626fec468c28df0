"""Pure. What each agent shall do, as a function of the run's state."""

from __future__ import annotations

from coordinator.core.model import Assignment, Exit, Release, Round, Standby, Stop, Verdict
from coordinator.core.phases.rendezvous import Wait
from coordinator.core.run.state import Phase, RunState
from drumbeat.format import count


def desired_state(
    state: RunState,
    incarnation: str,
    *,
    wait: Wait | None,
    present: int,
    now: float,
    released: str | None = None,
) -> Standby | Assignment | Stop | Exit | Release:
    """Return the desired state of one agent. Does not depend on the number of agents.

    ``wait`` is what the run, or an iteration, waits for; ``present`` are its connected agents;
    ``released`` is why this agent need not wait for the others, if that is so.
    """
    if state.verdict is not None:
        return _exit(state, state.verdict, incarnation)
    if state.phase is Phase.ENDING:
        return Stop(reason=state.reason)
    if state.phase is Phase.RUNNING and state.round is not None:
        if released is not None:
            return Release(reason=released)
        return _while_running(state, state.round, incarnation, wait=wait, present=present)
    if wait is None:
        return Standby(reason=state.reason, agents_present=present)
    return Standby(
        reason=wait.reason,
        agents_present=present,
        agents_wanted=wait.agents_wanted,
        time_left_s=None if wait.until is None else max(0.0, wait.until - now),
    )


def _exit(state: RunState, verdict: Verdict, incarnation: str) -> Exit:
    """Return the end, and whether this agent is one of the few that show the whole report."""
    shown_by = next(iter(state.round.seats.values()), None) if state.round else None
    report = verdict.report
    records = [*report.root_causes, *report.victims] if report is not None else []
    return Exit(
        verdict=verdict,
        generation=state.generation,
        shows_report=shown_by is None
        or shown_by.agent.incarnation == incarnation
        or any(record.incarnation == incarnation for record in records),
        shown_on=shown_by.agent.host if shown_by is not None else "",
    )


def _while_running(
    state: RunState, current: Round, incarnation: str, *, wait: Wait | None, present: int
) -> Standby | Assignment:
    seat = current.seats.get(incarnation)
    if seat is not None and incarnation not in state.given_up:
        return Assignment(
            seat=seat,
            round=current,
            round_id=current.round_id,
            restarts_used=state.restarts_used,
            restarts_max=state.spec.restarts_max,
        )
    left = len(current.seats) - len(state.given_up)
    reason = f"round {current.round_id} runs on {count(left, 'agent')}; this one stands by"
    more = f"; {wait.reason}" if wait is not None else ""
    return Standby(reason=f"{reason}{more}", agents_present=present)
