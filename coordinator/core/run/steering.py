"""Pure. What an operator's wish leads to, by the phase that the run is in."""

from __future__ import annotations

from msgspec.structs import replace

from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.effects import Steered
from drumbeat.coordinator.core.run.records import CallKind, CallNoted
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.errors import CoordinatorError, WrongPhase
from drumbeat.text.durations import format_duration

_KINDS = {
    ev.StopAsked: CallKind.STOP_ASKED,
    ev.RestartAsked: CallKind.RESTART_ASKED,
    ev.CheckpointAsked: CallKind.CHECKPOINT_ASKED,
    ev.NoteAsked: CallKind.NOTE_ADDED,
}


def noted(event: ev.OfGroups, *, now: float) -> CallNoted:
    """Return what is journaled of something that an operator asked for."""
    return CallNoted(
        kind=_KINDS[type(event)],
        reason=event.reason,
        caller=event.caller,
        at_s=now,
        call_id=event.call_id,
    )


def stopped(state: RunState) -> Steered:
    """Return what asking a run to stop leads to; nothing is done if that is not new."""
    if state.verdict is not None:
        return Steered(outcome=f"it has ended already: {state.verdict.reason}", is_new=False)
    if state.stop_reason:
        return Steered(outcome=f"it ends already: {state.stop_reason}", is_new=False)
    return Steered(outcome="it ends; its workers are being stopped")


def restarted(state: RunState, *, has_begun: bool, is_delayed: bool) -> Steered | WrongPhase:
    """Return what asking a run to restart leads to; nothing is done if that is not new.

    ``has_begun``: whether an agent has begun the round. Of two operators at once one is enough.
    ``is_delayed``: a restart waits although all agents are there.
    """
    if state.verdict is not None:
        advice = "started again, its agents begin a new run of that name"
        return WrongPhase(state.run_id, f"has ended: {state.verdict.reason}", advice)
    if state.phase is Phase.ENDING or state.stop_reason:
        why = state.stop_reason or state.reason
        return WrongPhase(state.run_id, f"is about to end: {why}", "it gets no other round")
    if state.phase is Phase.GATHERING:
        outcome = "its next round waits no longer; no further restart is charged"
        outcome = outcome if is_delayed else "its next round starts as soon as it can"
        return Steered(outcome=outcome, is_new=is_delayed)
    if state.restart_reason:
        return Steered(outcome=f"it restarts already: {state.restart_reason}", is_new=False)
    if not has_begun:
        return Steered(outcome=f"its round {state.round_id} starts just now", is_new=False)
    return Steered(outcome="its next round starts; no restart is charged")


def checkpointed(state: RunState) -> Steered | WrongPhase:
    """Return what asking training to save leads to; nothing is done if that is not new."""
    if state.verdict is not None:
        return WrongPhase(
            state.run_id, f"has ended: {state.verdict.reason}", "nothing can be saved"
        )
    if state.phase is Phase.ENDING:
        return WrongPhase(state.run_id, f"is about to end: {state.reason}", "nothing can be saved")
    if state.phase is Phase.GATHERING:
        return WrongPhase(state.run_id, "has no round at present", "ask again once it trains")
    if state.notice is not None:
        return Steered(outcome=f"training saves already: {state.notice.reason}", is_new=False)
    return Steered(outcome="training is told to save at one step, if it asks when to, and goes on")


def with_notice(
    result: Steered | CoordinatorError, state: RunState, *, now: float
) -> Steered | CoordinatorError:
    """Say how long training may take to save before."""
    notice = state.notice
    if notice is None or now >= notice.until_s or not isinstance(result, Steered):
        return result
    left = format_duration(notice.until_s - now)
    outcome = f"training may save for {left} at most; then {result.outcome}"
    return replace(result, outcome=outcome)
