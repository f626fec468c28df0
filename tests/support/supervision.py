"""A supervisor under test, and what its workers tell."""

import asyncio
import os
import select
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar

import psutil
import pytest

from drumbeat.agent.model.messages import StartWorkers, SupervisorEvent, WorkerStart
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from tests.support.waiting import MS

DEADLINE_S = 60_000 * MS
"""Far longer than anything here takes; only a failing test waits for it."""

SLACK = 5
"""A busy machine may take so many times as long as a quiet one."""

E = TypeVar("E", bound=SupervisorEvent)


class Harness:
    """A client in this process, with everything it was told."""

    def __init__(self, exit_wait_s: float = 60.0) -> None:
        self.others = {child.pid for child in psutil.Process().children()}
        self.events: list[SupervisorEvent] = []
        self.deaths: list[int] = []
        self.mistakes: list[BaseException] = []
        self.on_next_event: Callable[[], None] | None = None
        self._change = asyncio.Event()
        self.client = SupervisorClient(
            on_event=self._on_event,
            on_death=self._on_death,
            on_mistake=self._on_mistake,
            exit_wait_s=exit_wait_s,
        )

    def _on_event(self, event: SupervisorEvent) -> None:
        if self.on_next_event is not None:
            self.on_next_event()
        self.events.append(event)
        self._change.set()

    def _on_death(self, returncode: int) -> None:
        self.deaths.append(returncode)
        self._change.set()

    def _on_mistake(self, error: BaseException) -> None:
        self.mistakes.append(error)
        self._change.set()

    @property
    def pid(self) -> int:
        assert self.client.pid is not None
        return self.client.pid

    def start(
        self,
        *argv: str,
        round_id: int = 0,
        count: int = 1,
        env: dict[str, str] | None = None,
    ) -> None:
        self.client.send(start(*argv, round_id=round_id, count=count, env=env))

    async def until(self, predicate: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not predicate():
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            pytest.fail(f"waited in vain; events {self.events}, deaths {self.deaths}")

    async def expect(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait for so many events of a kind in all, and return them."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def start(
    *argv: str, round_id: int = 0, count: int = 1, env: dict[str, str] | None = None
) -> StartWorkers:
    return StartWorkers(
        round_id=round_id,
        argv=argv,
        env={"PATH": os.environ["PATH"], **(env or {})},
        workers=tuple(
            WorkerStart(local_rank=rank, env={"LOCAL_RANK": str(rank)}) for rank in range(count)
        ),
    )


@asynccontextmanager
async def running() -> AsyncIterator[Harness]:
    harness = Harness()
    await harness.client.start()
    try:
        yield harness
    finally:
        await harness.client.close()
        # Those below what was there before come and go as they like: a browser's, say.
        left = {child.pid for child in psutil.Process().children()}
        assert not left - harness.others, "close left processes behind"


class Mailbox:
    """A named pipe into which workers write lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mailbox"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    async def read(self, count: int) -> list[str]:
        """Wait for so many lines and take them."""
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, readable.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while self._data.count(b"\n") < count:
                    await readable.wait()
                    readable.clear()
                    try:
                        self._data += os.read(self._fd, 65536)
                    except BlockingIOError:
                        continue
        finally:
            loop.remove_reader(self._fd)
        *lines, self._data = self._data.split(b"\n", count)
        return [line.decode() for line in lines]


def await_ended(fds: Iterable[int], timeout_s: float = DEADLINE_S) -> None:
    """Wait until the processes of these pidfds have ended, and close the pidfds."""
    deadline = time.monotonic() + timeout_s
    fds = list(fds)
    late = 0
    for fd in fds:
        left_s = max(0.0, deadline - time.monotonic())
        late += not select.select([fd], [], [], left_s)[0]
        os.close(fd)
    assert not late, f"{late} of {len(fds)} processes did not end in {timeout_s} s"
