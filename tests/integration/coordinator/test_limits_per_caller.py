"""What one caller can hold of a coordinator: a part, so that others have the rest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from drumbeat.access.token import Role
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import query_pb2
from tests.integration.coordinator.test_logs import Bringer, Reader, asked, joined
from tests.support.pages import Site, bearer, site
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Client, Refused, coordinator, spec

LIMITS = Limits(
    log_readers_per_caller_max=1,
    stack_questions_per_caller_max=1,
    watches_per_caller_max=1,
    page_streams_per_caller_max=1,
    http_connections_max=4,
    http_connections_per_caller_max=2,
)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, limits=LIMITS) as made:
        yield made


def logs(client: Client) -> Any:
    return client.runs.WatchLogs(query_pb2.WatchLogsRequest(run_id="run", follow=True))


def events(client: Client) -> Any:
    return client.runs.WatchEvents(query_pb2.WatchEventsRequest(run_id="run"))


@pytest.mark.parametrize(
    ("ask", "limit"),
    [(logs, "log_readers_per_caller_max"), (events, "watches_per_caller_max")],
)
async def test_one_caller_holds_its_share_of_streams_and_another_caller_gets_in(
    served: Site, ask: Any, limit: str
) -> None:
    join, first, second = [await served.token(role) for role in (Role.JOIN, *[Role.VIEW] * 2)]
    async with AsyncExitStack() as stack:
        agents, one, other = [
            await stack.enter_async_context(served.client(token)) for token in (join, first, second)
        ]
        await joined(agents, "a")
        held = ask(one)
        async with asyncio.timeout(DEADLINE_S):
            await held.read()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask(one).read()
            assert Refused.of(error.value).detail.limit.name == limit
            assert await ask(other).read() is not grpc.aio.EOF
            held.cancel()


async def test_one_caller_asks_its_share_of_stack_questions(served: Site) -> None:
    join, first, second = [await served.token(role) for role in (Role.JOIN, *[Role.VIEW] * 2)]
    async with AsyncExitStack() as stack:
        agents, one, other = [
            await stack.enter_async_context(served.client(token)) for token in (join, first, second)
        ]
        (agent,) = await joined(agents, "a", features=["stacks"])
        request = query_pb2.GetStacksRequest(run_id="run")
        held, of_other = one.runs.GetStacks(request), None
        while (await agent.read()).WhichOneof("kind") != "collect":  # it waits for an answer
            pass
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await one.runs.GetStacks(request).read()
            assert Refused.of(error.value).detail.limit.name == "stack_questions_per_caller_max"
            of_other = other.runs.GetStacks(request)
            while len((await agent.read()).collect.stacks) < 2:
                pass
        held.cancel()
        of_other.cancel()


async def test_one_caller_holds_its_share_of_the_page(served: Site) -> None:
    first, second = await served.token(Role.VIEW), await served.token(Role.VIEW)
    browser = served.browser()
    async with browser.open("GET", "/api/live", headers=bearer(first)) as held:
        assert held.status == 200
        for path in ("/api/live", "/api/live"):
            told = await browser.get(path, headers=bearer(first))
            assert (told.status, "page_streams_per_caller_max" in told.reason) == (429, True)
        async with browser.open("GET", "/api/live", headers=bearer(second)) as other:
            assert other.status == 200


async def test_a_reader_that_takes_nothing_is_left(tmp_path: Path) -> None:
    limits = Limits(send_timeout_s=100 * MS)
    async with coordinator(tmp_path, limits=limits) as client:
        (agent,) = await joined(client, "a")
        reader = Reader(client, follow=True)
        (request,) = await asked(agent)
        bringer = Bringer(client, agent, request.request_id)
        await bringer.begin()

        async def bring() -> None:
            for number in range(1_000):
                await bringer.bring(0, number, "x" * 500_000)

        bringing = asyncio.create_task(bring())
        async with asyncio.timeout(DEADLINE_S):
            assert await asked(agent) == [], "no one reads"
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await reader.all()
        assert Refused.of(error.value).detail.limit.name == "send_timeout_s"


async def test_idle_connections_of_one_caller_keep_no_other_out(served: Site) -> None:
    first, second = await served.token(Role.VIEW), await served.token(Role.VIEW)
    async with AsyncExitStack() as stack:
        for _ in range(LIMITS.http_connections_max):
            own = await stack.enter_async_context(aiohttp.ClientSession())
            browser = served.browser()
            browser.session = own
            assert (await browser.get("/api/me", headers=bearer(first))).status == 200
        assert (await served.browser().get("/api/me", headers=bearer(second))).status == 200


async def test_one_token_opens_its_share_of_runs_that_wait_for_agents(tmp_path: Path) -> None:
    policy, two = Policy(runs_waiting_per_caller_max=1), spec(2, 2)
    async with site(tmp_path, policy=policy) as served, AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(served.client(await served.token(Role.JOIN)))
            for _ in range(2)
        ]
        await one.agent(run_id="a", spec=two).join()
        agent = one.agent(run_id="b", spec=two)
        await agent.say_hello()
        refused = await agent.refused()
        assert refused.detail.limit.name == "runs_waiting_per_caller_max"
        await other.agent(run_id="b", spec=two).join()
