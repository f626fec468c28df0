"""Pure. What each agent shall do, as a function of the run's state."""

from __future__ import annotations

from coordinator.core.model import Assignment, Desired, Exit, Release, Standby, Stop, Verdict
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
) -> Desired:
    """Return the desired state of one agent. Does not depend on the number of agents.

    ``wait`` is what the run, or an iteration, waits for; ``present`` are its connected agents;
    ``released`` is why this agent need not wait for the others, if that is so.
    """
    if state.verdict is not None:
        return _exit(state, state.verdict, incarnation)
    if state.phase is Phase.ENDING:
        return Stop(reason=state.reason)
    current = state.round
    if state.phase is Phase.RUNNING and current is not None:
        if released is not None:
            return Release(reason=released)
        if state.is_seated(incarnation):
            return Assignment(
                seat=current.seats[incarnation],
                round=current,
                round_id=current.round_id,
                restarts_used=state.restarts_used,
                restarts_max=state.spec.restarts_max,
            )
        left = count(len(current.seats) - len(state.given_up), "agent")
        more = f"; {wait.reason}" if wait is not None else ""
        reason = f"round {current.round_id} runs on {left}; this one stands by{more}"
        return Standby(reason=reason, agents_present=present)
    wait = wait or Wait(reason=state.reason, agents_wanted=0, until=None)
    return Standby(
        reason=wait.reason,
        agents_present=present,
        agents_wanted=wait.agents_wanted,
        time_left_s=None if wait.until is None else max(0.0, wait.until - now),
    )


def _exit(state: RunState, verdict: Verdict, incarnation: str) -> Exit:
    """Return the end, and whether this agent is one of the few that show the whole report."""
    first, report = next(iter(state.seats.values()), None), verdict.report
    records = [*report.root_causes, *report.victims] if report is not None else []
    shown_by = {record.incarnation for record in records}
    if first is None:
        return Exit(verdict=verdict, generation=state.generation)
    return Exit(
        verdict=verdict,
        generation=state.generation,
        shows_report=incarnation in shown_by | {first.agent.incarnation},
        shown_on=first.agent.host,
    )
