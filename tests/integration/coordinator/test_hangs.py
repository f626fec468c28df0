"""A hang over the wire: limits in beats, evidence of all ranks, and the word to end the held."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drumbeat.coordinator.shell.collecting import stacks as collecting
from drumbeat.v1 import failure_pb2, query_pb2, session_pb2
from drumbeat.wire.mapping import duration
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Client, FakeAgent, coordinator, spec

WAITS = (
    "Thread (most recent call first):\n"
    '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3000 in all_reduce\n'
    '  File "/home/u/train.py", line 20 in step\n'
)
LOADS = 'Thread (most recent call first):\n  File "/home/u/data.py", line 7 in load\n'
SHORT_S = 300 * MS


async def a_round(client: Client, *hosts: str, **identity: Any) -> list[FakeAgent]:
    """Return agents whose workers run, by group rank."""
    given = {"features": ["stacks"], "spec": spec(len(hosts), len(hosts))} | identity
    agents = [await client.agent(host=host, **given).join() for host in hosts]
    seats = await asyncio.gather(*(agent.run() for agent in agents))
    return [agents[i] for i in sorted(range(len(hosts)), key=lambda i: seats[i].group_rank)]


def a_limit(number: int = 1, *, is_held: bool = True) -> session_pb2.ExpiredLimit:
    return session_pb2.ExpiredLimit(
        number=number,
        kind=failure_pb2.HANG_KIND_TIMER,
        scope="all-reduce",
        limit=duration(20.0),
        elapsed=duration(21.0),
        is_held=is_held,
    )


async def say_expired(agent: FakeAgent, *limits: session_pb2.ExpiredLimit) -> None:
    del agent.beat.expired[:]
    agent.beat.expired.extend(limits)
    await agent.say(session_pb2.GROUP_STATE_RUNNING)


async def read_until(agent: FakeAgent, kind: str) -> Any:
    while (directive := await agent.read()).WhichOneof("kind") != kind:
        pass
    return getattr(directive, kind)


async def answer(client: Client, agent: FakeAgent, stacks: str) -> session_pb2.StackRequest:
    """Answer the next question as an agent does."""
    (asked,) = (await read_until(agent, "collect")).stacks
    told = session_pb2.ReportStacksRequest(
        fence=agent.fence, incarnation_key=agent.key, request_id=asked.request_id
    )
    for local_rank in asked.local_ranks:
        told.workers.add(local_rank=local_rank, pid=100 + local_rank, stacks=stacks)
    assert (await client.sessions.ReportStacks(told, timeout=DEADLINE_S)).is_taken
    assert isinstance(asked, session_pb2.StackRequest)
    return asked


async def hang_of(client: Client) -> failure_pb2.HangDiagnosis:
    run = (await client.run()).run
    assert run.HasField("hang")
    return run.hang


async def seen(client: Client, kind: str) -> None:
    """Wait for an event of the run."""
    call = client.runs.WatchEvents(query_pb2.WatchEventsRequest(run_id="run"), timeout=DEADLINE_S)
    wanted = query_pb2.RunEventKind.Value(f"RUN_EVENT_KIND_{kind}")
    async for found in call:
        if any(event.kind == wanted for event in found.events):
            call.cancel()
            return
    raise AssertionError(f"the run went away without {kind}")


async def test_a_held_limit_is_judged_before_its_worker_is_ended(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        waiting, loading = await a_round(client, "a", "b")
        assert not (await client.run()).run.HasField("hang")
        await say_expired(waiting, a_limit(number=5))
        first = await answer(client, waiting, WAITS)
        second = await answer(client, loading, LOADS)
        for asked in (first, second):
            assert (asked.is_evidence, asked.may_signal, list(asked.local_ranks)) == (
                True,
                True,
                [0],
            )
        held = await read_until(waiting, "end_held")
        assert (held.round_id, held.number) == (0, 5)

        hang = await hang_of(client)
        (cause,) = hang.causes
        assert (cause.rank, cause.agent, cause.pid) == (1, "b", 100)
        assert cause.place == "in load (data.py:7)"
        assert cause.stacks == LOADS
        assert (hang.round_id, hang.is_ending, hang.is_over) == (0, True, False)
        assert (hang.kind, hang.scope) == (failure_pb2.HANG_KIND_TIMER, "all-reduce")
        assert "timer 'all-reduce' not released within 20 s" in hang.summary
        assert {(group.ranks, group.is_cause) for group in hang.groups} == {
            ("0", False),
            ("1", True),
        }
        assert hang.age.ToTimedelta().total_seconds() >= 21.0


async def test_a_limit_that_is_only_reported_sends_no_signals_and_ends_no_worker(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as client:
        waiting, loading = await a_round(client, "a", "b")
        await say_expired(waiting, a_limit(is_held=False))
        asked = await answer(client, waiting, WAITS)
        assert (asked.is_evidence, asked.may_signal) == (True, False)
        await answer(client, loading, LOADS)

        # The one after it is held: only that it was judged as well ends its worker.
        await say_expired(waiting, a_limit(is_held=False), a_limit(number=2))
        await answer(client, waiting, WAITS)
        await answer(client, loading, LOADS)
        held = await read_until(waiting, "end_held")
        assert held.number == 2
        assert (await hang_of(client)).is_ending


async def test_a_host_that_does_not_answer_is_the_cause_and_delays_others_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting.StackQuestions.__init__, "__defaults__", (SHORT_S,))
    assert collecting.ANSWER_WITHIN_S < 5.0, "agents hold their workers so long"
    async with coordinator(tmp_path) as client:
        waiting, silent = await a_round(client, "a", "b")
        began = asyncio.get_running_loop().time()
        await say_expired(waiting, a_limit(number=7))
        await answer(client, waiting, WAITS)
        await read_until(silent, "collect")
        held = await read_until(waiting, "end_held")
        assert held.number == 7
        assert asyncio.get_running_loop().time() - began >= SHORT_S
        (cause,) = (await hang_of(client)).causes
        assert (cause.rank, cause.agent) == (1, "b")
        assert cause.place == "on a host that does not answer"
        assert "has not answered within 0.3 s" in cause.notes


async def test_no_rank_is_named_if_all_ranks_are_at_one_place(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        first, second = await a_round(client, "a", "b")
        await say_expired(first, a_limit())
        await answer(client, first, WAITS)
        await answer(client, second, WAITS)
        await read_until(first, "end_held")
        hang = await hang_of(client)
        assert (list(hang.causes), hang.causes_count) == ([], 0)
        assert hang.summary.startswith("cannot tell which rank causes the hang: ")


async def test_both_ranks_held_at_once_are_ended_after_one_question(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agents = await a_round(client, "a", "b")
        await asyncio.gather(*(say_expired(agent, a_limit(number=3)) for agent in agents))
        asked = [await answer(client, agent, WAITS) for agent in agents]
        assert len({each.request_id for each in asked}) == 1
        ended = [await read_until(agent, "end_held") for agent in agents]
        assert [each.number for each in ended] == [3, 3]


async def test_a_hang_is_over_when_its_worker_has_left_the_limit(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        waiting, loading = await a_round(client, "a", "b")
        await say_expired(waiting, a_limit(is_held=False))
        await answer(client, waiting, WAITS)
        await answer(client, loading, LOADS)
        await seen(client, "HANG_FOUND")
        await say_expired(waiting)
        await seen(client, "HANG_OVER")
        assert (await hang_of(client)).is_over
        assert (await hang_of(client)).causes[0].rank == 1


async def test_agents_learn_whether_they_may_hold_workers(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agent = client.agent()
        await agent.say_hello()
        assert "evidence" in (await agent.read()).welcome.features
