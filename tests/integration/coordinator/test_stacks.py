"""Stacks of a run's workers, asked of its agents over the wire."""

import asyncio
from pathlib import Path

import grpc
import pytest

from drumbeat.v1 import query_pb2, session_pb2
from tests.support.wire import DEADLINE_S, Client, FakeAgent, coordinator, spec

WORKERS = 250
STACK = "Thread 0x1 (most recent call first):\n" + '  File "/home/u/train.py", line 8 in f\n' * 20


async def stacks(client: Client, *ranks: int) -> list[query_pb2.GetStacksResponse]:
    request = query_pb2.GetStacksRequest(run_id="run", ranks=ranks)
    return [answer async for answer in client.runs.GetStacks(request, timeout=DEADLINE_S)]


async def answer(client: Client, agent: FakeAgent) -> session_pb2.ReportStacksRequest:
    """Answer the next question as an agent does."""
    while (directive := await agent.read()).WhichOneof("kind") != "collect":
        pass
    (asked,) = directive.collect.stacks
    told = session_pb2.ReportStacksRequest(
        fence=agent.fence, incarnation_key=agent.key, request_id=asked.request_id
    )
    for local_rank in asked.local_ranks:
        told.workers.add(local_rank=local_rank, pid=100 + local_rank, stacks=STACK)
    assert (await client.sessions.ReportStacks(told)).is_taken
    return told


async def test_a_thousand_ranks_answer_in_one_question(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agents = [
            await client.agent(
                host=f"h{i}", local_world_size=WORKERS, spec=spec(4, 4), features=["stacks"]
            ).join()
            for i in range(4)
        ]
        await asyncio.gather(*(agent.run() for agent in agents))
        asking = asyncio.create_task(stacks(client))
        told = await asyncio.gather(*(answer(client, agent) for agent in agents))
        found = [worker for each in await asking for worker in each.workers]
        assert sorted(worker.rank for worker in found) == list(range(4 * WORKERS))
        assert {worker.stacks for worker in found} == {STACK}

        # What comes once more, or late, changes nothing.
        assert not (await client.sessions.ReportStacks(told[0])).is_taken


async def test_agents_that_cannot_be_asked_are_named_at_once(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agents = [
            await client.agent(host=host, spec=spec(2, 2), version="0.0.9").join()
            for host in ("old", "new")
        ]
        await asyncio.gather(*(agent.run() for agent in agents))
        (found,) = await stacks(client, 0)
        (worker,) = found.workers
        assert (found.host, worker.rank, worker.stacks) == (found.name, 0, "")
        assert worker.problem == "its agent is of version 0.0.9, which gives no stacks"
        assert await stacks(client, 99) == []


@pytest.mark.parametrize("may_signal", [False, True])
async def test_agents_are_told_whether_they_may_send_signals(
    tmp_path: Path, *, may_signal: bool
) -> None:
    async with coordinator(tmp_path) as client:
        agent = await client.agent(spec=spec(1, 1), features=["stacks"]).join()
        await agent.run()
        request = query_pb2.GetStacksRequest(run_id="run", may_signal=may_signal)
        call = client.runs.GetStacks(request, timeout=DEADLINE_S)
        reading = asyncio.ensure_future(call.read())
        while (directive := await agent.read()).WhichOneof("kind") != "collect":
            pass
        assert [each.may_signal for each in directive.collect.stacks] == [may_signal]
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_run_without_a_round_has_no_stacks(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        await client.agent(spec=spec(2, 2)).join()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stacks(client)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.value.details() == "run 'run' has no workers now: it waits for a round"
