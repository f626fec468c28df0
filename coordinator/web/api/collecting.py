"""Shell. What agents are asked for a reader: stacks and output of workers."""

from __future__ import annotations

import asyncio

from drumbeat.coordinator.api.documents import Document, document_of, log_documents
from drumbeat.coordinator.api.operations import RUN_PATH
from drumbeat.coordinator.core.failures.stack_frames import Frame, frames_of
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.web.api.live import Live
from drumbeat.coordinator.web.calls import WebCall, event
from drumbeat.coordinator.web.site import Route
from drumbeat.coordinator.wire import stack_groups
from drumbeat.coordinator.wire.logs import RANKS_MAX
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import query_pb2 as pb

# Workers whose stacks are looked at for one reader: some 100 ms, with pauses.
STACKS_RANKS_MAX = 2_048
LOG_TAIL = 20


class Collecting:
    """The handlers of it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def routes(self) -> list[Route]:
        return [
            Route(f"/api/runs/{RUN_PATH}/stacks", self.stacks),
            Route(f"/api/runs/{RUN_PATH}/hang", self.hang),
            Route(f"/api/runs/{RUN_PATH}/logs", self.logs),
        ]

    async def stacks(self, call: WebCall) -> Document:
        ranks = call.ranks(STACKS_RANKS_MAX)
        state, _ = call.find_run()
        if not ranks and state.round is not None and state.round.world_size > STACKS_RANKS_MAX:
            allowed = f"some of them, {STACKS_RANKS_MAX} at most"
            raise InvalidRequest("ranks", "none", allowed)
        answers = StackAnswers()
        asked = pb.GetStacksRequest(run_id=call.run_id, ranks=ranks)
        await call.term.queries.GetStacks(asked, answers)
        return stack_groups.document(call.run_id, sorted(answers.workers))

    async def hang(self, call: WebCall) -> Document:
        asked = pb.DiagnoseHangRequest(run_id=call.run_id)
        response = await call.term.queries.DiagnoseHang(asked)
        return document_of(response)

    async def logs(self, call: WebCall) -> None:
        asked = pb.WatchLogsRequest(
            run_id=call.run_id,
            generation=call.generation,
            ranks=call.ranks(RANKS_MAX),
            tail=call.number("tail", LOG_TAIL),
            follow=True,
        )
        if call.is_head:
            call.find_run()
            await call.open_stream()
            return
        with self._live.streams.held(call.known.caller):
            lines = LogLines(call)
            await until_one_ends(call.term.queries.WatchLogs(asked, lines), call.keep_open())


class StackAnswers:
    """Takes in what agents answer. Of equal stacks one is kept."""

    def __init__(self) -> None:
        self.workers: list[stack_groups.Worker] = []
        self._texts: dict[tuple[Frame, ...], str] = {}

    async def write(self, answer: pb.GetStacksResponse) -> None:
        for worker in stack_groups.workers_of(answer):
            stacks = worker.stacks
            if stacks:
                stacks = self._texts.setdefault(frames_of(stacks), stacks)
            self.workers.append(worker._replace(stacks=stacks))
        await asyncio.sleep(0)


class LogLines:
    """Sends the output of workers as events; the first one begins the stream."""

    def __init__(self, call: WebCall) -> None:
        self._call = call

    async def write(self, response: pb.WatchLogsResponse) -> None:
        if self._call.stream is None:
            await self._call.open_stream()
        if documents := list(log_documents(response)):
            await self._call.send(event("lines", documents))
