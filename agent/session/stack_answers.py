"""Shell. Answers the coordinator's questions for the stacks of this host's workers, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

import structlog

from agent.runtime.file_thread import FileThread
from agent.session.convert import Identity
from agent.session.hang_evidence import evidence_messages
from agent.session.transport import Connection, TransportError
from agent.watchdog.runner import Watchdog
from agent.watchdog.stack_taking import StacksTaken
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
        self._files = FileThread("sources")

    def asked(self, collect: session_pb2.Collect) -> None:
        """Take in all that is asked at present."""
        requests = {each.request_id: each for each in collect.stacks[:REQUESTS_MAX]}
        for request_id, request in requests.items():
            if request_id not in self._seen and self._requests.qsize() < REQUESTS_MAX:
                self._requests.put_nowait(request)
        self._seen = frozenset(requests)

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled. What can't be delivered is not asked for any more, or again."""
        with closing(self._files):
            while True:
                request = await self._requests.get()
                try:
                    await connection.report_stacks(await self._answer(request))
                except TransportError as error:
                    log.info("stacks not delivered", reason=error.reason)

    async def _answer(self, request: session_pb2.StackRequest) -> session_pb2.ReportStacksRequest:
        within_s = min(WORKER_TIMEOUT_S, seconds_of(request.time_left) / 2)
        asked, may_signal = request.local_ranks, request.may_signal
        watchdog, round_id, identity = self._watchdog, request.round_id, self._identity
        if request.is_evidence:
            looks = await watchdog.evidence_now(round_id, asked, within_s, may_signal=may_signal)
            workers = await evidence_messages(looks, self._files)
        else:
            found = await watchdog.stacks_now(round_id, asked, within_s, may_signal=may_signal)
            workers = _messages(found)
        return session_pb2.ReportStacksRequest(
            fence=common_pb2.Fence(
                run_id=self._run_id, round_id=round_id, incarnation=identity.incarnation
            ),
            incarnation_key=identity.incarnation_key,
            request_id=request.request_id,
            workers=workers,
        )


def _messages(found: Sequence[StacksTaken]) -> list[session_pb2.WorkerStacks]:
    room = ANSWER_BYTES_MAX // max(1, len(found))
    return [
        session_pb2.WorkerStacks(
            local_rank=each.local_rank,
            pid=each.pid,
            stacks=each.stacks.encode()[:room].decode(errors="ignore"),
            problem=each.problem.encode()[:room].decode(errors="ignore"),
        )
        for each in found
    ]
