"""Events that are told as soon as they are journaled, and a reader that resumes."""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from drumbeat.access.settings import AccessSettings
from drumbeat.coordinator.access import calls
from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.command.looking import following
from drumbeat.coordinator.command.looking.following import Patience
from drumbeat.coordinator.command.request import request
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.errors import CallFailed, Unavailable
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.journal.watches import Watches
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import common_pb2, query_pb2, session_pb2
from tests.support.fake_coordinator import Refused as Cancelled
from tests.support.follower import follower
from tests.support.proxy import Proxy
from tests.support.status import kind
from tests.support.waiting import MS, wait_until
from tests.support.wire import DEADLINE_S, Client, FakeAgent, Refused, coordinator

SUCCEEDED = session_pb2.GROUP_STATE_SUCCEEDED


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with coordinator(tmp_path, policy=Policy(history_max=4)) as client:
        yield client


def watch(client: Client, after: int = 0) -> Any:
    request = query_pb2.WatchEventsRequest(run_id="run", after_sequence=after)
    return client.runs.WatchEvents(request, timeout=DEADLINE_S)


async def kinds(call: Any) -> list[str]:
    return [kind(event) for event in (await call.read()).events]


async def finish(agent: FakeAgent) -> None:
    await agent.say(SUCCEEDED, workers_alive=0, workers_done=1)
    await agent.desired("exit")


async def refused(call: Any) -> Refused:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    return Refused.of(error.value)


async def test_a_watch_tells_what_was_and_is_decided_and_ends_with_the_run(client: Client) -> None:
    agent = await client.agent().join()
    await agent.run()
    call = watch(client)
    assert await kinds(call) == ["agent admitted", "round started"]
    later = watch(client, after=2)
    await finish(agent)
    assert await kinds(call) == await kinds(later) == ["run succeeded"]
    assert await call.read() is await later.read() is grpc.aio.EOF
    assert await watch(client, after=3).read() is grpc.aio.EOF


async def test_what_was_forgotten_is_counted(client: Client) -> None:
    for number in range(6):
        await client.agent(incarnation=str(number), host=str(number)).join()
    response = await watch(client).read()
    last = response.events[-1].sequence
    assert (len(response.events), response.missed) == (4, last - 4)


async def test_a_watch_that_can_not_be_is_refused(client: Client) -> None:
    assert (await refused(watch(client))).reason == "UNKNOWN_RUN"
    await client.agent().join()
    beyond = await refused(watch(client, after=1_000))
    assert (beyond.reason, beyond.detail.violation.field) == ("INVALID", "after_sequence")


async def test_one_watch_too_many_is_refused(tmp_path: Path) -> None:
    async with coordinator(tmp_path, limits=Limits(watches_max=1)) as client:
        await client.agent().join()
        call = watch(client)
        await kinds(call)
        assert (await refused(watch(client))).detail.limit.name == "watches_max"
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call.read()


async def test_a_coordinator_that_stops_ends_its_watches() -> None:
    watches = Watches()
    with watches.open("a", most=1) as before:
        watches.end(Unavailable("it is stopping"))
        with pytest.raises(Unavailable):
            await before.news()
    with watches.open("a", most=1) as after, pytest.raises(Unavailable):
        await after.news()


async def test_following_goes_on_with_the_next_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RETRY_MOST_S", 0.2)
    config = CoordinatorConfig(port=0, insecure=True)
    async with serving(config, SqliteJournal(tmp_path)) as (port, driver), Client(port) as client:
        await (await client.agent(incarnation="a").join()).run()
        line = f"events run --follow -o json --insecure --coordinator 127.0.0.1:{port}"
        done = asyncio.create_task(asyncio.to_thread(cli.main, line.split()))
        await wait_until(lambda: driver.journal.runs.watches._count, DEADLINE_S)
    again = replace(config, port=port)
    async with serving(again, SqliteJournal(tmp_path)), Client(port) as client:
        agent = await client.agent(incarnation="a").join()
        agent.fence.round_id = 0
        await agent.run()
        await finish(agent)
        async with asyncio.timeout(DEADLINE_S):
            assert await done == 0
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [event["sequence"] for event in events] == [1, 2, 3]
    assert events[-1]["kind"] == "run_succeeded"
    assert "waiting for it" in err


@pytest.mark.parametrize("verb", ["events run --follow", "watch run"])
async def test_following_goes_on_when_a_host_that_vanished_is_back(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LEAST_S", 0.0)
    monkeypatch.setattr(following, "SHARE", 1e-9)  # it is the event that lets it look again
    monkeypatch.setattr(calls, "KEEPALIVE_AFTER_S", 200 * MS)
    monkeypatch.setattr(calls, "KEEPALIVE_WITHIN_S", 300 * MS)
    config, said = CoordinatorConfig(port=0, insecure=True), io.StringIO()
    served = serving(config, SqliteJournal(tmp_path))
    async with served as (port, driver), Client(port) as client:
        agent = await client.agent().join()
        await agent.run()
        with Proxy(f"127.0.0.1:{port}") as proxy, redirect_stderr(said):
            line = f"{verb} -o json --insecure --coordinator {proxy.address}"
            done = asyncio.create_task(asyncio.to_thread(cli.main, line.split()))
            await wait_until(lambda: driver.journal.runs.watches._count, DEADLINE_S)
            proxy.stall(up=True, down=True)  # nothing is said any more, nor is it closed
            await wait_until(lambda: "waiting for it" in said.getvalue(), DEADLINE_S)
            await finish(agent)
            proxy.restore()
            async with asyncio.timeout(DEADLINE_S):
                assert await done == 0
    assert said.getvalue().splitlines()[-1] == "coordinator: it is back"
    out = capsys.readouterr().out
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if verb.startswith("events"):
        assert [event["sequence"] for event in told] == [1, 2, 3]
    else:
        assert (told[0]["phase"], told[-1]["phase"]) == ("running", "ended")


async def test_a_status_is_shown_until_the_run_has_ended(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LEAST_S", 0.0)
    monkeypatch.setattr(following, "SHARE", 1e-9)  # it is the event that lets it look again
    agent = await client.agent().join()
    await agent.run()
    looked = threading.Event()

    def look() -> list[str]:
        phases = []
        access: dict[str, Any] = {"coordinator": f"127.0.0.1:{client.port}", "insecure": True}
        for status in following.looks(request("watch", run_id="run", **access)):
            phases.append(status["phase"])
            looked.set()
        return phases

    done = asyncio.create_task(asyncio.to_thread(look))
    await asyncio.to_thread(looked.wait, DEADLINE_S)
    await finish(agent)
    async with asyncio.timeout(DEADLINE_S):
        phases = await done
    assert (phases[0], phases[-1]) == ("running", "ended")
    line = f"watch run --insecure --coordinator 127.0.0.1:{client.port}"
    assert await asyncio.to_thread(cli.main, line.split()) == 0
    assert "run run succeeded " in capsys.readouterr().out


def test_who_was_never_reached_is_not_waited_for() -> None:
    slept: list[float] = []
    way = calls.CoordinatorCalls(AccessSettings(), "head:1", use_proxy=False)
    patience = Patience(way, slept.append)
    away, refusal = CallFailed("away", 3), CallFailed("no", 2)
    with pytest.raises(CallFailed):
        patience.wait(away)
    patience.reached()
    for _ in range(6):
        patience.wait(away)
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    with pytest.raises(CallFailed):
        patience.wait(refusal)


async def test_a_coordinator_that_cancels_calls_as_it_ends_was_not_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with follower() as ending:
        ending.answer = Cancelled(
            grpc.StatusCode.CANCELLED, common_pb2.REFUSAL_UNSPECIFIED, "CANCELLED"
        )
        line = f"status --insecure --coordinator {ending.address}"
        assert await asyncio.to_thread(cli.main, line.split()) == 3
    assert "cannot be reached: CANCELLED" in capsys.readouterr().err
