"""Shell. Answers the coordinator's questions for the stacks of this host's workers, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import structlog

from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.hang_evidence import GroupTable, evidence_messages
from drumbeat.agent.session.transport import Connection, TransportError
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.watchdog.stack_taking import WorkerEvidence
from drumbeat.mapping import seconds_of
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import common_pb2, session_pb2

log = structlog.get_logger()

REQUESTS_MAX = 8  # taken of one directive
ANSWER_BYTES_MAX = 512 * 1024  # of all stacks in one answer
WORKER_TIMEOUT_S = 2.0  # less if the answer is waited for no longer than twice that


class _Question(NamedTuple):
    request: session_pb2.StackRequest
    deadline: float  # on the loop's clock: afterwards the coordinator does not wait for the answer


_Questions = asyncio.Queue[_Question]


class StackAnswers:
    """Answers the questions of one session, in their order.

    Questions of readers and questions for evidence of a hang do not wait for each other: what
    decides who is to blame must not depend on who looks.
    """

    def __init__(self, run_id: str, identity: Identity, watchdog: Watchdog) -> None:
        self._run_id, self._identity, self._watchdog = run_id, identity, watchdog
        self._of_readers, self._for_evidence = _Questions(REQUESTS_MAX), _Questions(REQUESTS_MAX)
        self._seen = frozenset[str]()
        self._files = FileThread("sources")

    def asked(self, collect: session_pb2.Collect) -> None:
        """Take in all that is asked at present."""
        requests = {request.request_id: request for request in collect.stacks[:REQUESTS_MAX]}
        now = asyncio.get_running_loop().time()
        for request_id, request in requests.items():
            questions = self._for_evidence if request.is_evidence else self._of_readers
            if request_id not in self._seen and not questions.full():
                questions.put_nowait(_Question(request, now + seconds_of(request.time_left)))
        self._seen = frozenset(requests)

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled. What can't be delivered is not asked for any more, or again."""
        with closing(self._files):
            await until_one_ends(
                self._answer_all(self._of_readers, connection),
                self._answer_all(self._for_evidence, connection),
            )

    async def _answer_all(self, questions: _Questions, connection: Connection) -> None:
        while True:
            request, deadline = await questions.get()
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                log.info("stacks not taken", reason="the question had to wait for too long")
                continue
            try:
                await connection.report_stacks(await self._answer(request, left_s))
            except TransportError as error:
                log.info("stacks not delivered", reason=error.reason)

    async def _answer(
        self, request: session_pb2.StackRequest, left_s: float
    ) -> session_pb2.ReportStacksRequest:
        within_s = min(WORKER_TIMEOUT_S, left_s / 2)
        asked, may_signal = request.local_ranks, request.may_signal
        watchdog, round_id, identity = self._watchdog, request.round_id, self._identity
        groups = GroupTable()
        if request.is_evidence:
            looks = await watchdog.evidence_now(round_id, asked, within_s, may_signal=may_signal)
            workers = await evidence_messages(looks, groups, self._files)
        else:
            stacks = await watchdog.stacks_now(round_id, asked, within_s, may_signal=may_signal)
            workers = _messages(stacks, groups)
        return session_pb2.ReportStacksRequest(
            fence=common_pb2.Fence(
                run_id=self._run_id, round_id=round_id, incarnation=identity.incarnation
            ),
            incarnation_key=identity.incarnation_key,
            request_id=request.request_id,
            workers=workers,
            groups=groups.messages(),
        )


def _messages(
    looks: Sequence[WorkerEvidence], groups: GroupTable
) -> list[session_pb2.WorkerStacks]:
    room = ANSWER_BYTES_MAX // max(1, len(looks))
    messages = []
    for taken in looks:
        message = session_pb2.WorkerStacks(
            local_rank=taken.local_rank,
            pid=taken.pid,
            stacks=taken.evidence.stacks.encode()[:room].decode(errors="ignore"),
            problem=taken.problem.encode()[:room].decode(errors="ignore"),
        )
        groups.add(message, taken.groups)
        messages.append(message)
    return messages
