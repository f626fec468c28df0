"""Shell. A run as people and tools see it."""

from __future__ import annotations

from math import inf

from coordinator.core.membership.leases import Presence
from coordinator.core.registry.isolation import IsolatedRun
from coordinator.core.run.run import Run
from coordinator.core.run.state import HistoryEntry, Phase, RunState
from coordinator.errors import InvalidRequest
from coordinator.wire import session as convert
from coordinator.wire.duration import duration, duration_or_none
from coordinator.wire.progress import limits_message, progress_message
from drumbeat.v1 import run_pb2

AnyRun = Run | IsolatedRun

# Agents in one answer: what the event loop writes within some 50 ms.
PAGE_SIZE_MAX = 1_000
# gRPC takes 4 MiB unless it is told otherwise. Report, history and limits, which come with
# the first page, take less than half of that.
PAGE_BYTES_MAX = 3 * 1024 * 1024
# All agents are on the pages that follow: the first had no room.
BEFORE_ALL = "0:"


def summary_message(state: RunState, *, now: float) -> run_pb2.RunSummary:
    """Write a run in one line."""
    return run_pb2.RunSummary(
        run_id=state.run_id,
        phase=_phase(state),
        generation=state.generation,
        ended_age=duration_or_none(_ended_age_s(state, now)),
    )


def run_page(
    request: run_pb2.GetRunRequest, state: RunState, run: AnyRun | None, *, now: float
) -> run_pb2.GetRunResponse:
    """Write a run as it is at ``now``, or the agents that follow those of an earlier page.

    ``state`` is what is journaled, ``run`` the core, for what is not: who is connected,
    and what agents say of themselves. Raises ``InvalidRequest``. Linear in agents.
    """
    is_first = not request.page_token
    message = _run_message(state, run, now=now) if is_first else _identity(state)
    after = (-1.0, "") if is_first else _position(request.page_token)
    size, room = request.page_size or PAGE_SIZE_MAX, PAGE_BYTES_MAX - message.ByteSize()
    response = run_pb2.GetRunResponse()
    ranks = state.group_ranks()
    order = sorted((ranks.get(i, inf), i) for i in state.members)
    agents = [position for position in order if position > after]
    for position in agents[: min(size, PAGE_SIZE_MAX)]:
        agent = _agent(state, run, position[1], now=now)
        room -= agent.ByteSize()
        if room < 0 and (message.agents or is_first):
            break
        message.agents.append(agent)
    if len(message.agents) < len(agents):
        last = len(message.agents) - 1
        response.next_page_token = _token(agents[last]) if last >= 0 else BEFORE_ALL
    response.run.CopyFrom(message)
    return response


def _identity(state: RunState) -> run_pb2.Run:
    return run_pb2.Run(
        run_id=state.run_id, generation=state.generation, agents_count=len(state.members)
    )


def _run_message(state: RunState, run: AnyRun | None, *, now: float) -> run_pb2.Run:
    iterations = state.iterations
    message = run_pb2.Run(
        spec=convert.spec_message(state.spec),
        phase=_phase(state),
        reason=_reason(state, run),
        round_id=state.round_id or 0,
        has_round=state.round is not None,
        round=_round(state),
        restart_count=state.restart_count,
        failures_count=state.failures_count,
        failures_kept=len(state.failures),
        verdict=convert.verdict_message(state.verdict) if state.verdict else None,
        ended_age=duration_or_none(_ended_age_s(state, now)),
        history=[_event(entry, now) for entry in state.history],
        limits=None if state.limits is None else limits_message(state.limits),
        iteration=max(0, iterations.iteration) if iterations is not None else 0,
        has_iteration=iterations is not None and iterations.iteration >= 0,
        iterations_restarted=state.iterations_restarted,
    )
    message.MergeFrom(_identity(state))
    return message


def _round(state: RunState) -> run_pb2.Round | None:
    current = state.round
    if current is None:
        return None
    return run_pb2.Round(
        round_id=current.round_id,
        master_addr=current.master_addr,
        master_port=current.master_port,
        world_size=current.world_size,
        group_world_size=current.group_world_size,
        restart_count=current.restart_count,
        reason=current.reason,
    )


def _reason(state: RunState, run: AnyRun | None) -> str:
    """Return what a run waits for, unless its core has decided what is not journaled yet."""
    if run is None:
        return state.reason
    if run.state.phase is not state.phase or run.state.round_id != state.round_id:
        return state.reason
    return run.reason()


def _ended_age_s(state: RunState, now: float) -> float | None:
    return None if state.ended_at is None else max(0.0, now - state.ended_at)


def _event(entry: HistoryEntry, now: float) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(
        age=duration(max(0.0, now - entry.at_s)),
        decision=entry.decision,
        reason=entry.reason,
        round_id=entry.round_id or 0,
        has_round=entry.round_id is not None,
    )


def _agent(state: RunState, run: AnyRun | None, incarnation: str, *, now: float) -> run_pb2.Agent:
    identity = state.members[incarnation]
    message = run_pb2.Agent(
        incarnation=incarnation,
        host=identity.host,
        name=identity.name,
        role=identity.role,
        local_world_size=identity.local_world_size,
        is_connected=run is not None and incarnation in run.members.connected,
    )
    # Of an ended run only group rank 0 is known; half a list would mislead.
    if state.phase is not Phase.ENDED and state.is_seated(incarnation):
        assert state.round is not None, "seated in no round"
        seat = state.round.seats[incarnation]
        message.is_participant = True
        message.group_rank, message.rank_first = seat.group_rank, seat.rank_first
        message.role_rank_first = seat.role_rank_first
        message.role_world_size = seat.role_world_size
    presence = run.members.presences.get(incarnation) if run is not None else None
    if presence is not None:
        _add_presence(message, state, presence, now=now)
    return message


def _add_presence(
    message: run_pb2.Agent, state: RunState, presence: Presence, *, now: float
) -> None:
    if presence.heard_at is not None:
        message.state = convert.group_state(presence.beat.state)
        message.silence.CopyFrom(duration(max(0.0, now - presence.heard_at)))
    if state.round is not None:
        workers = presence.whereabouts.in_round(state.round.round_id, now=now)
        message.workers.extend([progress_message(worker) for worker in workers])


def _phase(state: RunState) -> run_pb2.RunPhase.ValueType:
    return run_pb2.RunPhase.Value(f"RUN_PHASE_{state.phase}")


# A page ends at an agent: those that come or go meanwhile move no other to another page.


def _token(position: tuple[float, str]) -> str:
    rank, incarnation = position
    return f"{'' if rank == inf else int(rank)}:{incarnation}"


def _position(token: str) -> tuple[float, str]:
    rank, colon, incarnation = token.partition(":")
    if not colon or not (not rank or (rank.isascii() and rank.isdigit())):
        raise InvalidRequest("page_token", token, "next_page_token of an answer, or nothing")
    return (float(rank) if rank else inf), incarnation
