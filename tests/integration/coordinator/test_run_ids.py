"""Runs that have the same id one after the other, over a real connection."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager as AsyncContextManager
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import grpc
import pytest

from drumbeat.v1 import control_pb2, query_pb2, session_pb2
from tests.support.coordinators import coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.wire import Client, FakeAgent, coordinator


async def test_a_run_id_that_is_used_again_leads_to_both_runs(tmp_path: Path) -> None:
    for life in range(2):  # the second one is that of another coordinator
        async with coordinator(tmp_path) as client:
            agent = await client.agent().join(uptime_s=0.0)
            await agent.run()
            await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0)
            end = await agent.desired("exit")
            assert (end.verdict.is_success, end.generation) == (False, life + 1)
            await agent.call.done_writing()
    async with coordinator(tmp_path) as client:
        listed = (await client.runs.ListRuns(query_pb2.ListRunsRequest())).runs
        assert [(run.run_id, run.generation) for run in listed] == [("run", 1), ("run", 2)]
        assert all(run.HasField("ended_age") for run in listed)
        for generation, wanted in ((0, 2), (1, 1), (2, 2)):
            request = query_pb2.GetRunRequest(run_id="run", generation=generation)
            run = (await client.runs.GetRun(request)).run
            assert (run.generation, run.verdict.is_success) == (wanted, False)
            asked = query_pb2.GetReportRequest(run_id="run", generation=generation)
            assert (await client.runs.GetReport(asked)).verdict == run.verdict
        with pytest.raises(grpc.aio.AioRpcError, match="there is no run 'run' of generation 3"):
            await client.runs.GetRun(query_pb2.GetRunRequest(run_id="run", generation=3))


async def test_a_made_up_run_id_is_that_of_one_agent_while_it_lives(tmp_path: Path) -> None:
    def agent_with(incarnation: str) -> FakeAgent:
        agent = client.agent(incarnation=incarnation)
        agent.hello.run.is_id_made_up = True
        return agent

    async with coordinator(tmp_path) as client:
        first = await agent_with("first").join()
        await first.run()
        with pytest.raises(grpc.aio.AioRpcError, match="run 'run' is another job"):
            await agent_with("second").join()
        await first.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0, workers_done=1)
        await first.desired("exit")
        later = await agent_with("later").join(uptime_s=0.0)
        await later.run()
        for agent in (first, later):
            agent.call.cancel()


@pytest.fixture(params=["SQLite", "etcd"])
def lives(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AsyncContextManager[Client]]:
    """Coordinators, one after the other, on one journal."""

    @asynccontextmanager
    async def on_etcd(model: EtcdModel) -> AsyncIterator[Client]:
        async with coordinator_of(model) as made:
            await made.leads()
            yield made.client

    if request.param == "SQLite":
        return (coordinator(tmp_path) for _ in count())
    model = EtcdModel(ttl_min_s=1)
    return (on_etcd(model) for _ in count())


async def test_a_forgotten_run_gives_its_generation_to_no_other_run_by_any_journal(
    lives: Iterator[AsyncContextManager[Client]],
) -> None:
    for generation in (1, 2, 3):
        async with next(lives) as client:
            agent = await client.agent().join(uptime_s=0.0)
            assert (await client.run()).generation == generation
            await agent.run()
            await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0)
            assert (await agent.desired("exit")).generation == generation
            await agent.call.done_writing()
        async with next(lives) as client:
            await client.control.ForgetRun(control_pb2.ForgetRunRequest(run_id="run"))


async def test_a_run_that_has_not_ended_has_no_verdict(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        await (await client.agent().join()).run()
        with pytest.raises(grpc.aio.AioRpcError, match="there is no run 'run' that has ended"):
            await client.runs.GetReport(query_pb2.GetReportRequest(run_id="run"))
