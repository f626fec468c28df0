"""Commands of operators find the coordinator that leads, from any address that they are given."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from drumbeat.coordinator.access import calls
from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.command.looking import following
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.v1 import session_pb2
from tests.support.fake_coordinator import UNAUTHENTICATED
from tests.support.follower import Follower, follower
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, Client, coordinator


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[str]:
    """One that leads, with a run."""
    async with coordinator(tmp_path) as client:
        await (await client.agent().join()).run()
        yield f"127.0.0.1:{client.port}"


@pytest.fixture
async def other() -> AsyncIterator[Follower]:
    """One that follows."""
    async with follower() as made:
        yield made


async def run(line: str, *addresses: str) -> int:
    """Run a command that is told of these; return its exit code."""
    argv = [*line.split(), "--insecure", "--coordinator", ",".join(addresses)]
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.to_thread(cli.main, argv)


@pytest.mark.parametrize(
    "verb",
    [
        *("status", "status run", "events run", "why run", "stacks run", "drains", "token list"),
        *("logs run", "drain nowhere", "restart run", "reset-limits --run-id run"),
    ],
)
async def test_a_command_finds_the_leader_in_one_hop(verb: str, head: str, other: Follower) -> None:
    other.names(head)
    assert await run(verb, other.address) == 0
    assert other.calls == 1


async def test_it_goes_past_those_that_are_dead_or_know_nothing_and_waits_where_it_is_held(
    head: str, other: Follower, nowhere: str
) -> None:
    assert await run("status", nowhere, other.address, head) == 0
    other.is_asked.clear()
    other.is_free.clear()
    asking = asyncio.create_task(run("status", nowhere, other.address))
    async with asyncio.timeout(DEADLINE_S):
        await other.is_asked.wait()
    other.names(head)
    other.is_free.set()
    assert await asking == 0


async def test_it_waits_for_the_next_leader_where_the_one_that_is_named_has_died(
    head: str, other: Follower, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        other.names(head if len(waited) == 2 else nowhere)

    monkeypatch.setattr(calls, "time", SimpleNamespace(sleep=wait))
    other.names(nowhere)
    assert await run("stop run", nowhere, other.address) == 0
    assert waited == list(calls.ELECTION_WAITS_S[:2])


async def test_without_a_leader_it_says_of_each_address_why(
    other: Follower,
    nowhere: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "ELECTION_WAITS_S", ())
    other.names(reason="etcd has not answered for 12 s")
    async with follower() as third:
        third.names(reason="etcd has not answered for 12 s")
        assert await run("status", other.address, nowhere, third.address) == 3
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith(
        "coordinator: error: no coordinator leads: etcd has not answered for 12 s "
        f"({other.address} and {third.address} say so); {nowhere}: "
    )
    assert await run("stop x", other.address) == 3
    line = capsys.readouterr().err.splitlines()[0]
    assert line.endswith(f"etcd has not answered for 12 s ({other.address} says so)")
    other.names(nowhere)
    assert await run("stop x", other.address) == 3
    line = capsys.readouterr().err.splitlines()[0]
    assert f"{other.address}: this coordinator does not lead, {nowhere} does" in line
    assert f"{nowhere}: " in line


async def test_who_is_refused_by_one_is_let_in_by_the_next_or_told_to_get_in(
    head: str, other: Follower, capsys: pytest.CaptureFixture[str]
) -> None:
    other.answer = UNAUTHENTICATED
    assert await run("status", other.address, head) == 0
    assert await run("status", other.address) == 2
    assert "the token was revoked" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["events run --follow", "watch run"])
async def test_following_goes_on_with_the_coordinator_that_leads_next(
    verb: str,
    tmp_path: Path,
    other: Follower,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "RETRY_MOST_S", 0.2)
    monkeypatch.setattr(following, "LEAST_S", 0.0)
    config = CoordinatorConfig(port=0, insecure=True)
    served = serving(config, SqliteJournal(tmp_path))
    async with served as (port, driver), Client(port) as client:
        first = f"127.0.0.1:{port}"
        other.names(first)
        await (await client.agent(incarnation="a").join()).run()
        done = asyncio.create_task(run(f"{verb} -o json", other.address, first))
        await wait_until(lambda: driver.journal.runs.watches._count, DEADLINE_S)
        other.is_asked.clear()
        other.names(first)  # that is no more
    async with asyncio.timeout(DEADLINE_S):
        await other.is_asked.wait()
    async with serving(config, SqliteJournal(tmp_path)) as (port, _), Client(port) as client:
        other.names(f"127.0.0.1:{port}")
        agent = await client.agent(incarnation="a").join()
        agent.fence.round_id = 0
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0, workers_done=1)
        await agent.desired("exit")
        assert await done == 0
    out, err = capsys.readouterr()
    assert "waiting for the one that leads" in err
    assert err.splitlines()[-1] == f"coordinator: 127.0.0.1:{port} leads"
    assert other.calls < 60, "a storm"
    if verb.startswith("events"):
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert [event["sequence"] for event in events] == [1, 2, 3]
