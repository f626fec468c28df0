"""The coordinator's end of a session: it ends at the first error of whichever part."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from coordinator.config import Limits
from coordinator.driver import Driver
from coordinator.errors import Unavailable
from coordinator.journal import MemoryJournal
from coordinator.registry import Registry, RegistryPolicy
from coordinator.sessions import Sessions
from drumbeat.v1 import common_pb2, session_pb2
from tests.support.waiting import MS, wait_until
from tests.support.wire import spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_S = 20_000 * MS


@asynccontextmanager
async def a_driver() -> AsyncIterator[Driver]:
    driver = Driver(Registry(RegistryPolicy()), MemoryJournal())
    task = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def says(*, error: Exception | None = None) -> AsyncIterator[session_pb2.OpenRequest]:
    """Say hello, and then nothing or something that can't be read."""
    yield session_pb2.OpenRequest(
        fence=common_pb2.Fence(run_id="r", incarnation="i"),
        hello=session_pb2.Hello(
            spec=spec(2, 2),
            host="h",
            address="a",
            role="r",
            local_world_size=1,
            beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE),
        ),
    )
    if error is not None:
        raise error
    await asyncio.Event().wait()


async def test_a_reader_that_breaks_ends_its_session_at_once() -> None:
    async def send(_: session_pb2.OpenResponse) -> None:
        pass

    async with a_driver() as driver:
        sessions = Sessions(driver, Limits())
        with pytest.raises(ValueError, match="unforeseen"):
            await asyncio.wait_for(
                sessions.open(says(error=ValueError("unforeseen")), send), DEADLINE_S
            )
        # Long before its lease is over.
        await wait_until(lambda: driver.registry.runs["r"].members.missed == {"i"}, DEADLINE_S)


async def test_an_error_reaches_a_session_whose_agent_reads_nothing() -> None:
    is_stuck = asyncio.Event()

    async def send(_: session_pb2.OpenResponse) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    async with a_driver() as driver:
        session = asyncio.create_task(Sessions(driver, Limits()).open(says(), send))
        await asyncio.wait_for(is_stuck.wait(), DEADLINE_S)
        driver.stop(Unavailable("it is stopping"))
        with pytest.raises(Unavailable):
            await asyncio.wait_for(session, DEADLINE_S)
