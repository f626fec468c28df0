"""Shell. Reads runs from a coordinator, page after page. Blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drumbeat.coordinator.access.calls import CoordinatorCalls
from drumbeat.coordinator.api.documents import request_of
from drumbeat.coordinator.wire.stack_groups import Worker, workers_of
from drumbeat.v1 import query_pb2 as pb
from drumbeat.v1 import query_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import grpc

    from drumbeat.access.client import Metadata
    from drumbeat.coordinator.api.requests import Request

# Of one call. A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0
# How often agents are read from the beginning, because a round began between two pages.
READINGS_MAX = 3
STACKS_TIMEOUT_S = 30.0  # 4 of them the agents have; the rest is for large answers


class Reader:
    """Asks for what there is of runs. Methods raise ``grpc.RpcError``."""

    def __init__(
        self, channel: grpc.Channel, metadata: Metadata, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._stub = query_pb2_grpc.QueryServiceStub(channel)
        self._metadata, self._timeout_s = metadata, timeout_s

    def runs(self) -> list[pb.Run]:
        """Return all runs, in short."""
        found: list[pb.Run] = []
        token = ""
        while True:
            page = self._call("ListRuns", page_token=token)
            found += page.runs
            if not (token := page.next_page_token):
                return found

    def set_aside(self) -> list[pb.SetAsideRun]:
        """Return the runs that the coordinator cannot read."""
        page: pb.ListRunsResponse = self._call("ListRuns", page_size=1)
        return list(page.set_aside)

    def trouble(self) -> str:
        """Return why nothing is decided, empty if something is."""
        cluster: pb.ListCoordinatorsResponse = self._call("ListCoordinators")
        return cluster.reason

    def run(self, run_id: str) -> pb.Run:
        """Return the latest run of this id, with everything."""
        found: pb.Run = self._call("GetRun", run_id=run_id).run
        return found

    def overview(self, run_id: str, *, is_repeated: bool = False) -> pb.GetOverviewResponse:
        """Return the latest run of this id at a glance; as others see it, for a repeated call."""
        found: pb.GetOverviewResponse = self._call(
            "GetOverview", run_id=run_id, is_repeated=is_repeated
        )
        return found

    def agents(self, run: pb.Run, view: pb.View.ValueType = pb.VIEW_FULL) -> list[pb.Agent]:
        """Return the agents of a run, with their workers; all in their places of one round.

        Of a run whose rounds end faster than its agents can be read some may be missing.
        """
        for _ in range(READINGS_MAX):
            pages = list(self._pages_of_agents(run, view))
            if len({page.round_id if page.HasField("round_id") else None for page in pages}) == 1:
                break
        return list({agent.incarnation: agent for page in pages for agent in page.agents}.values())

    def _pages_of_agents(
        self, run: pb.Run, view: pb.View.ValueType
    ) -> Iterator[pb.ListAgentsResponse]:
        about, token = {"run_id": run.run_id, "generation": run.generation, "view": view}, ""
        while True:
            page = self._call("ListAgents", **about, page_token=token)
            yield page
            if not (token := page.next_page_token):
                return

    def events(self, run: pb.Run, after: int = 0) -> list[pb.RunEvent]:
        """Return what is known of what was decided on a run, after that."""
        found: list[pb.RunEvent] = []
        while True:
            page = self._call(
                "ListEvents", run_id=run.run_id, generation=run.generation, after_sequence=after
            )
            found += page.events
            if not page.has_more:
                return found
            after = found[-1].sequence

    def goodput(self, run_id: str, *, with_segments: bool) -> pb.GetGoodputResponse:
        """Return what the time of the latest run of this id went into."""
        found: pb.GetGoodputResponse = self._call(
            "GetGoodput", run_id=run_id, with_segments=with_segments
        )
        return found

    def watch(self, run: pb.Run, after: int) -> Any:
        """Return the stream of what is decided on a run after that."""
        request = pb.WatchEventsRequest(
            run_id=run.run_id, generation=run.generation, after_sequence=after
        )
        return self._stub.WatchEvents(request, metadata=self._metadata)

    def _call(self, method: str, **values: Any) -> Any:
        call, request = getattr(self._stub, method), request_of(method, values)
        return call(request, timeout=self._timeout_s, metadata=self._metadata)


def watch_logs(channel: grpc.Channel, metadata: Metadata, request: pb.WatchLogsRequest) -> Any:
    """Return the stream of the output of a run's workers."""
    return query_pb2_grpc.QueryServiceStub(channel).WatchLogs(request, metadata=metadata)


def read_stacks(
    channel: grpc.Channel,
    metadata: Metadata,
    run_id: str,
    ranks: Sequence[int],
    *,
    may_signal: bool = False,
) -> list[Worker]:
    """Return the stacks of workers of a run, by rank. Raises ``grpc.RpcError``."""
    request = pb.GetStacksRequest(run_id=run_id, ranks=ranks, may_signal=may_signal)
    stub = query_pb2_grpc.QueryServiceStub(channel)
    answers = stub.GetStacks(request, timeout=STACKS_TIMEOUT_S, metadata=metadata)
    found = [worker for answer in answers for worker in workers_of(answer)]
    return sorted(found, key=lambda each: each.rank)


def calls_of(asked: Request) -> CoordinatorCalls:
    """Return the way to the coordinator that a command was told of."""
    return CoordinatorCalls(asked, asked.coordinator, use_proxy=asked.use_proxy)
