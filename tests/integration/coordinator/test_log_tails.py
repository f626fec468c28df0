"""The end of output is kept as rounds and runs end, and no decision waits for it."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import control_pb2, query_pb2, session_pb2
from tests.integration.coordinator.test_logs import joined
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, Client, FakeAgent, coordinator

SUCCEEDED = session_pb2.GROUP_STATE_SUCCEEDED
NOT_FOUND = grpc.StatusCode.NOT_FOUND


async def end(*agents: FakeAgent) -> list[list[session_pb2.LogRequest]]:
    """Have all succeed; return what each is asked for before it is to leave."""
    for agent in agents:
        await agent.say(SUCCEEDED, workers_alive=0, workers_done=1)
    asked: list[list[session_pb2.LogRequest]] = []
    for agent in agents:
        asked.append([])
        while not (directive := await agent.read()).desired.HasField("exit"):
            asked[-1] += directive.logs.requests
    return asked


async def bring(
    client: Client, agent: FakeAgent, request: session_pb2.LogRequest, text: str
) -> None:
    rank = request.ranks[0]
    call: Any = client.sessions.ReportLogs()
    first = session_pb2.ReportLogsRequest(
        fence=agent.fence, incarnation_key=agent.key, request_id=request.request_id
    )
    await call.write(first)
    await call.read()
    place = session_pb2.LogCursor(rank=rank, stream=session_pb2.LOG_STREAM_STDERR)
    piece = session_pb2.LogPiece(next=place, text=text, path=f"/logs/{rank}/stderr.log")
    await call.write(session_pb2.ReportLogsRequest(pieces=[piece]))
    await call.done_writing()
    await call.read()


async def logs(client: Client, **asked: Any) -> list[query_pb2.WatchLogsResponse]:
    request = query_pb2.WatchLogsRequest(**{"run_id": "run", "tail": 100, **asked})
    async with asyncio.timeout(DEADLINE_S):
        return [answer async for answer in client.runs.WatchLogs(request)]


async def test_who_is_asked_hears_it_before_it_is_to_leave_and_others_hear_nothing(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"state_dir": str(tmp_path)}
    limits = Limits(log_tail_ranks_max=1)
    async with coordinator(tmp_path, limits=limits, **settings) as client:
        agents = await joined(client, "a", "b")
        (first, request), *others = [
            (agent, request)
            for agent, asked in zip(agents, await end(*agents), strict=True)
            for request in asked
        ]
        assert not others
        assert (list(request.ranks), request.follow, request.since_round) == ([0], False, 0)
        assert (request.tail, request.tail_bytes) == (10_000, limits.log_tail_bytes_max)
        await bring(client, first, request, "one\ntwo\n")
        begin, kept, missing = await logs(client, ranks=[0, 1], tail=1)
        assert (begin.since_round, list(begin.rounds_kept)) == (0, [0])
        assert (kept.incarnation, kept.name) == (first.incarnation, kept.host)
        assert [(p.text, p.path) for p in kept.pieces] == [("two", "/logs/0/stderr.log")]
        assert [(p.next.rank, bool(p.problem)) for p in missing.pieces] == [(1, True)]

    async with coordinator(tmp_path, **settings) as client:
        assert [p.text for answer in await logs(client) for p in answer.pieces] == ["one\ntwo"]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await logs(client, round_id=4)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await client.control.ForgetRun(control_pb2.ForgetRunRequest(run_id="run"))
        await wait_until(lambda: not list((tmp_path / "output").iterdir()), DEADLINE_S)


async def test_an_agent_that_leaves_without_an_answer_is_named(tmp_path: Path) -> None:
    async with coordinator(tmp_path, state_dir=str(tmp_path)) as client:
        (agent,) = await joined(client, "a")
        await end(agent)
        agent.call.cancel()
        _, kept, _ = await logs(client)
        assert [piece.problem for piece in kept.pieces] == ["its agent was disconnected"]


@pytest.mark.parametrize("limits", [Limits(), Limits(log_tails_reading_max=0)])
async def test_nothing_is_kept_without_a_place_or_beyond_the_limit(
    tmp_path: Path, limits: Limits
) -> None:
    place = str(tmp_path) if limits != Limits() else None
    async with coordinator(tmp_path, limits=limits, state_dir=place) as client:
        assert await end(*await joined(client, "a")) == [[]]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await logs(client)
        assert (error.value.code(), "has no output that" in str(error.value)) == (NOT_FOUND, True)


async def test_what_is_too_much_is_not_taken(tmp_path: Path) -> None:
    limits = Limits(log_tails_round_bytes_max=100)
    async with coordinator(tmp_path, limits=limits, state_dir=str(tmp_path)) as client:
        agents = await joined(client, "a", "b")
        ((request,), _) = await end(*agents)
        await bring(client, agents[0], request, "x" * 200)
        _, *kept, _ = await logs(client)
        assert [message.incarnation for message in kept] == [agents[0].incarnation]
