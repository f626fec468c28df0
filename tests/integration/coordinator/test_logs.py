"""Output of a run's workers, brought by its agents over the wire."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.collecting.logs import QUEUE_MAX
from drumbeat.v1 import query_pb2, session_pb2
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Client, FakeAgent, coordinator, spec


class Reader:
    """One who reads."""

    def __init__(self, client: Client, **asked: Any) -> None:
        request = query_pb2.WatchLogsRequest(run_id="run", **asked)
        self.call = client.runs.WatchLogs(request)
        client.calls.append(self.call)

    async def read(self) -> query_pb2.WatchLogsResponse:
        async with asyncio.timeout(DEADLINE_S):
            answer = await self.call.read()
        assert isinstance(answer, query_pb2.WatchLogsResponse), "it has ended"
        return answer

    async def all(self) -> list[query_pb2.WatchLogsResponse]:
        async with asyncio.timeout(DEADLINE_S):
            return [answer async for answer in self.call]


class Bringer:
    """An agent's call for one request."""

    def __init__(self, client: Client, agent: FakeAgent, request_id: str) -> None:
        self.call: Any = client.sessions.ReportLogs()
        self._first = session_pb2.ReportLogsRequest(
            fence=agent.fence, incarnation_key=agent.key, request_id=request_id
        )

    async def begin(self) -> list[session_pb2.LogCursor]:
        await self.call.write(self._first)
        async with asyncio.timeout(DEADLINE_S):
            answer = await self.call.read()
        return list(answer.cursors)

    async def bring(self, rank: int, number: int, text: str = "") -> None:
        place = session_pb2.LogCursor(rank=rank, offset=number, lines=number)
        place.stream = session_pb2.LOG_STREAM_STDOUT
        found = session_pb2.LogPiece(next=place, text=text or f"line {number}\n")
        await self.call.write(session_pb2.ReportLogsRequest(pieces=[found]))


async def asked(agent: FakeAgent) -> list[session_pb2.LogRequest]:
    """Return what the agent is asked for next."""
    while (directive := await agent.read()).WhichOneof("kind") != "logs":
        pass
    return list(directive.logs.requests)


async def joined(client: Client, *hosts: str, **identity: Any) -> list[FakeAgent]:
    several = spec(len(hosts), len(hosts))
    agents = [
        await client.agent(
            **{"host": host, "spec": several, "features": ["logs"], **identity}
        ).join()
        for host in hosts
    ]
    await asyncio.gather(*(agent.run() for agent in agents))
    return agents


def texts(*answers: query_pb2.WatchLogsResponse) -> list[str]:
    return [piece.text for answer in answers for piece in answer.pieces]


async def test_lines_come_once_whatever_breaks(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        (agent,) = await joined(client, "a")
        reader = Reader(client, follow=True, tail=7)
        (request,) = await asked(agent)
        assert (request.follow, request.tail, list(request.ranks)) == (True, 7, [])
        first = Bringer(client, agent, request.request_id)
        assert await first.begin() == []
        await first.bring(0, 1)
        assert texts(await reader.read(), await reader.read()) == ["line 1\n"]

        # A later call goes on behind what was read, and the earlier one is over.
        second = Bringer(client, agent, request.request_id)
        (cursor,) = await second.begin()
        assert (cursor.rank, cursor.offset, cursor.lines) == (0, 1, 1)
        async with asyncio.timeout(DEADLINE_S):
            assert await first.call.read() is grpc.aio.EOF
        await second.bring(0, 2)
        assert texts(await reader.read()) == ["line 2\n"]

        # So does another reader that says how far it came.
        known = query_pb2.AgentCursors(incarnation=agent.incarnation, cursors=[cursor])
        Reader(client, follow=True, since_round=0, cursors=[known])
        requests = await asked(agent)
        third = Bringer(client, agent, requests[-1].request_id)
        assert await third.begin() == [cursor]

        # Who reads no more is not asked for any more.
        reader.call.cancel()
        assert [each.request_id for each in await asked(agent)] == [requests[-1].request_id]
        async with asyncio.timeout(DEADLINE_S):
            assert await second.call.read() is grpc.aio.EOF


async def test_without_follow_it_ends_once_all_have_answered_or_are_named(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        told, empty, gone = await joined(client, "told", "empty", "gone")
        ranks = {each.host: each.seat.rank_first for each in (await client.run()).agents}
        reader = Reader(client, tail=3)
        for agent in (told, empty):
            (request,) = await asked(agent)
            bringer = Bringer(client, agent, request.request_id)
            await bringer.begin()
            if agent is told:
                await bringer.bring(ranks["told"], 1)
            await bringer.call.done_writing()
        await asked(gone)
        gone.call.cancel()
        answers = await reader.all()
        assert sorted(texts(*answers)) == ["", "", "line 1\n"]
        problems = {each.host: each.pieces[0].problem for each in answers if each.pieces}
        assert problems == {
            "told": "",
            "empty": "it has not been started yet",
            "gone": "its agent was disconnected",
        }


async def test_agents_of_earlier_versions_are_named_and_bad_questions_refused(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path, limits=Limits(log_readers_max=1)) as client:
        await joined(client, "a", features=[], version="0.0.9", local_world_size=2)
        reader = Reader(client, ranks=[1])
        _, answer = await reader.all()
        (piece,) = answer.pieces
        assert piece.next.rank == 1
        assert piece.problem == "its agent is of version 0.0.9, which brings no logs"

        await Reader(client, follow=True).read()
        for question, why in (
            ({"follow": True}, "log_readers_max is reached: 1"),
            ({"ranks": [2]}, "ranks of round 0"),
            ({"tail": 10_001}, "at most 10000"),
            ({"ranks": range(1_001)}, "at most 1000"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await Reader(client, **question).all()
            assert why in (refused.value.details() or "")


async def test_what_nobody_reads_stays_with_the_agent(tmp_path: Path) -> None:
    limits = Limits(log_bytes_per_s_max=1)
    async with coordinator(tmp_path, limits=limits) as client:
        (agent,) = await joined(client, "a")
        Reader(client, follow=True)
        (request,) = await asked(agent)
        bringer = Bringer(client, agent, request.request_id)
        await bringer.begin()
        sent = 0
        with suppress(TimeoutError):
            while sent < 10 * QUEUE_MAX:  # of half a megabyte each
                async with asyncio.timeout(500 * MS):
                    await bringer.bring(0, sent, "x" * 500_000)
                sent += 1
        assert sent < 4 * QUEUE_MAX, "it is not read, and so not taken"
        assert (await client.run()).run.run_id == "run", "nothing else waits for it"
