"""Shell. Asks the agents of a round for the stacks of their workers, and gathers what they say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from msgspec import Struct

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.stack_gathering import (
    AgentStacks,
    AskedAgent,
    StackGathering,
    WorkerStacks,
    asked_of,
)
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import LimitReached
from drumbeat.tasks import Turn

FEATURE = "stacks"  # of agents that answer
EVIDENCE_MAX = 64  # questions for evidence of hangs, at once; a run has one
EVIDENCE_BYTES_MAX = 256 * 1024 * 1024  # of one; equal stacks count and are kept once
ANSWER_WITHIN_S = 4.0
ASKED_AT_ONCE_MAX = 250


class Session(Struct, frozen=True):
    """The session of an agent, through which it is asked."""

    opened: SessionOpened
    put: Callable[[Any], None]


def why_not(session: Session | None, feature: str, lacking: str) -> str:
    """Say why an agent can't be asked; empty: it can."""
    if session is None:
        return "its agent is not connected"
    if feature not in session.opened.features:
        return f"its agent is of version {session.opened.version or '?'}, which {lacking}"
    return ""


@dataclass(slots=True)
class _Question:
    run_id: str
    round_id: int
    deadline: float
    gathering: StackGathering
    may_signal: bool = False
    is_evidence: bool = False
    answers: asyncio.Queue[AgentStacks] = field(default_factory=asyncio.Queue)


class StackQuestions:
    """What is asked at present, and the sessions through which it is. Nothing of it is kept."""

    def __init__(self, answer_within_s: float = ANSWER_WITHIN_S) -> None:
        self._within_s = answer_within_s
        self._sessions: dict[tuple[str, str], Session] = {}
        self._questions: dict[str, _Question] = {}

    def joined(self, opened: SessionOpened, put: Callable[[fx.Collect], None]) -> None:
        """Take a session in. One that replaces another is asked what that was asked."""
        self._sessions[opened.run_id, opened.agent.incarnation] = Session(opened, put)
        self._tell(opened.run_id, opened.agent.incarnation)

    def left(self, opened: SessionOpened) -> None:
        """Let go of a session that ended."""
        key = opened.run_id, opened.agent.incarnation
        if key in self._sessions and self._sessions[key].opened.session_id == opened.session_id:
            del self._sessions[key]

    async def ask(
        self,
        run_id: str,
        round_id: int,
        asked: Mapping[str, AskedAgent],
        *,
        may_signal: bool = False,
        is_evidence: bool = False,
    ) -> AsyncGenerator[AgentStacks, None]:
        """Yield an answer for each agent, as they come.

        With ``may_signal``, workers that do not answer are sent a signal that gets their stacks.
        ``is_evidence``: it is asked to judge a hang. Raises ``LimitReached`` then.
        """
        if is_evidence and sum(q.is_evidence for q in self._questions.values()) >= EVIDENCE_MAX:
            raise LimitReached("evidence_questions_max", EVIDENCE_MAX)
        deadline = asyncio.get_running_loop().time() + self._within_s
        gathering = StackGathering(dict(asked))
        if is_evidence:
            gathering.bytes_max, gathering.counts_once = EVIDENCE_BYTES_MAX, True
        question = _Question(run_id, round_id, deadline, gathering, may_signal, is_evidence)
        self._questions[request_id := uuid.uuid4().hex] = question
        gathering, answers = question.gathering, question.answers
        try:
            for number, incarnation in enumerate(asked, 1):
                if number % ASKED_AT_ONCE_MAX == 0:
                    await asyncio.sleep(0)  # the others have their turn
                if why := self._why_not(run_id, incarnation):
                    is_reached = (run_id, incarnation) in self._sessions
                    _put(answers, gathering.given_up(incarnation, why, is_reached=is_reached))
                else:
                    self._tell(run_id, incarnation)
            why = f"its agent has not answered within {self._within_s:g} s"
            loop = asyncio.get_running_loop()
            turn = Turn()
            for _ in asked:
                await turn.pause()
                answer = None
                if answers.empty() and loop.time() < deadline:
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(deadline):
                            answer = await answers.get()
                if answer is None:
                    if answers.empty():
                        _put(answers, gathering.given_up(next(iter(gathering.waiting)), why))
                    answer = answers.get_nowait()
                yield answer
        finally:
            del self._questions[request_id]

    def take(
        self, run_id: str, incarnation: str, request_id: str, workers: Iterable[WorkerStacks]
    ) -> bool:
        """Take an agent's answer in; return whether it was waited for."""
        question = self._questions.get(request_id)
        if question is None or question.run_id != run_id:
            return False
        answer = question.gathering.answered(incarnation, workers)
        _put(question.answers, answer)
        return answer is not None

    def _why_not(self, run_id: str, incarnation: str) -> str:
        return why_not(self._sessions.get((run_id, incarnation)), FEATURE, "gives no stacks")

    def _tell(self, run_id: str, incarnation: str) -> None:
        """Tell an agent all that it is asked, if it is asked anything."""
        if self._why_not(run_id, incarnation):
            return
        now, session = asyncio.get_running_loop().time(), self._sessions[run_id, incarnation]
        requests = tuple(
            fx.StackRequest(
                request_id=request_id,
                round_id=question.round_id,
                local_ranks=tuple(question.gathering.waiting[incarnation].ranks),
                time_left_s=max(0.0, question.deadline - now),
                may_signal=question.may_signal,
                is_evidence=question.is_evidence,
            )
            for request_id, question in self._questions.items()
            if question.run_id == run_id and incarnation in question.gathering.waiting
        )
        if requests:
            session.put(fx.Collect(session_id=session.opened.session_id, stacks=requests))


async def asked_of_round(
    state: RunState, current: Round, ranks: Collection[int]
) -> dict[str, AskedAgent]:
    """Return whom to ask for the workers of a round; the others have their turn meanwhile."""
    wanted, asked = frozenset(ranks), dict[str, AskedAgent]()
    seats = iter(current.seats.items())
    while some := list(islice(seats, ASKED_AT_ONCE_MAX)):
        asked |= asked_of((seat for i, seat in some if i in state.members), wanted)
        await asyncio.sleep(0)
    return asked


def _put(answers: asyncio.Queue[AgentStacks], answer: AgentStacks | None) -> None:
    if answer is not None:
        answers.put_nowait(answer)
