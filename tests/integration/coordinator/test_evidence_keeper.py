"""The coordinator writes evidence of runs that fail or hang, and no run depends on it."""

import asyncio
import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.model import ExpiredLimit, HangDiagnosis
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    HangJudged,
    HangOver,
    RoundStarted,
    RunCreated,
)
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import Unavailable
from drumbeat.coordinator.evidence import keeper as keeper_module
from drumbeat.coordinator.evidence.keeper import WAITING_MAX, EvidenceKeeper
from drumbeat.coordinator.evidence.local_reader import FindServices
from drumbeat.coordinator.limits import Limits
from drumbeat.model import HangKind
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.wire.mapping import duration
from tests.support.archives import archives_in, unpacked
from tests.support.coordinators import coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, Client, coordinator, spec
from tests.support.world import a_spec, an_agent


async def fail(client: Client, run_id: str = "run", **fields: Any) -> None:
    """Have a run fail, with a record of the failure."""
    agent = await client.agent(run_id=run_id).join()
    await agent.run()
    assert await client.report(agent.failure(1, **fields)) == [True]
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)
    await agent.desired("exit")
    agent.call.cancel()


def has_archive(directory: Path, run_id: str) -> bool:
    return any(path.name.startswith(f"drumbeat-{run_id}-") for path in archives_in(directory))


def a_hang() -> HangJudged:
    limit = ExpiredLimit(number=1, local_rank=0, kind=HangKind.TIMER, limit_s=1.0, elapsed_s=2.0)
    return HangJudged(hang=HangDiagnosis(round_id=0, summary="it hangs", limit=limit))


def a_keeper(
    directory: Path, find_services: FindServices, bytes_max: int = 10**9
) -> EvidenceKeeper:
    config = CoordinatorConfig(
        evidence_dir=str(directory), evidence_keep=10, evidence_max_bytes=bytes_max
    )
    return EvidenceKeeper(config, find_services)


async def warned(logged: list[Any]) -> str:
    """Return the reason of the first warning that no evidence is written."""

    def reason() -> str:
        reasons = (line["reason"] for line in logged if line["event"] == "no evidence written")
        return next(reasons, "")

    return str(await wait_until(reason, DEADLINE_S))


async def test_a_run_that_fails_leaves_an_archive_with_its_report(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with coordinator(tmp_path / "state", evidence_dir=str(kept)) as client:
        await fail(client, "../x".replace("/", "."), message="boom", stderr_tail="last words\n")
        await wait_until(lambda: archives_in(kept), DEADLINE_S)
    (path,) = archives_in(kept)
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept.stat().st_mode & 0o777 == 0o700
    assert path.name.startswith("drumbeat-_x-")
    found = unpacked(path)
    (cause,) = json.loads(found["report.json"])["root_causes"]
    assert (cause["message"], cause["stderr_tail"]) == ("boom", "last words\n")
    assert "the run failed" in found["README.txt"]


async def test_a_run_that_is_stopped_or_succeeds_leaves_none(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with coordinator(tmp_path / "state", evidence_dir=str(kept)) as client:
        agent = await client.agent(run_id="good").join()
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_SUCCEEDED, workers_alive=0, workers_done=1)
        await agent.desired("exit")
        await fail(client, "bad")
        await wait_until(lambda: archives_in(kept), DEADLINE_S)
    assert [path.name[:13] for path in archives_in(kept)] == ["drumbeat-bad-"]


async def test_a_hang_leaves_an_archive_with_the_stacks_of_its_event(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with coordinator(tmp_path / "state", evidence_dir=str(kept)) as client:
        agent = await client.agent(spec=spec(1, 1), features=["stacks"]).join()
        await agent.run()
        limit = session_pb2.ExpiredLimit(
            number=1,
            kind=failure_pb2.HANG_KIND_TIMER,
            scope="all-reduce",
            limit=duration(20.0),
            elapsed=duration(21.0),
        )
        agent.beat.expired.append(limit)
        await agent.say(session_pb2.GROUP_STATE_RUNNING)
        questions = 0
        while questions < 2:  # one to judge the hang, one for the archive
            directive = await agent.read()
            asked = directive.collect.stacks if directive.WhichOneof("kind") == "collect" else ()
            for each in asked:
                questions += 1
                told = session_pb2.ReportStacksRequest(
                    fence=agent.fence, incarnation_key=agent.key, request_id=each.request_id
                )
                stacks = f'Thread 0x1:\n  File "/u/t.py", line {questions} in stuck\n'
                told.workers.add(local_rank=0, pid=7, stacks=stacks)
                await client.sessions.ReportStacks(told, timeout=DEADLINE_S)
        await wait_until(lambda: archives_in(kept), DEADLINE_S)
    found = unpacked(archives_in(kept)[0])
    assert "the run hangs" in found["README.txt"]
    assert "in stuck (t.py:2)" in found["stacks.txt"]
    assert "in stuck (t.py:1)" in found["hang.txt"]


async def test_the_oldest_archives_are_removed_first(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "drumbeat-mine.tar.gz").write_text("the oldest")
    (kept / "notes.txt").write_text("no archive")
    (kept / ".drumbeat-evidence-abc").write_text("of a process that was killed")
    os.utime(kept / "drumbeat-mine.tar.gz", (0, 0))
    async with coordinator(tmp_path / "state", evidence_dir=str(kept), evidence_keep=2) as client:
        for number in range(3):
            await fail(client, f"run{number}")
            await wait_until(partial(has_archive, kept, f"run{number}"), DEADLINE_S)
    left = sorted(path.name.rpartition("-")[0] or path.name for path in kept.iterdir())
    assert left == ["drumbeat-run1", "drumbeat-run2", "notes.txt"]


async def test_an_archive_beyond_the_limit_of_bytes_is_not_written(tmp_path: Path) -> None:
    def nowhere(_method: str) -> Any:
        raise Unavailable("not here")

    keeper = a_keeper(tmp_path, nowhere, bytes_max=1000)
    for number in range(3):
        path = tmp_path / f"drumbeat-run{number}-1.tar.gz"
        path.write_bytes(b"x" * 300)
        os.utime(path, (number, number))
    keeper._make_room(400)
    assert [path.name for path in archives_in(tmp_path)] == [
        "drumbeat-run1-1.tar.gz",
        "drumbeat-run2-1.tar.gz",
    ]
    with pytest.raises(OSError, match="an archive of 1001 bytes exceeds --evidence-max-bytes"):
        keeper._make_room(1001)
    assert len(archives_in(tmp_path)) == 2


async def test_a_directory_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with capture_logs() as logged:
        async with coordinator(
            tmp_path / "state", evidence_dir=str(tmp_path / "file" / "kept")
        ) as client:
            assert "Not a directory" in await warned(logged)
            del logged[:]
            await fail(client)
            assert "Not a directory" in await warned(logged)
            assert await client.is_serving()


async def test_more_failures_than_may_wait_are_dropped_with_a_warning(tmp_path: Path) -> None:
    def nowhere(_method: str) -> Any:
        raise Unavailable("not here")

    keeper = a_keeper(tmp_path, nowhere)
    state = RunState.created(RunCreated(run_id="run", spec=a_spec()))
    hang = a_hang()
    with capture_logs() as logged:
        for _ in range(WAITING_MAX):
            keeper.observe(state, hang)
        await asyncio.sleep(0)
        assert logged == []
        keeper.observe(state, hang)
        assert await warned(logged) == f"{WAITING_MAX} other archives wait to be written"
        # What is gathered in vain is said as well, and what comes next is tried.
        keeper.start()
        await wait_until(lambda: len(logged) == 1 + WAITING_MAX, DEADLINE_S)
        assert logged[-1]["reason"].endswith("not here")
        await keeper.close()


async def test_a_hang_that_is_judged_again_is_one_archive(tmp_path: Path) -> None:
    asked = []

    def nowhere(method: str) -> Any:
        asked.append(method)
        raise Unavailable("not here")

    keeper = a_keeper(tmp_path, nowhere)
    state = RunState.created(RunCreated(run_id="run", spec=a_spec()))
    state.apply(AgentAdmitted(agent=an_agent("a")))
    started = RoundStarted(
        round_id=0, participants=("a.1",), master_addr="a", master_port=1, reason="first"
    )
    state.apply(started)
    for record in (a_hang(), a_hang(), HangOver(round_id=0, reason="it went on"), a_hang()):
        keeper.observe(state, record)
        state.apply(record)
        await asyncio.sleep(0)
    assert len(asked) == 2


async def test_a_coordinator_ends_at_once_while_it_waits_for_a_verdict(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with coordinator(tmp_path / "state", evidence_dir=str(kept), limits=Limits()) as client:
        agent = await client.agent().join()
        await agent.run()
        await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=1, failures_written=1)
        await agent.desired("stop")
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 10
    assert archives_in(kept) == []


async def test_a_disk_that_stands_still_keeps_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_written, goes_on = threading.Event(), threading.Event()

    def stand_still(_evidence: object) -> bytes:
        is_written.set()
        goes_on.wait()
        return b""

    monkeypatch.setattr(keeper_module, "packed", stand_still)
    async with asyncio.timeout(DEADLINE_S):
        async with coordinator(tmp_path / "s", evidence_dir=str(tmp_path / "kept")) as client:
            await fail(client)
            await wait_until(is_written.is_set, DEADLINE_S)
            await fail(client, "other")
        await asyncio.get_running_loop().shutdown_default_executor()  # as the process does
    goes_on.set()
    await wait_until(lambda: "evidence" not in {t.name for t in threading.enumerate()}, DEADLINE_S)


async def test_of_several_coordinators_the_one_that_leads_writes(tmp_path: Path) -> None:
    model, kept = EtcdModel(), [tmp_path / name for name in ("a", "b")]
    async with coordinator_of(model, ttl_s=30.0, evidence_dir=str(kept[0])) as first:
        await first.leads()
        async with coordinator_of(model, ttl_s=30.0, evidence_dir=str(kept[1])) as second:
            await second.follows(first)
            await fail(first.client, "before")
            await wait_until(partial(has_archive, kept[0], "before"), DEADLINE_S)
            await first.membership.step_down("a test asked for it")
            await second.leads()
            await fail(second.client, "after")
            await wait_until(partial(has_archive, kept[1], "after"), DEADLINE_S)
    assert [len(archives_in(directory)) for directory in kept] == [1, 1]
