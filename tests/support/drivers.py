"""A driver at work in this process, on a journal that holds or fails writes when a test says so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import BeatReceived, FailureReported, SessionOpened
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.errors import CommandFailed, JournalFull
from drumbeat.coordinator.journal.batches import Change
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver, Outbox
from drumbeat.model import GroupState
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import common_pb2, session_pb2
from tests.support.waiting import MS
from tests.support.wire import spec
from tests.support.world import a_record, a_spec, an_agent

DEADLINE_S = 20_000 * MS


class StubJournal(Journal):
    """Keeps what is written, unless its gate is shut or it has an ``error``."""

    def __init__(self) -> None:
        super().__init__()
        self.error: CommandFailed | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.tries = 0
        self.writes: list[list[Change]] = []
        self.is_closed = False
        self._tried = asyncio.Event()

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Write once the gate is open. Raises the error."""
        if changes := self.changes(effects):
            self.tries += 1
            self._tried.set()
            await asyncio.wait_for(self.gate.wait(), DEADLINE_S)
            if self.error is not None:
                raise self.error
            self.writes.append(changes)
            await super().write(effects, now=now)

    async def close(self) -> None:
        """Note that the driver has given the journal back."""
        self.is_closed = True

    async def wait_for_tries(self, count: int) -> None:
        """Return once so many writes were begun."""
        async with asyncio.timeout(DEADLINE_S):
            while self.tries < count:
                self._tried.clear()
                await self._tried.wait()


class Scene:
    """A driver that runs in the context, and what it said of its health in ``serving``."""

    def __init__(
        self,
        *,
        queue_max: int = 100_000,
        failures_kept_max: int = 1_000,
        failures_waiting_max: int = 256,
    ) -> None:
        self.journal = StubJournal()
        self.serving: list[bool] = []
        self.outboxes: dict[str, Outbox] = {}
        limits = Limits(
            event_queue_max=queue_max,
            failure_queue_bytes_max=failures_waiting_max * Limits().failure_record_bytes_max,
        )
        registry = Registry(Policy(failures_kept_max=failures_kept_max))
        self.driver = Driver(registry, self.journal, limits, on_serving=self._note_serving)

    async def _note_serving(self, is_serving: bool) -> None:
        self.serving.append(is_serving)

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.driver.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.journal.gate.set()
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task
        assert self.journal.is_closed

    def open(self, name: str = "a", *, run_id: str = "r", agents: int = 1) -> Outbox:
        """Open the session of an agent."""
        self.outboxes[name] = self.driver.open(hello(name, run_id=run_id, agents=agents))
        return self.outboxes[name]

    async def hold(self) -> None:
        """Return while a failure record is being written; ``journal.gate`` lets it go on."""
        self.journal.gate.clear()
        tries = self.journal.tries
        self.driver.submit(failure(1, request_id=1_000))
        await self.journal.wait_for_tries(tries + 1)

    async def fill(self) -> None:
        """Let the journal fail, and return when it has."""
        self.journal.error = JournalFull("/x/journal", "No space left on device")
        tries = self.journal.tries
        self.driver.submit(beat("a", GroupState.FAILED))
        await self.journal.wait_for_tries(tries + 2)

    def clear(self) -> None:
        """Let the journal write again."""
        self.journal.error = None


@asynccontextmanager
async def running(
    journal: Journal | None = None, policy: Policy | None = None, limits: Limits | None = None
) -> AsyncIterator[Driver]:
    """Run a driver from what its journal holds, in memory if none is given."""
    registry = Registry(policy or Policy())
    driver = Driver(registry, journal or Journal(), limits or Limits())
    await driver.restore()
    owner = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


def hello(
    name: str = "a", *, run_id: str = "r", agents: int = 1, session_id: str = ""
) -> SessionOpened:
    """Return the first word of an agent; its session has its name."""
    return SessionOpened(
        run_id=run_id,
        spec=a_spec(agents, restarts_max=3),
        session_id=session_id or name,
        agent=an_agent(name),
        beat=Beat(state=GroupState.IDLE, master_port=4000),
    )


def beat(name: str, state: GroupState, *, run_id: str = "r", port: int = 4001) -> BeatReceived:
    """Return a beat of an agent in round 0."""
    said = Beat(state=state, round_id=0, master_port=port)
    return BeatReceived(run_id=run_id, session_id=name, incarnation=f"{name}.1", beat=said)


def failure(sequence: int, *, request_id: int = 0, size_bytes: int = 0) -> FailureReported:
    """Return a failure record of agent ``a``."""
    record = a_record(sequence, size_bytes=size_bytes)
    return FailureReported(run_id="r", request_id=request_id or sequence, record=record)


async def take(outbox: Outbox, count: int) -> list[fx.Push]:
    """Return what a session is sent next. Raises its error."""
    items: list[fx.Push] = []

    async def collect() -> None:
        while len(items) < count:
            items.append(await outbox.next())

    async with asyncio.timeout(DEADLINE_S):
        await until_one_ends(collect(), outbox.failed())
    return items


async def turns() -> None:
    """Let the loop do whatever it can do at once."""
    for _ in range(100):
        await asyncio.sleep(0)


async def unheard(_: object) -> None:
    """Take an answer that nobody reads."""


async def one_hello(
    *, agents: int = 1, error: Exception | None = None
) -> AsyncIterator[session_pb2.AgentReport]:
    """Yield the hello of an agent of run ``n``; then raise an error, or say nothing more."""
    said = session_pb2.Hello(
        run=session_pb2.RunPurpose(run_id="n", spec=spec(agents, agents)),
        host="h",
        address="a",
        role="r",
        local_world_size=1,
        beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE),
    )
    yield session_pb2.AgentReport(fence=common_pb2.Fence(run_id="n", incarnation="i"), hello=said)
    if error is not None:
        raise error
    await asyncio.Event().wait()
