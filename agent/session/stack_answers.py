"""Shell. Answers the coordinator's questions for the stacks of this host's workers, each once."""

from __future__ import annotations

import asyncio

import structlog

from agent.session.convert import Identity
from agent.session.transport import Connection, TransportError
from agent.watchdog.runner import Watchdog
from drumbeat.mapping import seconds_of
from drumbeat.v1 import common_pb2, session_pb2

log = structlog.get_logger()

REQUESTS_MAX = 8  # taken of one directive
ANSWER_BYTES_MAX = 512 * 1024  # of all stacks in one answer
WORKER_TIMEOUT_S = 2.0  # less if the answer is waited for no longer than twice that


class StackAnswers:
    """Of one session. Questions are answered one after the other, beside all that it does."""

    def __init__(self, run_id: str, identity: Identity, watchdog: Watchdog) -> None:
        self._run_id, self._identity, self._watchdog = run_id, identity, watchdog
        self._requests = asyncio.Queue[session_pb2.StackRequest]()
        self._seen = frozenset[str]()

    def asked(self, collect: session_pb2.Collect) -> None:
        """Take in all that is asked at present."""
        requests = {each.request_id: each for each in collect.stacks[:REQUESTS_MAX]}
        for request_id, request in requests.items():
            if request_id not in self._seen and self._requests.qsize() < REQUESTS_MAX:
                self._requests.put_nowait(request)
        self._seen = frozenset(requests)

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled. What can't be delivered is not asked for any more, or again."""
        while True:
            request = await self._requests.get()
            try:
                await connection.report_stacks(await self._answer(request))
            except TransportError as error:
                log.info("stacks not delivered", reason=error.reason)

    async def _answer(self, request: session_pb2.StackRequest) -> session_pb2.ReportStacksRequest:
        left_s = seconds_of(request.time_left)
        found = await self._watchdog.stacks_now(
            request.round_id, request.local_ranks, min(WORKER_TIMEOUT_S, left_s / 2)
        )
        room = ANSWER_BYTES_MAX // max(1, len(found))
        identity = self._identity
        return session_pb2.ReportStacksRequest(
            fence=common_pb2.Fence(
                run_id=self._run_id, round_id=request.round_id, incarnation=identity.incarnation
            ),
            incarnation_key=identity.incarnation_key,
            request_id=request.request_id,
            workers=(
                session_pb2.WorkerStacks(
                    local_rank=each.local_rank,
                    pid=each.pid,
                    stacks=each.stacks.encode()[:room].decode(errors="ignore"),
                    problem=each.problem.encode()[:room].decode(errors="ignore"),
                )
                for each in found
            ),
        )
