"""The driver between a core and the outside: nothing leaves before it is on disk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from drumbeat.coordinator.api.query_service import QueryService
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    LimitsReset,
)
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    FailureRecorded,
    FailuresCounted,
    RoundEnded,
    RoundStarted,
    RunCreated,
)
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import LimitReached, Unavailable
from drumbeat.coordinator.journal.batches import Change
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.observe.goodput.stretches import ProgressNoted
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.coordinator.shell.turns import BATCH_MAX, FAILURES_BYTES_MAX, FAILURES_MAX
from drumbeat.model import Assignment, GroupState
from drumbeat.v1 import common_pb2, failure_pb2, query_pb2, session_pb2
from tests.support.drivers import (
    DEADLINE_S,
    Scene,
    beat,
    failure,
    hello,
    one_hello,
    running,
    take,
    turns,
    unheard,
)
from tests.support.waiting import wait_until


def kinds(changes: Sequence[Change]) -> list[type]:
    return [type(change.record) for change in changes if isinstance(change, fx.Persist)]


async def test_nothing_leaves_before_it_is_written() -> None:
    async with Scene() as scene:
        scene.journal.gate.clear()
        outbox = scene.open()
        pushes = asyncio.create_task(take(outbox, 2))
        await scene.journal.wait_for_tries(1)
        # The decision is made; the loop may turn as often as it likes.
        assert scene.driver.registry.runs["r"].state.phase is Phase.RUNNING
        await turns()
        assert not pushes.done()
        scene.journal.gate.set()
        welcome, desired = await pushes
        assert isinstance(welcome, fx.Welcome)
        assert isinstance(desired, fx.Direct)
        assert isinstance(desired.state, Assignment)
        started = [RunCreated, AgentAdmitted, RoundStarted, ProgressNoted]
        assert kinds(scene.journal.writes[0]) == started


async def test_a_coordinator_that_stood_still_says_so() -> None:
    async with Scene() as scene:
        await take(scene.open(agents=2), 1)
        with capture_logs() as logs:
            scene.driver._clock_offset += 25.0
            await take(scene.open("b", agents=2), 1)
    (line,) = (line for line in logs if line["event"] == "coordinator stood still")
    assert "stood still for 2" in line["reason"]


async def test_a_coordinator_that_is_behind_says_so_once_and_when_it_is_no_more() -> None:
    async with Scene() as scene:
        with capture_logs() as logs:
            for number, stretch in enumerate((1, 2, 2, 4, 2, 1)):
                scene.driver.registry.load.stretch = stretch
                await take(scene.open(f"h{number}", agents=20), 1)
    told = [line for line in logs if "stretch" in line]
    assert [(line["log_level"], line["stretch"]) for line in told] == [
        ("warning", 2),
        ("warning", 4),
        ("info", 2),
        ("info", 1),
    ]
    assert "4 times as rarely" in told[1]["message"]
    assert told[3]["message"] == "agents send heartbeats as often as usual again"


async def test_agents_are_told_before_those_who_watch() -> None:
    async with Scene() as scene:
        outbox, order = scene.open(agents=2), list[str]()
        await take(outbox, 2)

        async def agent() -> None:
            await outbox.next()
            order.append("agent")

        async def watcher() -> None:
            with scene.driver.journal.runs.watches.open("r", most=1) as watch:
                await watch.news()  # which is there at the beginning
                await watch.news()
                order.append("watcher")

        waiting = [asyncio.create_task(watcher()), asyncio.create_task(agent())]
        await asyncio.sleep(0)
        scene.open("b", agents=2)
        await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
        assert order == ["agent", "watcher"]


async def test_a_record_is_acknowledged_only_when_it_is_written() -> None:
    async with Scene() as scene:
        await take(scene.open(), 2)
        scene.journal.gate.clear()
        answer, tries = scene.driver.ask(failure(1)), scene.journal.tries
        await scene.journal.wait_for_tries(tries + 1)
        await turns()
        assert not answer.done()
        scene.journal.gate.set()
        assert await asyncio.wait_for(answer, DEADLINE_S) is True
        assert kinds(scene.journal.writes[-1]) == [FailureRecorded]


async def test_what_comes_during_a_write_shares_the_next_one() -> None:
    async with Scene() as scene:
        await take(scene.open(), 2)
        written = len(scene.journal.writes)
        await scene.hold()
        answers = [scene.driver.ask(failure(number)) for number in range(2, 202)]
        scene.journal.gate.set()
        assert await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S) == [True] * 200
        assert [len(write) for write in scene.journal.writes[written:]] == [1, 200]


async def test_a_batch_is_bounded() -> None:
    async with Scene() as scene:
        scene.journal.runs.records_per_snapshot = 100_000  # what is counted is records alone
        await take(scene.open(), 2)
        written = len(scene.journal.writes)
        for number in range(2 * BATCH_MAX):
            scene.driver.submit(hello(f"standby {number}"))
        await take(scene.open("last"), 1)
        sizes = [len(write) for write in scene.journal.writes[written:]]
        assert sizes == [BATCH_MAX, BATCH_MAX, 1]


async def test_a_batch_of_failure_records_is_bounded_by_number_and_by_bytes() -> None:
    async with Scene() as scene:
        scene.journal.runs.records_per_snapshot = 100_000  # what is counted is records alone
        await take(scene.open(), 2)
        written = len(scene.journal.writes)
        count = 2 * FAILURES_MAX + 1
        answers = [scene.driver.ask(failure(number)) for number in range(1, count + 1)]
        await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S)
        large = [failure(count + n, size_bytes=FAILURES_BYTES_MAX - 1) for n in (1, 2, 3)]
        answers = [scene.driver.ask(event) for event in large]
        await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S)
        sizes = [len(write) for write in scene.journal.writes[written:]]
        assert sizes == [FAILURES_MAX, FAILURES_MAX, 1, 2, 1]


async def test_what_decides_overtakes_all_failure_records_that_wait() -> None:
    async with Scene() as scene:
        outbox = scene.open()
        await take(outbox, 2)
        await scene.hold()
        written = len(scene.journal.writes) + 1
        for number in range(2, 4 * FAILURES_MAX):
            scene.driver.submit(failure(number))
        scene.driver.submit(beat("a", GroupState.FAILED))
        scene.journal.gate.set()
        (desired,) = await take(outbox, 1)
        assert isinstance(desired, fx.Direct)
        assert isinstance(desired.state, Assignment)
        first = kinds(scene.journal.writes[written])
        decided = [kind for kind in first if kind not in (FailureRecorded, ProgressNoted)]
        assert decided == [RoundEnded, RoundStarted]
        assert first.index(RoundStarted) < 4
        assert len(first) <= 5 + FAILURES_MAX


async def test_records_that_are_dropped_share_one_small_row_of_a_batch() -> None:
    async with Scene(failures_kept_max=1) as scene:
        await take(scene.open(), 2)
        answers = [scene.driver.ask(failure(number)) for number in range(1, 202)]
        kept = await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S)
        assert kept == [True] + [False] * 200
        assert kinds(scene.journal.writes[-1]) == [FailureRecorded, FailuresCounted]
        (count,) = [
            change.record
            for change in scene.journal.writes[-1]
            if isinstance(change, fx.Persist) and isinstance(change.record, FailuresCounted)
        ]
        assert count == FailuresCounted(heard={"a.1": 201}, count=200)


async def test_readers_see_what_is_written_and_not_what_is_being_written() -> None:
    async with Scene() as scene:
        queries = QueryService(scene.driver)
        await take(scene.open(), 2)
        scene.journal.gate.clear()
        answer, tries = scene.driver.ask(failure(1)), scene.journal.tries
        await scene.journal.wait_for_tries(tries + 1)
        asked = query_pb2.GetRunRequest(run_id="r")
        assert scene.driver.registry.runs["r"].state.failures_count == 1
        assert (await queries.GetRun(asked)).run.failures_count == 0
        scene.journal.gate.set()
        await asyncio.wait_for(answer, DEADLINE_S)
        assert (await queries.GetRun(asked)).run.failures_count == 1


async def test_beats_cost_no_write() -> None:
    async with Scene() as scene:
        await take(scene.open(), 2)
        written = len(scene.journal.writes)
        for _ in range(1_000):
            scene.driver.submit(beat("a", GroupState.IDLE))
        answer = scene.driver.ask(failure(1))
        await asyncio.wait_for(answer, DEADLINE_S)
        assert len(scene.journal.writes) == written + 1


async def test_a_full_queue_refuses_by_its_name_but_never_the_end_of_a_session() -> None:
    async with Scene(queue_max=3) as scene:
        await take(scene.open(), 2)
        await scene.hold()
        asked = LimitsReset(run_id="r", request_id=99)
        for _ in range(3):
            scene.driver.submit(asked)
        with pytest.raises(LimitReached, match="event_queue_max is reached: 3"):
            scene.driver.submit(asked)
        scene.driver.close(hello())
        scene.journal.gate.set()
        members = scene.driver.registry.runs["r"].members
        await wait_until(lambda: not members.connected, DEADLINE_S)
        scene.driver.submit(asked)  # there is room again


async def test_a_stopped_driver_ends_sessions_and_decides_nothing_any_more() -> None:
    async with Scene() as scene:
        outbox = scene.open()
        await take(outbox, 2)
        scene.driver.stop(Unavailable("it is stopping"))
        with pytest.raises(Unavailable):
            await take(outbox, 1)
        written = len(scene.journal.writes)
        scene.driver.close(hello())
        await turns()
        assert scene.driver.registry.runs["r"].members.connected == {"a.1"}
        assert len(scene.journal.writes) == written


async def test_an_overfull_queue_ends_the_stream_that_fills_it() -> None:
    async with Scene(queue_max=1) as scene:
        sessions = Sessions(scene.driver)
        scene.journal.gate.clear()
        scene.open()
        await scene.journal.wait_for_tries(1)
        scene.driver.close(hello("x"))
        with pytest.raises(LimitReached, match="event_queue_max"):
            await sessions.open(one_hello(), unheard)
        scene.journal.gate.set()


async def test_a_failure_that_was_written_and_not_decided_is_decided_after_a_restart(
    tmp_path: Path,
) -> None:
    """Killed between the two: the record is on disk, the round still counts as running."""
    async with running(SqliteJournal(tmp_path)) as driver:
        await take(driver.open(hello()), 2)
        assert await asyncio.wait_for(driver.ask(failure(1)), DEADLINE_S)
    async with running(SqliteJournal(tmp_path)) as driver:
        state = driver.registry.runs["r"].state
        assert (state.phase, state.restart_count, state.failures_count) == (Phase.RUNNING, 0, 1)
        said = Beat(state=GroupState.FAILED, round_id=0, master_port=4001, failures_written=1)
        outbox = driver.open(replace(hello(session_id="b"), beat=said))
        again = driver.ask(failure(1, request_id=2))  # its acknowledgement may have been lost
        _, desired = await take(outbox, 2)
        assert isinstance(desired, fx.Direct)
        assert isinstance(desired.state, Assignment)
        assert (desired.state.round_id, desired.state.restart_count) == (1, 1)
        assert await asyncio.wait_for(again, DEADLINE_S) is False
        state = driver.registry.runs["r"].state
        assert (state.restart_count, state.failures_count) == (1, 1)


async def test_a_record_that_finds_no_room_waits_and_is_not_overtaken() -> None:
    """One accepted before it would make it look like one that was counted before."""
    async with Scene(failures_waiting_max=2) as scene:
        sessions = Sessions(scene.driver)
        await take(scene.open(), 2)
        scene.journal.gate.clear()
        tries = scene.journal.tries
        await scene.driver.submit_failure(failure(1, request_id=1_000))
        await scene.journal.wait_for_tries(tries + 1)
        heard: list[session_pb2.ReportFailuresResponse] = []

        async def hear(response: session_pb2.ReportFailuresResponse) -> None:
            heard.append(response)

        given_up = asyncio.create_task(sessions.report(records(1, 9), hear))
        answers = asyncio.create_task(sessions.report(records(2, 9), hear))
        await turns()  # two find room, the others don't
        given_up.cancel()
        scene.journal.gate.set()
        await asyncio.wait_for(answers, DEADLINE_S)
        assert [answer.sequence for answer in heard] == list(range(2, 9))
        assert scene.driver.registry.runs["r"].state.failures_count == 8


async def records(first: int, end: int) -> AsyncIterator[session_pb2.ReportFailuresRequest]:
    fence = common_pb2.Fence(run_id="r", round_id=0, incarnation="a.1")
    for sequence in range(first, end):
        record = failure_pb2.FailureRecord(fence=fence, sequence=sequence, host="alice")
        yield session_pb2.ReportFailuresRequest(record=record)
