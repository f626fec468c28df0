"""Shell. Overviews of runs, made while the others have their turns, and shared by readers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.messages import stragglers_of
from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.shared_reading import RunReadings
from drumbeat.coordinator.wire.run_status import AnyRun, glimpses, overview_message
from drumbeat.mapping import duration
from drumbeat.v1 import query_pb2

# Workers passed between two turns of the others: some 3 ms.
ROWS_PER_TURN = 2_000
# What it takes to give one reader what is there: receiving, encoding, encrypting.
ANSWER_S = 0.001


@dataclass(slots=True)
class _Answer:
    message: query_pb2.GetOverviewResponse
    served_before: int  # repeated readers that were given the one before
    served: int = 0  # that were given it


class Overviews:
    """Of all runs. ``now`` is the coordinator's clock."""

    def __init__(self, now: Callable[[], float], *, rows_per_turn: int = ROWS_PER_TURN) -> None:
        self._now, self._rows_per_turn = now, rows_per_turn
        self._readings = RunReadings[_Answer](now)

    async def get(
        self, state: RunState, run: AnyRun | None, *, is_repeated: bool
    ) -> query_pb2.GetOverviewResponse:
        """Return an overview that was written after this call, or lately for a repeated one."""
        shared = self._readings.of(state)
        found = await shared.get(
            lambda latest: self._make(state, run, latest), state, is_repeated=is_repeated
        )
        found.served += is_repeated
        shared.giving_s = ANSWER_S * max(found.served, found.served_before)
        answer = query_pb2.GetOverviewResponse()
        answer.CopyFrom(found.message)
        answer.fresh_for.CopyFrom(duration(max(0.0, shared.fresh_until(state) - self._now())))
        return answer

    def _make(
        self, state: RunState, run: AnyRun | None, latest: _Answer | None
    ) -> Generator[None, None, _Answer]:
        overview, due = Overview(), self._rows_per_turn
        for agent in glimpses(state, run):
            overview.take(agent)
            if overview.rows_count >= due:
                due = overview.rows_count + self._rows_per_turn
                yield
        message = overview_message(state, run, overview, now=self._now())
        stragglers, message.stragglers_count = stragglers_of(state, run)
        message.stragglers.extend(stragglers)
        return _Answer(message, served_before=latest.served if latest else 0)
