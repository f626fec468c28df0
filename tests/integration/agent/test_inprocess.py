"""An agent with real workers that restart in process, under a coordinator of the test's own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drumbeat.v1 import failure_pb2, inprocess_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2
from tests.support.fake_coordinator import DEADLINE_S, FakeCoordinator, Session, fake_coordinator

ROOT = Path(__file__).resolve().parents[3]
WORKER = "tests.support.workers.iterating_by_calls"

ENTERED = inprocess_pb2.INPROCESS_STEP_ENTERED
INTERRUPTED = inprocess_pb2.INPROCESS_STEP_INTERRUPTED
COMPLETED = inprocess_pb2.INPROCESS_STEP_COMPLETED
SUCCESS = session_pb2.Exit(verdict=failure_pb2.Verdict(is_success=True, reason="done"))


@asynccontextmanager
async def an_agent(
    coordinator: FakeCoordinator, place: Path, how: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    path = str(ROOT)
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "drumbeat.agent",
            "join",
            "--log-format",
            "json",
            "--run-id",
            "run",
        ),
        *("--coordinator", f"127.0.0.1:{coordinator.port}", "--nproc-per-node", "2"),
        *("--insecure", "--local-addr", "127.0.0.1", "--shutdown-timeout", "1", "-m", WORKER, how),
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(place)},
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def run_round(session: Session) -> None:
    """Have the agent start the workers of round 0."""
    spend(session, session.beat.master_port, session.beat.master_port)


def spend(session: Session, round_port: int, port: int) -> None:
    """Say that a port is used; the round stays as it was."""
    assignment = session_pb2.Assignment(
        group_world_size=1,
        world_size=2,
        role_world_size=2,
        master_addr="127.0.0.1",
        master_port=round_port,
    )
    session.say(desired=session_pb2.DesiredState(run=assignment, master_port_spent=port))


async def begin(session: Session, iteration: int, local_ranks: list[int], spent: int) -> int:
    """Let an iteration begin on a new port; return that."""
    beat = await session.wait_for(lambda beat: beat.master_port not in (0, spent))
    seats = [
        inprocess_pb2.InprocessSeat(local_rank=local_rank, rank=rank, active_rank=rank)
        for rank, local_rank in enumerate(local_ranks)
    ]
    session.direct(
        iteration,
        begin=inprocess_pb2.IterationBegin(
            seats=seats,
            world_size=len(seats),
            active_world_size=len(seats),
            master_addr="127.0.0.1",
            master_port=beat.master_port,
            has_store=True,
        ),
    )
    return int(beat.master_port)


def interrupt(session: Session, iteration: int) -> None:
    session.direct(iteration, interrupt=iteration_pb2.IterationInterrupt(reason="rank 1 failed"))


async def succeed(session: Session, process: asyncio.subprocess.Process) -> str:
    """Wait for the success of the workers and hand out the verdict; return the log."""
    await session.wait_for(lambda beat: beat.state == session_pb2.GROUP_STATE_SUCCEEDED)
    session.say(desired=session_pb2.DesiredState(exit=SUCCESS))
    async with asyncio.timeout(DEADLINE_S):
        _, log = await process.communicate()
    assert process.returncode == 0, log.decode()
    return log.decode()


async def test_a_worker_that_fails_begins_again_and_all_complete(place: Path) -> None:
    async with fake_coordinator() as coordinator, an_agent(coordinator, place, "raise") as process:
        session = await coordinator.session()
        round_port = session.beat.master_port
        run_round(session)
        report = await session.reached(0, ENTERED)
        assert report.spec.rules[0].HasField("shift")
        first = await begin(session, 0, [0, 1], round_port)
        spend(session, round_port, first)

        report = await session.reached(0, INTERRUPTED)
        [interruption] = report.interruptions
        assert interruption == iteration_pb2.Interruption(
            local_rank=1,
            kind=iteration_pb2.INTERRUPTION_KIND_EXCEPTION,
            message="RuntimeError: boom",
        )
        record = await coordinator.record()
        assert (record.exit_code, record.iteration) == (0, 0)
        assert record.interruption == iteration_pb2.INTERRUPTION_KIND_EXCEPTION
        assert record.traceback == "Traceback: here"
        assert record.pid > 0
        interrupt(session, 0)

        await session.reached(1, ENTERED)
        assert session.beat.workers_alive == 2
        second = await begin(session, 1, [1, 0], first)
        assert second not in (first, round_port)
        await session.reached(1, COMPLETED)
        session.direct(1, complete=iteration_pb2.IterationComplete())
        log = await succeed(session, process)
    assert log.count('"event": "restarted in process"') == 1
    assert log.count('"round started"') == 1
    assert "worker failed" not in log


@pytest.mark.parametrize(
    ("how", "kind", "exit_code", "message"),
    [
        ("die", iteration_pb2.INTERRUPTION_KIND_TERMINATED, -9, "its process ended: SIGKILL"),
        ("leave", iteration_pb2.INTERRUPTION_KIND_UNHEALTHY, 3, "GPU gone"),
    ],
)
async def test_the_others_go_on_without_a_worker_that_dies(
    place: Path,
    how: str,
    kind: iteration_pb2.InterruptionKind.ValueType,
    exit_code: int,
    message: str,
) -> None:
    async with fake_coordinator() as coordinator, an_agent(coordinator, place, how) as process:
        session = await coordinator.session()
        round_port = session.beat.master_port
        run_round(session)
        await session.reached(0, ENTERED)
        first = await begin(session, 0, [0, 1], round_port)
        report = await session.reached(0, INTERRUPTED)
        assert [(left.local_rank, left.kind) for left in report.terminated] == [(1, kind)]
        record: failure_pb2.FailureRecord = await coordinator.record()
        assert (record.interruption, record.exit_code, record.message) == (kind, exit_code, message)
        assert not record.is_stopped_by_agent

        # The connection breaks, and both sides say their latest again.
        session.cut()
        session = await coordinator.session()
        await session.reached(0, INTERRUPTED)
        spend(session, round_port, first)
        interrupt(session, 0)
        report = await session.reached(1, ENTERED)
        assert [left.local_rank for left in report.terminated] == [1]
        await session.wait_for(lambda beat: beat.workers_alive == 1)
        await begin(session, 1, [0], first)
        await session.reached(1, COMPLETED)
        session.direct(1, complete=iteration_pb2.IterationComplete())
        await succeed(session, process)
        while not coordinator.records.empty():
            again = coordinator.records.get_nowait()
            assert again.sequence == record.sequence, "one record of one death"


async def test_workers_that_the_others_go_on_without_are_ended(place: Path) -> None:
    async with fake_coordinator() as coordinator, an_agent(coordinator, place, "deaf") as process:
        session = await coordinator.session()
        run_round(session)
        await session.wait_for(lambda beat: beat.state == session_pb2.GROUP_STATE_RUNNING)
        session.direct(0, begin=inprocess_pb2.IterationBegin(world_size=8, active_world_size=8))
        beat = await session.wait_for(lambda beat: beat.workers_alive == 0)
        assert beat.state == session_pb2.GROUP_STATE_RUNNING
        kinds = [left.kind for left in beat.inprocess.terminated]
        assert kinds == [iteration_pb2.INTERRUPTION_KIND_BARRIER_TIMEOUT] * 2
        for _ in kinds:
            assert (await coordinator.record()).signal_name in ("SIGTERM", "SIGKILL")
        session.direct(0, complete=iteration_pb2.IterationComplete())
        session.say(desired=session_pb2.DesiredState(exit=SUCCESS))
        async with asyncio.timeout(DEADLINE_S):
            await process.communicate()
        assert process.returncode == 0
