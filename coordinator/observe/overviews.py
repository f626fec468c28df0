"""Shell. Overviews of runs, made while the others have their turns, and shared by readers."""

from __future__ import annotations

from collections.abc import Generator

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.messages import stragglers_of
from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.wire.run_status import AnyRun, glimpses, overview_message
from drumbeat.mapping import duration
from drumbeat.v1.query_pb2 import GetOverviewResponse

# Workers passed between two turns of the others: some 3 ms.
ROWS_PER_TURN = 2_000
# What it takes to give one reader what is there: receiving, encoding, encrypting.
ANSWER_S = 0.001

_OVERVIEW = View[GetOverviewResponse](giving_s=lambda _: ANSWER_S)


async def overview_of(
    readings: Readings, state: RunState, run: AnyRun | None, *, is_repeated: bool
) -> GetOverviewResponse:
    """Return an overview that was written after this call, or lately for a repeated one."""
    latest = await readings.get(
        _OVERVIEW,
        lambda _: make_overview(state, run, readings),
        state,
        is_repeated=is_repeated,
    )
    answer = GetOverviewResponse()
    answer.CopyFrom(latest)
    fresh_s = readings.fresh_until(_OVERVIEW, state) - readings.now()
    answer.fresh_for.CopyFrom(duration(max(0.0, fresh_s)))
    return answer


def make_overview(
    state: RunState, run: AnyRun | None, readings: Readings, rows_per_turn: int = ROWS_PER_TURN
) -> Generator[None, None, GetOverviewResponse]:
    """Make one in several turns."""
    overview, due = Overview(), rows_per_turn
    for agent in glimpses(state, run):
        overview.take(agent)
        if overview.rows_count >= due:
            due = overview.rows_count + rows_per_turn
            yield
    message = overview_message(state, run, overview, now=readings.now())
    shown, message.stragglers_count = stragglers_of(state, run)
    message.stragglers.extend(shown)
    return message
