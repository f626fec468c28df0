"""Shell. How long the steps of ranks took, and who is slow, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drumbeat.coordinator.core.model import Seat
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import InvalidRequest, UnknownRun
from drumbeat.coordinator.observe.stragglers import NAMED_MAX, Straggler
from drumbeat.coordinator.wire.run_status import AnyRun
from drumbeat.mapping import MessageMapping
from drumbeat.v1 import query_pb2

RANKS_MAX = 64  # that one call asks for
RANKS_CHOSEN = 8  # if it names none

_STRAGGLER = MessageMapping(Straggler, query_pb2.Straggler)


def stragglers_of(state: RunState, run: AnyRun | None) -> tuple[list[query_pb2.Straggler], int]:
    """Return those that are journaled, as they are at present, and how many there are in all."""
    found: Mapping[int, Straggler] = run.members.stragglers if run is not None else {}
    told = sorted(state.stragglers.items())[:NAMED_MAX]
    shown = [_STRAGGLER.write(found.get(rank, each)) for rank, each in told]
    return shown, max(len(shown), len(found))


def step_times_message(
    request: query_pb2.GetStepTimesRequest, state: RunState, run: AnyRun | None, *, now: float
) -> query_pb2.GetStepTimesResponse:
    """Write what is asked for. Linear in ranks only if none is named.

    Raises ``InvalidRequest``, and ``UnknownRun`` if no round runs.
    """
    times = run.members.step_times if run is not None else None
    if times is None or state.round is None or state.round.round_id != times.round_id:
        raise UnknownRun(request.run_id, "that has a round at present")
    size = state.round.world_size
    if len(request.ranks) > RANKS_MAX:
        allowed = f"at most {RANKS_MAX} ranks"
        raise InvalidRequest("ranks", f"{len(request.ranks)} of them", allowed)
    if above := [rank for rank in request.ranks if rank >= size]:
        raise InvalidRequest("ranks", str(above[0]), f"0 to {size - 1}, as round has them")
    ranks = sorted(set(request.ranks)) or times.slowest(RANKS_CHOSEN)
    columns = times.columns
    medians = [times.medians(column) for column in columns]
    has_busy = any(column.busy is not None for column in columns)
    stragglers, count = stragglers_of(state, run)
    response = query_pb2.GetStepTimesResponse(
        round_id=times.round_id,
        world_size=size,
        ages_seconds=[max(0.0, now - column.began_at) for column in columns],
        median_seconds=[steps for steps, _ in medians],
        median_busy_seconds=[busy for _, busy in medians] if has_busy else (),
        stragglers=stragglers,
        stragglers_count=count,
    )
    for rank, seat in _seats_of(state, ranks):
        row = response.ranks.add(rank=rank, name=seat.agent.name, host=seat.agent.host)
        row.step_seconds.extend(column.steps[rank] for column in columns)
        if has_busy:
            row.busy_seconds.extend(
                column.busy[rank] if column.busy is not None else float("nan") for column in columns
            )
    return response


def _seats_of(state: RunState, ranks: Sequence[int]) -> list[tuple[int, Seat]]:
    """Return the seat of each rank; ``ranks`` are in order, and so are seats."""
    seats = iter(state.seats.values())
    seat, found = next(seats), []
    for rank in ranks:
        while rank >= seat.rank_first + seat.agent.local_world_size:
            seat = next(seats)
        found.append((rank, seat))
    return found
