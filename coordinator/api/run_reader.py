"""Shell. Reads runs with the methods of operators, page by page. Blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from drumbeat.coordinator.api.operations import CALL_TIMEOUT_S
from drumbeat.v1 import query_pb2 as pb

# How often agents are read from the beginning, because a round began between two pages.
READINGS_MAX = 3


class RunReader(ABC):
    """Reads with ``call``, whatever the way to the coordinator is."""

    @abstractmethod
    def call(self, method: str, *, timeout_s: float = CALL_TIMEOUT_S, **values: Any) -> Any:
        """Return the answer of a method, or the stream of its answers, within a time."""

    def _pages(self, method: str, **values: Any) -> Iterator[Any]:
        page = self.call(method, **values)
        yield page
        while page.next_page_token:
            page = self.call(method, **values, page_token=page.next_page_token)
            yield page

    def runs(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[pb.Run]:
        """Return all runs, in short."""
        pages = self._pages("ListRuns", timeout_s=timeout_s)
        return [run for page in pages for run in page.runs]

    def run(self, run_id: str) -> pb.Run:
        """Return the latest run of this id."""
        run: pb.Run = self.call("GetRun", run_id=run_id).run
        return run

    def agents(self, run: pb.Run, view: pb.View.ValueType = pb.VIEW_FULL) -> list[pb.Agent]:
        """Return the agents of a run, with their workers; all in their places of one round.

        Of a run whose rounds end faster than its agents can be read some may be missing.
        """
        about: dict[str, Any] = {"run_id": run.run_id, "generation": run.generation, "view": view}
        pages: list[pb.ListAgentsResponse] = []
        for _ in range(READINGS_MAX):
            pages = list(self._pages("ListAgents", **about))
            if len({page.round_id if page.HasField("round_id") else None for page in pages}) == 1:
                break
        return list({agent.incarnation: agent for page in pages for agent in page.agents}.values())

    def events(self, run: pb.Run) -> list[pb.RunEvent]:
        """Return all that is known of what was decided on a run."""
        events: list[pb.RunEvent] = []
        about: dict[str, Any] = {"run_id": run.run_id, "generation": run.generation}
        after = 0
        while True:
            page = self.call("ListEvents", **about, after_sequence=after)
            events += page.events
            if not page.has_more:
                return events
            after = events[-1].sequence
