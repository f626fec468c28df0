"""Asking agents for stacks: each is answered for once, and all of it is bounded."""

import asyncio
import time
import uuid
from contextlib import aclosing

import pytest

from drumbeat.coordinator.api.query_service import QueryService
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.stack_gathering import (
    AgentStacks,
    StackGathering,
    WorkerStacks,
    asked_of,
)
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.errors import LimitReached
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.collecting.stacks import (
    ASKED_AT_ONCE_MAX,
    EVIDENCE_MAX,
    StackQuestions,
)
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.model import GroupState
from drumbeat.v1 import query_pb2
from tests.support.hangs import a_seat
from tests.support.waiting import MS
from tests.support.world import a_running_story, a_spec, an_agent

SILENT = 200
SEATS = [
    a_seat("gpu0", 0, size=2, incarnation="a"),
    a_seat("gpu1", 2, size=2, incarnation="b"),
]


def worker(local_rank: int, stacks: str = "here") -> WorkerStacks:
    return WorkerStacks(local_rank=local_rank, pid=7, stacks=stacks)


def test_only_agents_of_the_ranks_asked_for_are_asked() -> None:
    assert {i: dict(each.ranks) for i, each in asked_of(SEATS, []).items()} == {
        "a": {0: 0, 1: 1},
        "b": {0: 2, 1: 3},
    }
    assert {i: dict(each.ranks) for i, each in asked_of(SEATS, [3, 99]).items()} == {"b": {1: 3}}


def test_an_answer_has_each_worker_asked_for_and_no_other() -> None:
    gathering = StackGathering(asked_of(SEATS, []))
    answer = gathering.answered("b", [worker(1), worker(7), worker(1, "again")])
    assert answer is not None
    assert [(each.rank, each.stacks) for each in answer.workers] == [(2, ""), (3, "again")]
    assert answer.workers[0].problem
    assert gathering.answered("b", [worker(0)]) is None, "once"
    assert gathering.given_up("b", "late") is None
    assert gathering.answered("stranger", [worker(0)]) is None
    assert list(gathering.waiting) == ["a"]


def test_stacks_beyond_the_limit_are_left_out_with_the_reason() -> None:
    gathering = StackGathering(asked_of(SEATS, []), bytes_max=10)
    answer = gathering.answered("a", [worker(0, "x" * 8), worker(1, "y" * 8)])
    assert answer is not None
    first, second = answer.workers
    assert (first.stacks, first.problem) == ("x" * 8, "")
    assert (second.stacks, second.pid) == ("", 7)
    assert "left out" in second.problem


class Agent:
    """An agent's session; ``heard`` are the questions it was told of."""

    def __init__(self, questions: StackQuestions, name: str, *, is_old: bool = False) -> None:
        self.heard: list[fx.Collect] = []
        self.opened = opened(name, is_old=is_old)
        self._questions = questions
        questions.joined(self.opened, self.heard.append)

    def answer(self, stacks: str = "here") -> bool:
        request = self.heard[-1].stacks[-1]
        several = [worker(local_rank, stacks) for local_rank in request.local_ranks]
        return self._questions.take(
            "run", self.opened.agent.incarnation, request.request_id, several
        )


def opened(name: str, *, is_old: bool = False) -> SessionOpened:
    return SessionOpened(
        session_id=uuid.uuid4().hex,
        run_id="run",
        spec=a_spec(1, 4),
        agent=an_agent(name, incarnation=name),
        beat=Beat(state=GroupState.IDLE),
        features=frozenset() if is_old else frozenset({"stacks"}),
    )


async def ask(
    questions: StackQuestions, count: int, *, is_evidence: bool = False
) -> list[AgentStacks]:
    seats = [a_seat(f"gpu{i}", i, incarnation=str(i)) for i in range(count)]
    asking = questions.ask("run", 0, asked_of(seats, []), is_evidence=is_evidence)
    async with aclosing(asking) as answers:
        return [answer async for answer in answers]


async def test_who_cannot_answer_is_named_with_the_reason_at_once() -> None:
    questions = StackQuestions(answer_within_s=10_000 * MS)
    new, old = Agent(questions, "0"), Agent(questions, "1", is_old=True)
    asking = asyncio.create_task(ask(questions, 3))
    await asyncio.sleep(0)
    assert not old.heard
    assert new.answer()
    told = {each.agent.name: each.workers[0] for each in await asking}
    assert told["gpu0"].stacks == "here"
    assert "which gives no stacks" in told["gpu1"].problem
    assert told["gpu2"].problem == "its agent is not connected"


async def test_one_that_says_nothing_is_not_waited_for_longer_than_the_limit() -> None:
    questions = StackQuestions(answer_within_s=50 * MS)
    quick, silent = Agent(questions, "0"), Agent(questions, "1")
    asking = asyncio.create_task(ask(questions, 2))
    await asyncio.sleep(0)
    assert quick.answer()
    told = {each.agent.name: each.workers[0] for each in await asking}
    assert told["gpu0"].stacks == "here"
    assert "has not answered within" in told["gpu1"].problem
    assert not silent.answer(), "nobody waits for it any more"


async def test_while_many_that_say_nothing_are_named_others_have_their_turn() -> None:
    """They are named one after the other, and not each in a turn of its own."""
    questions, turns = StackQuestions(answer_within_s=50 * MS), 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    silent = [Agent(questions, str(i)) for i in range(SILENT)]
    asking = asyncio.create_task(ask(questions, len(silent)))
    await asyncio.sleep(0)
    assert all(agent.heard for agent in silent)
    beside = asyncio.create_task(take_turns())
    seats = [a_seat(f"gpu{i}", i, incarnation=str(i)) for i in range(len(silent))]
    before, began = 0, []
    async with aclosing(questions.ask("run", 0, asked_of(seats, []))) as answers:
        async for _ in answers:
            began.append(turns)
            before = before or turns
            time.sleep(1 * MS)  # noqa: ASYNC251 - what the reader does with each
    assert len(began) == len(silent)
    assert before < began[-1] < before + len(silent)
    assert len(await asking) == len(silent)
    beside.cancel()


async def test_an_agent_that_comes_back_is_asked_again() -> None:
    questions = StackQuestions(answer_within_s=10_000 * MS)
    before = Agent(questions, "0")
    asking = asyncio.create_task(ask(questions, 1))
    await asyncio.sleep(0)
    again = Agent(questions, "0")
    questions.left(before.opened)
    assert again.answer()
    assert (await asking)[0].workers[0].stacks == "here"
    assert not again.answer()


async def test_an_answer_of_another_run_is_not_taken() -> None:
    questions = StackQuestions(answer_within_s=10_000 * MS)
    agent = Agent(questions, "0")
    asking = asyncio.create_task(ask(questions, 1))
    await asyncio.sleep(0)
    request_id = agent.heard[-1].stacks[0].request_id
    assert not questions.take("other", "0", request_id, [worker(0)])
    assert agent.answer()
    await asking


async def test_so_many_hangs_are_asked_about_at_once_and_no_more() -> None:
    questions = StackQuestions(answer_within_s=10_000 * MS)
    agent = Agent(questions, "0")
    several = [
        asyncio.create_task(ask(questions, 1, is_evidence=True)) for _ in range(EVIDENCE_MAX)
    ]
    await asyncio.sleep(0)
    assert len(agent.heard[-1].stacks) == EVIDENCE_MAX, "the latest says all"
    with pytest.raises(LimitReached):
        await ask(questions, 1, is_evidence=True)
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)
    assert len(await ask(questions, 0, is_evidence=True)) == 0, "their places are free again"


async def test_the_others_have_their_turn_while_it_is_found_out_whom_to_ask() -> None:
    story, turns = a_running_story(3 * ASKED_AT_ONCE_MAX), 0
    driver = Driver(story.registry, Journal(), Limits())
    driver.journal.runs.put(story.state())

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Reader:
        turns_before_first = 0

        async def write(self, _: query_pb2.GetStacksResponse) -> None:
            self.turns_before_first = self.turns_before_first or turns

    beside, reader = asyncio.create_task(take_turns()), Reader()
    await QueryService(driver).GetStacks(query_pb2.GetStacksRequest(run_id="run"), reader)
    beside.cancel()
    assert reader.turns_before_first >= 2 * 3, "to find out whom, and to ask them"


def test_equal_stacks_count_once_where_one_text_of_them_is_kept() -> None:
    asked = asked_of([a_seat("a", 0, size=3, incarnation="a"), a_seat("b", 3, incarnation="b")], ())
    gathering = StackGathering(asked, bytes_max=100, counts_once=True)
    found = [WorkerStacks(local_rank=i, stacks="s" * 60) for i in range(3)]
    answer = gathering.answered("a", found)
    assert answer is not None
    assert {worker.stacks for worker in answer.workers} == {"s" * 60}
    other = gathering.answered("b", [WorkerStacks(local_rank=0, stacks="t" * 60)])
    assert other is not None
    assert "were left out" in other.workers[0].problem


def test_an_agent_that_cannot_answer_may_be_there() -> None:
    asked = asked_of([a_seat("a", 0, incarnation="a"), a_seat("b", 1, incarnation="b")], ())
    gathering = StackGathering(asked)
    old = gathering.given_up("a", "its agent is old", is_reached=True)
    gone = gathering.given_up("b", "its agent is not connected")
    assert old is not None
    assert gone is not None
    assert (old.is_reached, gone.is_reached) == (True, False)
