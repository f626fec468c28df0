"""Shell. Overviews of runs as messages, shared by readers."""

from __future__ import annotations

from collections.abc import Generator

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.messages import stragglers_of
from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.wire.run_status import AnyRun, glimpses, overview_message
from drumbeat.mapping import duration
from drumbeat.v1.query_pb2 import GetOverviewResponse

# Workers visited between two turns of other tasks: about 3 ms.
ROWS_PER_TURN = 2_000
# Time to serve one reader: receiving, encoding, encrypting.
ANSWER_S = 0.001

_OVERVIEW = View[GetOverviewResponse](giving_s=lambda _: ANSWER_S)


async def overview_of(
    readings: Readings, state: RunState, run: AnyRun | None, *, is_repeated: bool
) -> GetOverviewResponse:
    """Return an overview made after this call; if the call is repeated, a fresh one."""
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
    """Make an overview in several turns."""
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
