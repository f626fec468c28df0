"""Where workers stand, and what is learned of them, over a real connection."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from drumbeat.coordinator.command import cli as entry
from drumbeat.coordinator.command.answers import perform
from drumbeat.coordinator.command.request import request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.v1 import control_pb2, failure_pb2, session_pb2
from tests.support.wire import DEADLINE_S, Client, FakeAgent, Refused, coordinator

RUNNING = session_pb2.GROUP_STATE_RUNNING


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with coordinator(tmp_path) as client:
        yield client


async def tell(agent: FakeAgent, *workers: failure_pb2.WorkerProgress) -> None:
    agent.beat.ClearField("workers")
    agent.beat.workers.extend(workers)
    await agent.say(RUNNING)


async def learn(agent: FakeAgent, longest_s: int, section: str = "save") -> dict[str, int]:
    """Let an agent observe something; return the limits it is told next."""
    agent.beat.ClearField("observations")
    agent.beat.observations.add(section=section, longest=Duration(seconds=longest_s), samples=100)
    await agent.say(RUNNING)
    return await limits(agent)


async def limits(agent: FakeAgent) -> dict[str, int]:
    """Return the next limits an agent is told, passing over other words."""
    while True:
        answer = await agent.read()
        if answer.WhichOneof("kind") == "limits":
            return {at.section: at.limit.ToSeconds() for at in answer.limits.limits}


async def reset(client: Client, run_id: str = "run") -> int:
    response: control_pb2.ResetLimitsResponse = await client.control.ResetLimits(
        control_pb2.ResetLimitsRequest(run_id=run_id), timeout=DEADLINE_S
    )
    return response.forgotten


async def test_a_run_shows_where_its_workers_stand_as_of_now(client: Client) -> None:
    agent = await client.agent(local_world_size=2).join()
    await agent.run()
    second = failure_pb2.WorkerProgress(local_rank=1, step=7, heartbeat_age=Duration(seconds=3))
    await tell(agent, second, failure_pb2.WorkerProgress(scope="s", scopes_open=1))
    # Its order is that of the stream: once a later record is in, the beat was read.
    assert await client.report(agent.failure(1)) == [True]
    (shown,) = (await client.run()).agents
    assert [worker.local_rank for worker in shown.workers] == [0, 1]
    assert (shown.workers[0].scope, shown.workers[0].HasField("step")) == ("s", False)
    assert shown.workers[1].step == 7
    age = shown.workers[1].heartbeat_age
    assert 3.0 <= age.seconds + age.nanos / 1e9 < 3.0 + DEADLINE_S
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
    (report,) = [(await agent.desired("exit")).verdict.report]
    assert [(at.rank, at.host, at.progress.step) for at in report.progress] == [
        (0, "alice", 0),
        (1, "alice", 7),
    ]
    assert report.progress_count == 2


async def test_a_hang_is_reported_as_it_was_told(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    hang = failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER,
        scope="all-reduce",
        limit=Duration(seconds=60),
        elapsed=Duration(seconds=61),
        progress=failure_pb2.WorkerProgress(step=3),
        stacks="File",
        evidence="state S",
    )
    assert await client.report(agent.failure(1, hang=hang)) == [True]
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
    verdict = (await agent.desired("exit")).verdict
    assert verdict.report.root_causes[0].hang == hang
    assert "rank 0 on alice hung: timer 'all-reduce' not released within 60 s" in verdict.reason


async def test_limits_are_learned_told_shown_kept_and_forgotten(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        agent = await client.agent(incarnation="a").join()
        await agent.run()
        assert await learn(agent, 20) == {"save": 100}
        assert [at.section for at in (await client.run()).limits.limits] == ["save"]
    async with coordinator(tmp_path) as client:
        agent = await client.agent(incarnation="a").join()
        assert await limits(agent) == {"save": 100}
        assert await reset(client) == 1
        assert await limits(agent) == {}
        assert len((await client.run()).limits.limits) == 0
        assert await reset(client) == 0


async def test_limits_of_an_unknown_run_are_not_found(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await reset(client, "nobody")
    refused = Refused.of(error.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN")
    assert "nobody" in refused.details


async def test_the_command_forgets_them_or_says_why_not(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await client.agent().join()
    await agent.run()
    await learn(agent, 20)
    address = ["--coordinator", f"127.0.0.1:{client.port}", "--insecure"]

    async def command(*argv: str) -> tuple[int, Any]:
        line = ["reset-limits", *argv, *address]
        return await asyncio.to_thread(entry.main, line), capsys.readouterr()

    code, output = await command("--run-id", "run")
    assert (code, output.err) == (0, "")
    assert output.out.splitlines()[-1] == "coordinator: run run: learned limits forgotten: 1"
    code, output = await command("--run-id", "nobody")
    assert (code, "forgotten" in output.out) == (2, False)  # it has what the coordinator logs
    assert "coordinator: error: there is no run 'nobody'" in output.err


def test_a_coordinator_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(CallFailed) as failed:
            perform(request("reset-limits", run_id="r", coordinator=address, insecure=True))
    assert failed.value.exit_code == 3
    assert address in str(failed.value)
