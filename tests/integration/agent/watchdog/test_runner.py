"""The watchdog with its surroundings: what it does when a part of them fails, and whom it ends."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from drumbeat.agent.core.watchdog.model import (
    HeartbeatReceived,
    TimerAcquired,
    WatchdogPolicy,
    WorkerIsGone,
    WorkerKey,
)
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.hang import HangEvidence, WorkerProgress
from drumbeat.agent.watchdog import boards, stack_taking
from drumbeat.agent.watchdog.board_reader import Board
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.watchdog.stack_taking import BUSY, with_state
from tests.support.waiting import MS, wait_until
from worker_sdk.context import (
    FILE_TIMER_ENABLE,
    FILE_TIMER_PATH,
    OBSERVER,
    WORKER_DIR,
    WORKER_SOCKET,
)

KEY = WorkerKey(3, 0)
ACQUIRED = TimerAcquired(worker=KEY, scope="step", timeout_s=0.001, signal=10)
DEADLINE_S = 20_000 * MS
PATHS = (WORKER_DIR, WORKER_SOCKET, OBSERVER)  # in the environment of a worker

PARENT = """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", sys.argv[1]])
print(child.returncode, flush=True)
"""
CHILD = """
import json, os, time
fields = dict(pid=os.getpid(), scope_id="load", expiration_time=1.0, signal={signum})
with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as fifo:
    fifo.write(json.dumps(fields) + "\\n")
time.sleep(600)
"""


class Scene:
    """A watchdog with the workers of a round, and the signals it sends, by local rank."""

    def __init__(self, count: int = 1, **policy: Any) -> None:
        self.signals: list[tuple[int, int]] = []
        self.signalled = asyncio.Event()
        self.mistake: Exception | None = None
        self.directory = PrivateDirectory()
        self.watchdog = Watchdog(
            WatchdogPolicy(**policy),
            self.directory,
            self._send,
            lambda _: None,
            {FILE_TIMER_ENABLE: "1"},
        )
        self.env = self.watchdog.prepare(KEY.round_id, range(count))

    def start(self, *pids: int) -> None:
        """Let the workers run that are these processes, by default the one of the tests."""
        self.watchdog.started(KEY.round_id, dict(enumerate(pids or (os.getpid(),))))

    async def until_signalled(self) -> list[tuple[int, int]]:
        async with asyncio.timeout(DEADLINE_S):
            await self.signalled.wait()
        return self.signals

    def _send(self, worker: WorkerKey, signum: int) -> None:
        self.signals.append((worker.local_rank, signum))
        self.signalled.set()
        if self.mistake is not None:
            raise self.mistake

    async def close(self) -> None:
        await self.watchdog.close()
        self.directory.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.close()


class Looks:
    """Takes the place of looks at processes; each lasts until it ``may_end``, one at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self._is_under_way = False
        monkeypatch.setattr(stack_taking, "take_evidence", self._take)

    async def _take(
        self, _pid: int, _source: object, timeout_s: float, **_: object
    ) -> HangEvidence:
        assert not self._is_under_way, "two that read at once would have parts of each other's"
        self._is_under_way = True
        self.times.append(timeout_s)
        self.begun.set()
        await self.may_end.wait()
        self._is_under_way = False
        return HangEvidence(stacks=f"stacks {len(self.times)}")


async def test_a_worker_is_ended_even_if_its_stacks_cannot_be_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> HangEvidence:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(stack_taking, "take_evidence", fail)
    scene.start()
    with capture_logs() as logs:
        scene.watchdog.submit(ACQUIRED)
        assert await scene.until_signalled() == [(0, 10)]
    assert [entry["event"] for entry in logs] == ["stacks not taken", "worker hangs"]


async def test_a_hang_and_a_question_for_stacks_take_them_one_after_the_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    scene.start()
    asked = asyncio.create_task(scene.watchdog.look(KEY.round_id, [KEY.local_rank], 1.0))
    with capture_logs() as logs:
        async with asyncio.timeout(DEADLINE_S):
            await looks.begun.wait()
            scene.watchdog.submit(ACQUIRED)
            looks.may_end.set()
            (taken,) = await asked
        assert await scene.until_signalled() == [(0, 10)]
    assert (taken.evidence.stacks, taken.problem, len(looks.times)) == ("stacks 1", "", 2)
    assert [entry["event"] for entry in logs] == ["worker hangs"]


async def test_a_look_that_does_not_end_does_not_keep_other_questions_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, watchdog, ranks = Looks(monkeypatch), scene.watchdog, [KEY.local_rank]
    scene.start()
    first = asyncio.create_task(watchdog.look(KEY.round_id, ranks, 1.0))
    async with asyncio.timeout(DEADLINE_S):
        await looks.begun.wait()
        (second,) = await watchdog.look(KEY.round_id, ranks, 10 * MS)
        (look,) = await watchdog.look(KEY.round_id, ranks, 10 * MS, is_judged=True)
        looks.may_end.set()
        (taken,) = await first
    assert (second.evidence.stacks, second.problem) == ("", BUSY)
    assert (look.evidence.stacks, look.evidence.notes) == ("", BUSY)
    assert taken.evidence.stacks == "stacks 1"


async def test_a_look_that_had_to_wait_still_gets_time_of_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, watchdog, ranks = Looks(monkeypatch), scene.watchdog, [KEY.local_rank]
    monkeypatch.setattr(stack_taking, "LOOK_MIN_S", 60.0)
    scene.start()
    first = asyncio.create_task(watchdog.look(KEY.round_id, ranks, 100.0))
    async with asyncio.timeout(DEADLINE_S):
        await looks.begun.wait()
        second = asyncio.create_task(watchdog.look(KEY.round_id, ranks, 20.0, is_judged=True))
        looks.may_end.set()
        await asyncio.gather(first, second)
    assert looks.times[1] == 60.0


D_STATE = """
# Who has called vfork waits in D state until the child ends.
import ctypes
code = ctypes.CDLL(None)
print("up", flush=True)
if code.vfork() == 0:
    code.sleep(600)
    code._exit(0)
"""


async def test_a_worker_that_does_not_die_of_sigkill_is_named_with_its_state() -> None:
    """As if the kernel held the worker: it gets no signal."""
    scene = Scene(kill_grace_s=0.01, unkilled_every_s=0.05)
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", D_STATE), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"up\n"
        await wait_until(lambda: psutil.Process(worker.pid).status() == "disk-sleep", DEADLINE_S)
        scene.start(worker.pid)
        with capture_logs() as logs:
            scene.watchdog.submit(replace(ACQUIRED, signal=None))

            def unkilled() -> list[str]:
                return [e["reason"] for e in logs if e["event"] == "worker can't be killed"]

            await wait_until(lambda: len(unkilled()) > 1, DEADLINE_S)
        assert "it is still alive 0 s after SIGKILL" in unkilled()[0]
        assert f"process {worker.pid}: in the kernel, not to be interrupted" in unkilled()[0]
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()
        await scene.close()


async def test_a_worker_that_is_stopped_is_said_to_be(scene: Scene) -> None:
    worker = await asyncio.create_subprocess_exec("sleep", "600")
    scene.start(worker.pid)
    try:
        assert scene.watchdog.standings(KEY.round_id) == []
        worker.send_signal(signal.SIGSTOP)
        await wait_until(lambda: psutil.Process(worker.pid).status() == "stopped", DEADLINE_S)
        assert scene.watchdog.standings(KEY.round_id) == [
            WorkerProgress(local_rank=0, is_stopped=True)
        ]
        worker.send_signal(signal.SIGCONT)
        await wait_until(lambda: not scene.watchdog.standings(KEY.round_id), DEADLINE_S)
    finally:
        worker.kill()
        await worker.wait()


def test_a_worker_that_gives_signs_of_life_is_not_looked_at() -> None:
    """It cannot be stopped, and a beat of many workers reads nothing."""
    living = WorkerProgress(local_rank=0, beat_at=100.0)
    assert with_state(living, os.getpid(), 1.0, 101.9) is living
    assert with_state(living, os.getpid(), 1.0, 102.0) is not living


async def test_a_mistake_in_a_task_is_told_at_once(scene: Scene) -> None:
    told: list[object] = []
    heard = asyncio.Event()

    def hear(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        told.append(context["exception"])
        heard.set()

    asyncio.get_running_loop().set_exception_handler(hear)
    scene.mistake = RuntimeError("a mistake")
    scene.start()
    scene.watchdog.submit(ACQUIRED)
    async with asyncio.timeout(DEADLINE_S):
        await heard.wait()
    assert told == [scene.mistake]


@pytest.mark.parametrize(("signum", "ending"), [(9, -9), (15, -15), (32, -9)])
async def test_a_file_timer_of_a_process_below_a_worker_ends_that_process(
    scene: Scene, signum: int, ending: int
) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, CHILD.format(signum=signum)),
        env={**os.environ, **scene.env[KEY.local_rank]},
        stdout=asyncio.subprocess.PIPE,
    )
    scene.start(worker.pid)
    try:
        assert worker.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            assert int(await worker.stdout.readline()) == ending
            assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    assert scene.signals == [], "the worker itself"
    assert scene.watchdog.gone(KEY.round_id, KEY.local_rank, 0) is None, "it went on"


async def test_a_file_timer_that_was_written_before_the_news_of_a_start_counts(
    scene: Scene,
) -> None:
    """Also one of another worker than the first whose board is read."""
    fields = {"pid": os.getpid(), "scope_id": "load", "expiration_time": 1.0, "signal": 10}
    env = scene.watchdog.prepare(KEY.round_id, [0, 1])[1]
    with open(env[FILE_TIMER_PATH], "w") as fifo:  # noqa: ASYNC230, PTH123 - at once
        fifo.write(json.dumps(fields) + "\n")
    scene.start(os.getppid(), os.getpid())
    assert await scene.until_signalled() == [(1, 10)]


async def test_a_worker_that_was_stopped_meanwhile_is_not_watched(scene: Scene) -> None:
    scene.watchdog.stopping(KEY.round_id)
    scene.start()
    with pytest.raises(WorkerIsGone):
        scene.watchdog.submit(ACQUIRED)


async def test_what_workers_observed_counts_also_once_they_have_gone(scene: Scene) -> None:
    scene.start()
    for step in range(3):
        scene.watchdog.submit(HeartbeatReceived(worker=KEY, step=step))
    before = scene.watchdog.observations(KEY.round_id)
    assert before[""][0] == 2
    scene.watchdog.gone(KEY.round_id, KEY.local_rank, 0)
    assert scene.watchdog.observations(KEY.round_id) == before
    scene.start()
    with pytest.raises(WorkerIsGone):
        scene.watchdog.submit(ACQUIRED)
    scene.watchdog.prepare(KEY.round_id + 1, [KEY.local_rank])
    assert scene.watchdog.observations(KEY.round_id) == {}


async def test_a_worker_that_lies_about_who_it_is_moves_no_timer_of_another() -> None:
    """What comes through the FIFO of a worker is of its own processes, whatever it says."""
    scene = Scene(2)
    workers = [await asyncio.create_subprocess_exec("sleep", "600") for _ in range(2)]
    honest = workers[1]
    paths = {rank: env[FILE_TIMER_PATH] for rank, env in scene.env.items()}
    assert paths[0] != paths[1]

    def write(rank: int, at: float, signum: int) -> None:
        fields = {
            "pid": honest.pid, "scope_id": "s", "expiration_time": at, "signal": signum,
        }  # fmt: skip
        fd = os.open(paths[rank], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, json.dumps(fields).encode() + b"\n")
        os.close(fd)

    try:
        scene.start(*(worker.pid for worker in workers))
        with capture_logs() as logs:
            write(1, time.time() + 100 * MS, signal.SIGUSR1)
            write(0, -1.0, 0)  # released, it says
            write(0, 1.0, signal.SIGKILL)  # and expired long ago
            assert await scene.until_signalled() == [(1, signal.SIGUSR1)]
        assert "a file timer is not watched" in [entry["event"] for entry in logs]
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()
        await scene.close()


def places(env: dict[int, dict[str, str]]) -> set[Path]:
    """Return where what watches workers is, and it is there."""
    paths = [Path(env[rank][name]) for rank in env for name in PATHS]
    assert all(path.exists() for path in paths)
    return {path.parent for path in paths}


async def test_without_room_on_the_disk_workers_are_watched_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And from the disk again once there is room; nothing of it stays."""
    scene = Scene(2, observes_workers=True)
    own, is_full = scene.directory.path, True

    def full(parent: Path, key: WorkerKey, **options: float) -> Board:
        # The first worker's board has room.
        if is_full and parent == own and key.local_rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return Board(parent, key, **options)

    monkeypatch.setattr(boards, "Board", full)
    try:
        with capture_logs() as logs:
            for round_id in (1, 2):
                env = scene.watchdog.prepare(round_id, range(2))
        spare = places(env)
        assert len(spare) == 1
        assert own not in spare
        text = "workers watched from a spare directory"
        assert [(entry["event"], Path(entry["path"])) for entry in logs] == [(text, *spare)] * 2
        assert "No space left on device" in logs[0]["reason"]
        assert [path.name for path in own.iterdir() if path.is_dir()] == []
        for round_id, is_full in ((3, False), (4, True), (5, False)):
            env = scene.watchdog.prepare(round_id, range(2))
            assert places(env) == (spare if is_full else {own})
    finally:
        await scene.close()
    assert not any(place.exists() for place in spare)


async def test_without_room_anywhere_workers_run_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Board:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    scene = Scene()
    monkeypatch.setattr(boards, "Board", full)
    try:
        with capture_logs() as logs:
            assert scene.watchdog.prepare(1, range(2)) == {0: {}, 1: {}}
        assert [entry["event"] for entry in logs] == ["workers not watched"]
    finally:
        await scene.close()
