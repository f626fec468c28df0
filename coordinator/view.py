"""Shell. A run as people and tools see it."""

from __future__ import annotations

from coordinator import convert
from coordinator.convert_progress import limits_message, progress_message
from coordinator.isolation import IsolatedRun
from coordinator.run import Run
from coordinator.run_state import HistoryEntry
from coordinator.wire import duration
from drumbeat.v1 import run_pb2


def summary_message(run: Run | IsolatedRun) -> run_pb2.RunSummary:
    """Write a run in one line."""
    return run_pb2.RunSummary(run_id=run.state.run_id, phase=_phase(run))


def run_message(run: Run | IsolatedRun, *, now: float) -> run_pb2.Run:
    """Write a run as it is at ``now``, participants first. Linear in agents."""
    state = run.state
    ranks, iterations = state.group_ranks(), state.iterations
    order = sorted(state.members, key=lambda i: (i not in ranks, ranks.get(i, 0)))
    return run_pb2.Run(
        run_id=state.run_id,
        spec=convert.spec_message(state.spec),
        phase=_phase(run),
        reason=run.reason(),
        round_id=state.round_id or 0,
        has_round=state.round is not None,
        restart_count=state.restart_count,
        agents=[_agent(run, incarnation, now) for incarnation in order],
        failures_count=state.failures_count,
        verdict=convert.verdict_message(state.verdict) if state.verdict else None,
        history=[_event(entry, now) for entry in state.history],
        limits=None if state.limits is None else limits_message(state.limits),
        iteration=max(0, iterations.iteration) if iterations is not None else 0,
        has_iteration=iterations is not None and iterations.iteration >= 0,
        iterations_restarted=state.iterations_restarted,
    )


def _event(entry: HistoryEntry, now: float) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(
        age=duration(max(0.0, now - entry.at_s)),
        decision=entry.decision,
        reason=entry.reason,
        round_id=entry.round_id or 0,
        has_round=entry.round_id is not None,
    )


def _agent(run: Run | IsolatedRun, incarnation: str, now: float) -> run_pb2.Agent:
    identity = run.state.members[incarnation]
    is_seated = run.state.is_seated(incarnation)
    seat = run.state.round.seats.get(incarnation) if run.state.round and is_seated else None
    message = run_pb2.Agent(
        incarnation=incarnation,
        host=identity.host,
        name=identity.name,
        role=identity.role,
        local_world_size=identity.local_world_size,
        is_connected=incarnation in run.members.connected,
        is_participant=seat is not None,
    )
    if seat is not None:
        message.group_rank, message.rank_first = seat.group_rank, seat.rank_first
    presence = run.members.presences.get(incarnation)
    if presence is not None and presence.heard_at is not None:
        message.state = convert.group_state(presence.beat.state)
        message.silence.CopyFrom(duration(max(0.0, now - presence.heard_at)))
    if presence is not None and run.state.round is not None:
        workers = presence.whereabouts.in_round(run.state.round.round_id, now=now)
        message.workers.extend([progress_message(worker) for worker in workers])
    return message


def _phase(run: Run | IsolatedRun) -> run_pb2.RunPhase.ValueType:
    return run_pb2.RunPhase.Value(f"RUN_PHASE_{run.state.phase}")
