"""The coordinator's end of a session: what it may cost others, and when it ends."""

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import BeatReceived
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.errors import LimitReached, Unavailable
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.coordinator.shell.turns import BATCH_MAX
from drumbeat.model import GroupState, Pace
from drumbeat.v1 import common_pb2, session_pb2
from tests.support.drivers import DEADLINE_S, hello, one_hello, running
from tests.support.waiting import MS, wait_until
from tests.support.wire import spec


def news(name: str, port: int, run_id: str = "r") -> BeatReceived:
    beat = Beat(state=GroupState.IDLE, master_port=port)
    return BeatReceived(run_id=run_id, session_id=name, incarnation=f"{name}.1", beat=beat)


async def test_a_session_that_never_stops_talking_takes_no_room_and_no_time_of_others() -> None:
    async with running(limits=Limits(event_queue_max=2)) as driver:
        driver.open(hello("loud", agents=2))
        for port in range(1, 10_000):
            driver.submit(news("loud", port))
        quiet = driver.open(hello("quiet", agents=2))  # there is room
        welcome = await asyncio.wait_for(quiet.next(), DEADLINE_S)
        assert isinstance(welcome, fx.Welcome)
        (presence,) = (
            at for name, at in driver.registry.runs["r"].members.presences.items() if "loud" in name
        )
        assert presence.beat.master_port == 9_999


async def test_a_flood_delays_neither_deadlines_nor_the_loop() -> None:
    """More comes each time than one turn takes, so that something waits at any time."""
    pace = Pace(heartbeat_interval_s=40 * MS, lease_s=100 * MS, reconnect_delay_max_s=1.0)
    limits = Limits(event_queue_max=10**6)
    async with running(policy=Policy(base_pace=pace), limits=limits) as driver:
        outbox = driver.open(hello("silent", agents=2))
        await asyncio.wait_for(outbox.next(), DEADLINE_S)
        members = driver.registry.runs["r"].members
        strangers = itertools.count()
        turns = 0
        async with asyncio.timeout(DEADLINE_S):
            while "silent.1" in members.presences:
                for number in itertools.islice(strangers, BATCH_MAX + 1):
                    driver.submit(news(f"stranger-{number}", 1, run_id="elsewhere"))
                await asyncio.sleep(0)
                turns += 1
        assert turns > 1
        assert not driver._turns.is_idle


async def test_a_beat_that_says_nothing_new_renews_the_lease_and_wakes_no_driver() -> None:
    async with running() as driver:
        outbox = driver.open(hello("a", agents=2))
        await asyncio.wait_for(outbox.next(), DEADLINE_S)
        presence = driver.registry.runs["r"].members.presences["a.1"]
        before = presence.silent_since
        driver.submit(news("a", 4000))
        assert presence.silent_since > before
        assert driver._turns.is_idle
        driver.submit(news("a", 4001))
        # What waits is not overtaken by what only seems to repeat the state before it.
        driver.submit(news("a", 4000))
        await wait_until(lambda: driver._turns.is_idle, DEADLINE_S)
        assert presence.beat.master_port == 4000


async def test_a_reader_that_breaks_ends_its_session_at_once() -> None:
    async def send(_: session_pb2.Directive) -> None:
        pass

    async with running() as driver:
        sessions = Sessions(driver)
        with pytest.raises(ValueError, match="unforeseen"):
            await asyncio.wait_for(
                sessions.open(one_hello(agents=2, error=ValueError("unforeseen")), send), DEADLINE_S
            )
        # Long before its lease is over.
        await wait_until(lambda: driver.registry.runs["n"].members.missed == {"i"}, DEADLINE_S)


async def test_an_error_reaches_a_session_whose_agent_reads_nothing() -> None:
    is_stuck = asyncio.Event()

    async def send(_: session_pb2.Directive) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    async with running() as driver:
        session = asyncio.create_task(Sessions(driver).open(one_hello(agents=2), send))
        await asyncio.wait_for(is_stuck.wait(), DEADLINE_S)
        driver.stop(Unavailable("it is stopping"))
        with pytest.raises(Unavailable):
            await asyncio.wait_for(session, DEADLINE_S)


async def hostile(name: str, size: int) -> AsyncIterator[session_pb2.AgentReport]:
    """Say as much as one message holds, in the hello and in a beat."""
    texts = [chr(0x1F600 + number % 64) * 200 for number in range(64)]
    report = session_pb2.AgentReport(
        fence=common_pb2.Fence(run_id="r", incarnation=name, round_id=1),
        hello=session_pb2.Hello(
            run=session_pb2.RunPurpose(run_id="r", spec=spec(2, 2)),
            host="h",
            address="a",
            role="r",
            local_world_size=size,
            features=["\U0001f600" * 3_000 + text for text in texts],
            labels={text + str(number): text for number, text in enumerate(texts)},
            beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE),
        ),
    )
    for rank in range(size):
        report.hello.beat.workers.add(local_rank=rank, step=2**40 + rank, scope=texts[rank % 64])
    for number, text in enumerate(texts):
        report.hello.beat.expired.add(number=number + 1, kind=1, scope=text)
        report.hello.beat.observations.add(section=text[:31] + str(number))
    del texts, text
    yield report
    report = session_pb2.AgentReport()
    await asyncio.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "sessions_count"), [(1, 100), (8, 100), (4096, 12)])
async def test_a_hostile_session_costs_at_most_100_kb(size: int, sessions_count: int) -> None:
    """Measured with a tenth of the workers and a tenth of 1,000 sessions: 10 MB in all."""
    welcomed = refused = 0
    everyone = asyncio.Event()

    def note() -> None:
        if welcomed + refused == sessions_count:
            everyone.set()

    async def send(_: session_pb2.Directive) -> None:
        nonlocal welcomed
        welcomed += 1
        note()
        await asyncio.Event().wait()

    async def hold(sessions: Sessions, name: str) -> None:
        nonlocal refused
        try:
            await sessions.open(hostile(name, size), send)
        except LimitReached:
            refused += 1
            note()

    patient = Pace(heartbeat_interval_s=1.0, lease_s=600.0, reconnect_delay_max_s=0.25)
    limits = Limits(workers_per_caller_max=10_000)
    driver = Driver(Registry(Policy(base_pace=patient)), Journal(), limits)
    owner = asyncio.create_task(driver.run())
    sessions = Sessions(driver)
    tracemalloc.start()
    held = [asyncio.create_task(hold(sessions, f"i{number}")) for number in range(sessions_count)]
    try:
        await asyncio.wait_for(everyone.wait(), 3 * DEADLINE_S)  # memory is traced, which is slow
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] <= 10_000_000
        assert welcomed >= 2
        assert bool(refused) == (size == 4096)
    finally:
        tracemalloc.stop()
        for task in [*held, owner]:
            task.cancel()
        await asyncio.gather(*held, owner, return_exceptions=True)
    assert not sessions._workers
