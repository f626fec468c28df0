"""How an agent answers questions for stacks: those for evidence wait for no reader."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration

from drumbeat.agent.model.hang import HangEvidence
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.stack_answers import StackAnswers
from drumbeat.agent.session.transport import Connection
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.watchdog.stack_taking import WorkerEvidence
from drumbeat.v1 import session_pb2
from tests.support.waiting import MS

DEADLINE_S = 20_000 * MS


class SlowWatchdog:
    """Looks for a reader until it is told that it may end, and has evidence at once."""

    def __init__(self) -> None:
        self.looking, self.may_end = asyncio.Event(), asyncio.Event()

    async def look(
        self, _round_id: int, ranks: Iterable[int], *_: Any, is_judged: bool, **__: Any
    ) -> Any:
        if not is_judged:
            self.looking.set()
            await self.may_end.wait()
        seen = HangEvidence(stacks=f"seen {'for evidence' if is_judged else 'by a reader'}")
        return [WorkerEvidence(rank, evidence=seen) for rank in ranks]


class Coordinator:
    def __init__(self) -> None:
        self.answers = asyncio.Queue[str]()

    async def report_stacks(self, answer: session_pb2.ReportStacksRequest) -> None:
        self.answers.put_nowait(answer.request_id)


def question(
    request_id: str, left_s: int = 60, *, is_evidence: bool = False
) -> session_pb2.StackRequest:
    return session_pb2.StackRequest(
        request_id=request_id,
        round_id=1,
        local_ranks=[0],
        time_left=Duration(seconds=left_s),
        is_evidence=is_evidence,
    )


async def test_a_question_for_evidence_does_not_wait_for_a_readers_look() -> None:
    watchdog, coordinator = SlowWatchdog(), Coordinator()
    answers = StackAnswers(
        "run", Identity(incarnation="agent", host="host"), cast("Watchdog", watchdog)
    )
    reader, late = question("reader"), question("late", 0)
    answering = asyncio.create_task(answers.run(cast("Connection", coordinator)))
    try:
        async with asyncio.timeout(DEADLINE_S):
            answers.asked(session_pb2.Collect(stacks=[reader, late]))
            await watchdog.looking.wait()
            evidence = question("evidence", is_evidence=True)
            answers.asked(session_pb2.Collect(stacks=[reader, late, evidence]))
            assert await coordinator.answers.get() == "evidence"
            watchdog.may_end.set()
            assert await coordinator.answers.get() == "reader"
            # Nobody waits any more for what came too late.
            answers.asked(session_pb2.Collect(stacks=[question("next")]))
            assert await coordinator.answers.get() == "next"
    finally:
        answering.cancel()
