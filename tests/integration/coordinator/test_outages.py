"""A driver whose journal can't be written for a while: it decides nothing, and loses nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from drumbeat.coordinator.cluster.server import crash_if_failed
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import BeatReceived, LimitsReset
from drumbeat.coordinator.core.run.records import CallKind
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import (
    JournalCorrupt,
    LostLeadership,
    Unavailable,
)
from drumbeat.coordinator.journal import outage as outage_module
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.shell import driver as driver_module
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.model import Assignment, GroupState
from tests.support import breaks, drivers
from tests.support.drivers import (
    DEADLINE_S,
    Scene,
    beat,
    failure,
    hello,
    one_hello,
    take,
    turns,
    unheard,
)
from tests.support.waiting import MS, wait_until


@asynccontextmanager
async def running(failures_waiting_max: int = 256) -> AsyncIterator[Scene]:
    """Run a driver with one agent in its first round, of each of the runs r and q."""
    async with Scene(failures_waiting_max=failures_waiting_max) as scene:
        for run_id, name in (("r", "a"), ("q", "b")):
            await take(scene.open(name, run_id=run_id), 2)
            scene.driver.submit(beat(name, GroupState.RUNNING, run_id=run_id))
        yield scene


def verdict(scene: Scene) -> str:
    """Return why run r has ended, as it was journaled; empty if it has not."""
    kept = scene.journal.runs.find("r")
    return kept.verdict.reason if kept is not None and kept.verdict is not None else ""


async def test_nothing_is_told_while_the_journal_is_full_and_all_of_it_afterwards() -> None:
    async with running() as scene:
        await scene.fill()
        pushes = asyncio.create_task(take(scene.outboxes["a"], 1))
        scene.driver.submit(beat("b", GroupState.RUNNING, run_id="q"))  # sessions stay
        answer = scene.driver.ask(failure(1))
        await scene.journal.wait_for_tries(scene.journal.tries + 2)
        await turns()
        assert not pushes.done()
        assert not answer.done()
        assert scene.serving == [False]
        kept = scene.journal.runs.find("r")
        assert kept is not None
        assert (kept.round_id, kept.phase) == (0, Phase.RUNNING)

        scene.clear()
        (desired,) = await pushes
        assert isinstance(desired, fx.Direct)
        assert isinstance(desired.state, Assignment)
        assert desired.state.round_id == 1
        assert await asyncio.wait_for(answer, DEADLINE_S) is True
        assert scene.serving == [False, True]
        kept = scene.journal.runs.find("r")
        assert kept is not None
        assert (kept.round_id, kept.restart_count, kept.failures_count) == (1, 1, 1)


async def test_what_is_refused_of_a_run_is_noted_unless_the_journal_is_full() -> None:
    async with running() as scene:

        def noted() -> list[str]:
            kept = scene.journal.runs.find("r")
            assert kept is not None
            return [entry.reason for entry in kept.history if entry.decision == "access refused"]

        scene.driver.note("r", CallKind.ACCESS_REFUSED, "t1", "before")
        await wait_until(lambda: noted() == ["before"], DEADLINE_S)
        await scene.fill()
        for number in range(100):
            scene.driver.note("r", CallKind.ACCESS_REFUSED, "t1", f"meanwhile {number}")
        scene.clear()
        await wait_until(lambda: scene.serving == [False, True], DEADLINE_S)
        scene.driver.note("r", CallKind.ACCESS_REFUSED, "t1", "after")
        await wait_until(lambda: noted() == ["before", "after"], DEADLINE_S)


@pytest.mark.slow
async def test_who_comes_while_the_journal_is_full_is_told_why_to_come_again() -> None:
    async with running() as scene:
        await scene.fill()
        for event in (hello("c"), LimitsReset(run_id="r", request_id=9)):
            with pytest.raises(Unavailable, match="no room to grow: No space left on device"):
                scene.driver.submit(event)
        scene.clear()
        await scene.journal.wait_for_tries(scene.journal.tries + 1)
        await wait_until(lambda: scene.serving == [False, True], DEADLINE_S)
        (welcome, *_) = await take(scene.open("c"), 1)
        assert isinstance(welcome, fx.Welcome)


async def test_nothing_is_decided_in_a_pause_and_all_before_is_written() -> None:
    async with running() as scene:
        scene.journal.gate.clear()
        tries = scene.journal.tries
        scene.driver.submit(beat("a", GroupState.FAILED))
        await scene.journal.wait_for_tries(tries + 1)
        asyncio.get_running_loop().call_soon(scene.journal.gate.set)
        async with scene.driver.paused(DEADLINE_S):
            kept = scene.journal.runs.find("r")
            assert kept is not None
            assert kept.restart_count == 1
            scene.driver.submit(beat("b", GroupState.FAILED, run_id="q"))
            await turns()
            assert scene.journal.tries == tries + 1
        await scene.journal.wait_for_tries(tries + 2)


async def test_a_pause_waits_no_longer_for_the_journal_than_it_may() -> None:
    async with running() as scene:
        await scene.fill()
        with pytest.raises(TimeoutError):
            async with scene.driver.paused(10 * MS):
                pytest.fail("what was decided is not written")
        scene.clear()
        async with scene.driver.paused(DEADLINE_S):
            assert not scene.driver.outage


async def test_who_comes_again_and_again_in_an_outage_takes_no_room() -> None:
    async with running() as scene:
        await scene.fill()
        sessions, waiting = Sessions(scene.driver), len(scene.driver._turns._queue)
        for _ in range(10):
            with pytest.raises(Unavailable, match="no room to grow"):
                await sessions.open(one_hello(), unheard)
        assert len(scene.driver._turns._queue) == waiting
        assert scene.driver._turns.outboxes.keys() == {"a", "b"}


async def test_a_decision_that_is_not_written_is_not_shown() -> None:
    async with running() as scene:
        await scene.fill()
        assert scene.driver.registry.runs["r"].state.round_id == 1
        shown = {run_id: scene.driver.journal.runs.find(run_id) for run_id in ("q", "r")}
        assert {run_id: state.round_id for run_id, state in shown.items() if state} == {
            "q": 0,
            "r": 0,
        }


async def test_failure_records_that_wait_for_the_journal_are_bounded() -> None:
    async with running(failures_waiting_max=2) as scene:
        await scene.fill()
        answers = [await scene.driver.submit_failure(failure(number)) for number in (1, 2)]
        third = asyncio.create_task(scene.driver.submit_failure(failure(3)))
        await turns()
        assert not third.done()
        scene.driver.submit(beat("a", GroupState.RUNNING))
        scene.driver.close(hello("b", run_id="q"))
        scene.clear()
        assert await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S) == [True, True]
        assert await asyncio.wait_for(await third, DEADLINE_S)


async def test_an_agent_whose_stream_broke_in_an_outage_is_expected_back() -> None:
    async with running() as scene:
        await scene.fill()
        scene.driver.close(hello("b", run_id="q"))
        scene.clear()
        await wait_until(lambda: scene.serving == [False, True], DEADLINE_S)
        await turns()
        run = scene.driver.registry.runs["q"]
        deadline = run.members.next_deadline()
        assert deadline is not None
        assert deadline - scene.driver.now() > 10


async def test_a_disk_that_does_not_answer_is_an_outage_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as scene:
        monkeypatch.setattr(driver_module, "PATIENCE_S", 10 * MS)
        scene.journal.gate.clear()
        scene.driver.submit(beat("a", GroupState.FAILED))
        await wait_until(lambda: scene.serving == [False], DEADLINE_S)
        with pytest.raises(Unavailable, match="the journal has not answered"):
            scene.driver.submit(hello("c"))
        scene.journal.gate.set()
        await wait_until(lambda: scene.serving == [False, True], DEADLINE_S)
        assert len(scene.journal.writes) == 3


async def test_a_coordinator_can_be_ended_in_an_outage() -> None:
    async with running() as scene:
        await scene.fill()
        scene.driver.stop(Unavailable("it is stopping"))
    assert scene.serving == [False]


async def test_a_coordinator_can_be_ended_while_its_disk_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended: list[int] = []
    gate = threading.Event()
    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.os._exit", ended.append)
    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.PATIENCE_S", 10 * MS)
    journal = SqliteJournal(tmp_path)
    stuck = asyncio.create_task(journal._call(gate.wait))
    await turns()
    await journal.close()
    gate.set()
    await stuck
    assert ended == [1]


async def test_a_journal_that_broke_for_good_ends_the_driver() -> None:
    scene = Scene()
    scene.journal.error = JournalCorrupt("/x/journal", "database disk image is malformed")
    task = asyncio.create_task(scene.driver.run())
    scene.open("a")
    with pytest.raises(JournalCorrupt, match="malformed"):
        await asyncio.wait_for(task, DEADLINE_S)


async def test_a_coordinator_that_was_replaced_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("drumbeat.coordinator.cluster.server.os._exit", ended.append)

    async def owner() -> None:
        raise LostLeadership("/x")

    task = asyncio.create_task(owner())
    await asyncio.wait({task})
    with capture_logs() as lines:
        crash_if_failed(task)
    assert ended == [1]
    (line,) = lines
    assert line["reason"] == "the state directory /x is in use by another coordinator"
    assert "exc_info" not in line


async def test_retries_grow_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy loop would try thousands of times."""
    monkeypatch.setattr(outage_module, "RETRY_FIRST_S", 40 * MS)
    async with running() as scene:
        tries = scene.journal.tries
        began = scene.driver.now()
        await scene.fill()
        await scene.journal.wait_for_tries(tries + 4)
        assert scene.driver.now() - began >= (40 + 80 + 160) * MS


# A run that breaks.


async def test_a_run_that_breaks_is_read_and_the_other_never_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Run.handle

    def handle(run: Run, event: object, *, now: float) -> list[fx.Effect]:
        effects = original(run, event, now=now)  # type: ignore[arg-type]
        if isinstance(event, BeatReceived) and event.beat.master_port == 666:
            raise ZeroDivisionError
        return effects

    monkeypatch.setattr(Run, "handle", handle)
    with breaks.contained():
        async with running() as scene:
            outbox, other = (scene.outboxes[name] for name in ("a", "b"))
            # What was decided before it, in the same batch, stays decided.
            scene.driver.submit(beat("a", GroupState.FAILED))
            scene.driver.submit(beat("a", GroupState.IDLE, port=666))
            with pytest.raises(Unavailable, match="run r is read again after an internal error"):
                await take(outbox, 9)
            await wait_until(lambda: scene.driver.registry.runs["r"].is_sound, DEADLINE_S)
            assert scene.driver.registry.runs["r"].state.restart_count == 1
            welcome, desired = await take(scene.open("a"), 2)
            assert isinstance(welcome, fx.Welcome)
            assert isinstance(desired, fx.Direct)
            assert isinstance(desired.state, Assignment)
            assert desired.state.round_id == 1

            writes = len(scene.journal.writes)
            scene.driver.submit(beat("a", GroupState.IDLE, port=666))
            refused = scene.driver.ask(failure(1))
            with pytest.raises(Unavailable):
                await asyncio.wait_for(refused, DEADLINE_S)
            await wait_until(lambda: len(scene.journal.writes) > writes, DEADLINE_S)
            assert "ZeroDivisionError" in verdict(scene)
            assert not other.error
            assert scene.driver.registry.runs["q"].state.phase is Phase.RUNNING


async def test_a_run_that_breaks_without_a_disk_is_read_from_memory() -> None:
    """In `agent join --standalone`."""
    async with drivers.running() as driver:
        outbox = driver.open(hello())
        await take(outbox, 2)
        with breaks.broken_core(driver.registry.runs["r"]):
            driver.submit(beat("a", GroupState.RUNNING))
            with pytest.raises(Unavailable):
                await take(outbox, 9)
        _, desired = await take(driver.open(hello()), 2)
        assert isinstance(desired, fx.Direct)
        assert isinstance(desired.state, Assignment)
        assert desired.state.round_id == 0


# Compaction.


async def test_a_coordinator_that_never_lives_long_compacts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumbeat.coordinator.journal.journal.RECORDS_PER_SNAPSHOT", 10)
    sizes = []
    for life in range(4):
        journal = SqliteJournal(tmp_path)
        async with drivers.running(journal) as driver:
            await take(driver.open(hello()), 2)
            for number in range(4 * life + 1, 4 * life + 5):
                await asyncio.wait_for(driver.ask(failure(number)), DEADLINE_S)
            sizes.append(journal.runs._sizes["r"])
    # Three records of the first round; in each life four, and after the first what was seen.
    assert sizes == [7, 2, 7, 2]
