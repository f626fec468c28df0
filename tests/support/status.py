"""A run with its agents and events, put together from the calls that readers have."""

from dataclasses import dataclass, field
from typing import Any

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.wire.run_status import AnyRun, agents_page, events_page, run_message
from drumbeat.v1 import query_pb2


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What ``GetRun`` tells, and all that ``ListAgents`` and ``ListEvents`` do."""

    run: query_pb2.Run = field(default_factory=query_pb2.Run)
    agents: list[query_pb2.Agent] = field(default_factory=list)
    history: list[query_pb2.RunEvent] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


def requests(
    run_id: str,
) -> tuple[query_pb2.GetRunRequest, query_pb2.ListAgentsRequest, query_pb2.ListEventsRequest]:
    """Return what to ask for all of a run."""
    return (
        query_pb2.GetRunRequest(run_id=run_id),
        query_pb2.ListAgentsRequest(run_id=run_id, view=query_pb2.VIEW_FULL),
        query_pb2.ListEventsRequest(run_id=run_id),
    )


def status_of(state: RunState, run: AnyRun | None, *, now: float) -> RunStatus:
    """Return a run as readers see it."""
    _, agents, events = requests(state.run_id)
    return RunStatus(
        run_message(state, run, query_pb2.VIEW_FULL, now=now),
        list(agents_page(agents, state, run, now=now).agents),
        list(events_page(events, state, now=now).events),
    )


def kind(event: query_pb2.RunEvent) -> str:
    """Return what was decided, in words."""
    name = query_pb2.RunEventKind.Name(event.kind)
    return name.removeprefix("RUN_EVENT_KIND_").lower().replace("_", " ")
