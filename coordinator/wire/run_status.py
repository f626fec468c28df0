"""Shell. Runs, their agents and events as messages for readers, in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from coordinator.core.membership.leases import Presence
from coordinator.core.model import Seat
from coordinator.core.registry.isolation import IsolatedRun
from coordinator.core.run.run import Run
from coordinator.core.run.state import HistoryEntry, Phase, RunState
from coordinator.errors import InvalidRequest
from coordinator.wire.failure import PROGRESS, cause_value, limits_message, verdict_message
from coordinator.wire.session import SPEC
from drumbeat.mapping import MessageMapping, duration
from drumbeat.v1 import query_pb2, session_pb2

AnyRun = Run | IsolatedRun
Row = TypeVar("Row")

# Rows in one answer: what the event loop writes within some 50 ms.
PAGE_SIZE_MAX = 1_000
# gRPC takes 4 MiB unless it is told otherwise.
PAGE_BYTES_MAX = 3 * 1024 * 1024

# Where standbys are listed: behind all that have a rank.
_STANDBY_RANK = 2**32

_SEAT = MessageMapping(Seat, query_pb2.Seat, given=("agent",))


def run_message(
    state: RunState, run: AnyRun | None, view: query_pb2.View.ValueType, *, now: float
) -> query_pb2.Run:
    """Write a run as it is at ``now``.

    ``state`` is what is journaled, ``run`` the core, for what is not: who is connected,
    and what agents say of themselves.
    """
    verdict = state.verdict
    message = query_pb2.Run(
        run_id=state.run_id,
        generation=state.generation,
        phase=query_pb2.RunPhase.Value(f"RUN_PHASE_{state.phase}"),
        reason=_reason(state, run),
        cause=None if verdict is None else cause_value(verdict.cause),  # type: ignore[arg-type]
        round_id=state.round_id,
        restart_count=state.restart_count,
        agents_count=len(state.members),
        failures_count=state.failures_count,
        ended_age=None if state.ended_at is None else _age(state.ended_at, now),
    )
    if view != query_pb2.VIEW_FULL:
        return message
    iterations = state.iterations
    has_iteration = iterations is not None and iterations.iteration >= 0
    message.MergeFrom(
        query_pb2.Run(
            spec=SPEC.write(state.spec),
            round=_round(state),
            verdict=None if verdict is None else verdict_message(verdict),
            limits=None if state.limits is None else limits_message(state.limits),
            iteration=iterations.iteration if iterations is not None and has_iteration else None,
            iterations_restarted=state.iterations_restarted,
            failures_kept=len(state.failures),
            event_sequence=state.events_count,
        )
    )
    return message


def runs_page(
    request: query_pb2.ListRunsRequest,
    runs: Iterable[tuple[RunState, AnyRun | None]],
    *,
    now: float,
) -> query_pb2.ListRunsResponse:
    """Write a page of all runs. Raises ``InvalidRequest``."""
    generation, run_id = _position(request.page_token)
    rows = sorted(
        (row for row in runs if (row[0].run_id, row[0].generation) > (run_id, generation)),
        key=lambda row: (row[0].run_id, row[0].generation),
    )
    response = query_pb2.ListRunsResponse()
    last = _fill(
        response.runs,
        rows,
        lambda row: run_message(row[0], row[1], request.view, now=now),
        request.page_size,
    )
    if last is not None:
        response.next_page_token = f"{last[0].generation}:{last[0].run_id}"
    return response


def agents_page(
    request: query_pb2.ListAgentsRequest,
    state: RunState,
    run: AnyRun | None,
    *,
    now: float,
) -> query_pb2.ListAgentsResponse:
    """Write a page of a run's agents. Raises ``InvalidRequest``. Linear in agents."""
    after = _position(request.page_token)
    ranks = state.group_ranks()
    rows = sorted((ranks.get(i, _STANDBY_RANK), i) for i in state.members)
    response = query_pb2.ListAgentsResponse()
    last = _fill(
        response.agents,
        [row for row in rows if row > after],
        lambda row: _agent(state, run, row[1], request.view, now=now),
        request.page_size,
    )
    if last is not None:
        response.next_page_token = f"{last[0]}:{last[1]}"
    return response


def events_page(
    request: query_pb2.ListEventsRequest, state: RunState, *, now: float
) -> query_pb2.ListEventsResponse:
    """Write a page of what was decided on a run."""
    response = query_pb2.ListEventsResponse()
    rows = [entry for entry in state.history if entry.sequence > request.after_sequence]
    last = _fill(response.events, rows, lambda entry: _event(entry, now), request.page_size)
    response.has_more = last is not None
    return response


def _fill(
    answer: Any, rows: Sequence[Row], write: Callable[[Row], Any], page_size: int
) -> Row | None:
    """Add as many rows as a page holds, at least one; return its last if more follow."""
    size, room = min(page_size or PAGE_SIZE_MAX, PAGE_SIZE_MAX), PAGE_BYTES_MAX
    for index, row in enumerate(rows):
        message = write(row) if index < size else None
        room -= 0 if message is None else message.ByteSize()
        if message is None or (room < 0 and index):
            return rows[index - 1]
        answer.append(message)
    return None


def _round(state: RunState) -> query_pb2.Round | None:
    current = state.round
    if current is None:
        return None
    return query_pb2.Round(
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


def _event(entry: HistoryEntry, now: float) -> query_pb2.RunEvent:
    name = entry.decision.upper().replace(" ", "_")
    return query_pb2.RunEvent(
        sequence=entry.sequence,
        age=_age(entry.at_s, now),
        kind=query_pb2.RunEventKind.Value(f"RUN_EVENT_KIND_{name}"),
        reason=entry.reason,
        round_id=entry.round_id,
    )


def _agent(
    state: RunState,
    run: AnyRun | None,
    incarnation: str,
    view: query_pb2.View.ValueType,
    *,
    now: float,
) -> query_pb2.Agent:
    identity = state.members[incarnation]
    message = query_pb2.Agent(
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
        message.seat.CopyFrom(_SEAT.write(state.round.seats[incarnation]))
    presence = run.members.presences.get(incarnation) if run is not None else None
    if presence is not None and presence.session_id is not None:
        message.version = presence.version
        message.labels.update(presence.labels)
    if presence is not None and presence.heard_at is not None:
        message.state = session_pb2.GroupState.Value(f"GROUP_STATE_{presence.beat.state}")
        message.silence.CopyFrom(_age(presence.heard_at, now))
    if presence is not None and state.round is not None and view == query_pb2.VIEW_FULL:
        _add_workers(message, state.round.round_id, presence, now=now)
    return message


def _add_workers(
    message: query_pb2.Agent, round_id: int, presence: Presence, *, now: float
) -> None:
    workers = presence.whereabouts.in_round(round_id, now=now)
    message.workers.extend(map(PROGRESS.write, workers))


def _age(instant: float, now: float) -> Any:
    return duration(max(0.0, now - instant))


def _position(token: str) -> tuple[int, str]:
    """Read the row that a page ended at: rows that come or go move no other to another page."""
    if not token:
        return -1, ""
    number, found, name = token.partition(":")
    if not found or not (number.isascii() and number.isdigit()):
        raise InvalidRequest("page_token", token, "next_page_token of an answer, or nothing")
    return int(number), name
