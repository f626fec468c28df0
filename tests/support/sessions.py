"""Sessions of an agent whose workers there are none of, with whatever coordinator."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Self, cast

from drumbeat.agent.core.effects import OpenSession
from drumbeat.agent.core.events import Event
from drumbeat.agent.core.model import Beat
from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.host.memory.reader import MemoryReader
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.session.access import Access
from drumbeat.agent.session.convert import Identity, incarnation_of
from drumbeat.agent.session.grpc_transport import GrpcConnection
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.session import Session
from drumbeat.agent.session.spool import Spool
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.workers.devices.usage import GpuUsage
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.model import GroupState
from tests.support.fake_coordinator import DEADLINE_S

KEY = b"k" * 32
_BEAT = Beat(
    state=GroupState.IDLE, round_id=None, master_port=4000, failures_written=0, workers_alive=0
)


class _NoWatchdog:
    memory = MemoryReader()
    gpus = GpuUsage()

    def standings(self, _round_id: int | None) -> list[Any]:
        return []

    def pids(self, _round_id: int | None) -> dict[int, int]:
        return {}

    def suspects(self, _round_id: int | None) -> list[tuple[int, int | None, str]]:
        return []

    def collectives_moved_s(self, _round_id: int | None) -> float:
        return 0.0

    def observations(self, _round_id: int | None) -> dict[str, tuple[int, float]]:
        return {}


class Lone:
    """An agent that opens one session after the other, each when it is told to."""

    def __init__(self, spool: Spool, files: FileThread, identity: Identity, **access: Any) -> None:
        self.config = AgentConfig(run_id="r", program=Program("program", "true"), **access)
        assert self.config.validate() == []
        self.access = Access(self.config, files)
        self.address: str = access["coordinator"]
        self.spool, self._identity = spool, identity
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def connect(self) -> None:
        """Open another session."""
        self.open(OpenSession(attempt=1, delay_max_s=0.0, beat=_BEAT, address=self.address))

    def open(self, opening: OpenSession) -> None:
        """Open a session as it is told."""
        watchdog = cast("Watchdog", _NoWatchdog())
        logs = LogAnswers("r", self._identity, KeptOutput(), str)
        session = Session(
            opening, self.config, self._identity, self.events.put_nowait, watchdog, logs
        )
        connect = partial(GrpcConnection, self.access)
        self._task = asyncio.create_task(session.run(connect, self.spool))

    async def event(self, kind: type[Event]) -> Any:
        """Return the next event, which is of this kind."""
        async with asyncio.timeout(DEADLINE_S):
            event = await self.events.get()
        assert isinstance(event, kind), event
        return event

    async def connected(self, kind: type[Event]) -> Any:
        """Open another session; return what comes of it."""
        self.connect()
        return await self.event(kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


@contextmanager
def a_lone_agent(**access: Any) -> Iterator[Lone]:
    """Make one that is told this of the way to its coordinator."""
    identity = Identity(
        incarnation=incarnation_of(KEY),
        incarnation_key=KEY,
        host="h",
        address="127.0.0.1",
        began_at=time.monotonic(),
    )
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as place,
        closing(PrivateDirectory([place])) as directory,
        closing(FileThread()) as files,
    ):
        config = AgentConfig(coordinator="h", run_id="r", program=Program("program", "true"))
        with closing(Spool(directory, config, identity)) as spool:
            yield Lone(spool, files, identity, **access)
