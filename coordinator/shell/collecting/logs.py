"""Shell. Readers of workers' output, and the agents that bring it. Nothing of it is kept."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.log_reading import Brought, LogReading, LogsAsked
from drumbeat.coordinator.core.collecting.stack_gathering import AskedAgent
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.shell.collecting.stacks import Session, why_not
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import session_pb2

FEATURE = "logs"  # of agents that bring it
QUEUE_MAX = 16  # messages of a reader that wait; agents then read no further
ANSWER_WITHIN_S = 4.0  # for an agent to begin
ENDING_WITHIN_S = 3.0  # for what agents bring while they end with their run
TOLD_AT_ONCE_MAX = 250

# The call that brought it, of which agent; ``None`` is the end of what that agent brings.
_Item = tuple[asyncio.Event, str, session_pb2.ReportLogsRequest | None]


@dataclass(eq=False)
class LogReader:
    """One reader of one run; ``reading`` is how far it has come."""

    run_id: str
    request_id: str
    reading: LogReading
    _problems: deque[Brought] = field(default_factory=deque, init=False)
    _queue: asyncio.Queue[_Item | None] = field(
        default_factory=lambda: asyncio.Queue(QUEUE_MAX), init=False
    )
    _calls: dict[str, asyncio.Event] = field(default_factory=dict, init=False)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_over: bool = field(default=False, init=False)
    _closed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def take(self) -> Brought | None:
        """Return what comes next, once there is something; ``None`` at the end."""
        while True:
            if self._problems:
                return self._problems.popleft()
            if self._queue.empty() and (self._is_over or self.reading.is_complete):
                return None
            if (item := await self._queue.get()) is None:
                continue
            call, incarnation, message = item
            if self._calls.get(incarnation) is not call:
                continue  # a later call of the agent brings it again
            if message is not None:
                return self.reading.brought(incarnation, message.pieces)
            if (end := self.reading.complete(incarnation)) is not None:
                return end

    async def bring(
        self,
        incarnation: str,
        requests: AsyncIterator[session_pb2.ReportLogsRequest],
        send: Callable[[session_pb2.ReportLogsResponse], Awaitable[None]],
    ) -> None:
        """Hold the call of an agent until it has told all, or no reader is left."""
        if (before := self._calls.get(incarnation)) is not None:
            before.set()
        replaced = self._calls[incarnation] = asyncio.Event()
        self._quiet.clear()

        async def pass_on() -> None:
            async for message in requests:
                await self._queue.put((replaced, incarnation, message))
            await self._queue.put((replaced, incarnation, None))

        try:
            await send(session_pb2.ReportLogsResponse(cursors=self.reading.cursors(incarnation)))
            await until_one_ends(pass_on(), replaced.wait(), self._closed.wait())
        finally:
            replaced.set()
            if all(call.is_set() for call in self._calls.values()):
                self._quiet.set()
            self._wake()

    def give_up(self, incarnation: str, why: str) -> None:
        """Name the ranks of an agent that brings nothing."""
        if incarnation not in self._calls and (problem := self.reading.given_up(incarnation, why)):
            self._problems.append(problem)
            self._wake()

    async def end(self) -> None:
        """Let ``take`` come to its end, once agents that bring something have ended too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_WITHIN_S):
                if not all(call.is_set() for call in self._calls.values()):
                    await self._quiet.wait()
        self._is_over = True
        self._wake()

    def lost(self, incarnation: str) -> None:
        """Wait no longer for an agent that has no session any more, unless it is followed."""
        if not self.reading.asked.follow and incarnation in self.reading.waiting:
            if (call := self._calls.pop(incarnation, None)) is not None:
                call.set()
            self.give_up(incarnation, "its agent was disconnected")

    def close(self) -> None:
        """End the calls of the agents."""
        self._closed.set()

    def _wake(self) -> None:
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)


class LogReaders:
    """All readers there are, and the sessions through which agents are asked."""

    def __init__(self, answer_within_s: float = ANSWER_WITHIN_S) -> None:
        self._within_s = answer_within_s
        self._sessions: dict[str, dict[str, Session]] = {}  # by run and incarnation
        self._readers: dict[str, LogReader] = {}

    def joined(self, opened: SessionOpened, put: Callable[[fx.TellLogs], None]) -> None:
        """Take a session in. It is told what is asked for."""
        sessions = self._sessions.setdefault(opened.run_id, {})
        sessions[opened.agent.incarnation] = session = Session(opened, put)
        if any(reader.run_id == opened.run_id for reader in self._readers.values()):
            self._tell(session)

    def left(self, opened: SessionOpened) -> None:
        """Let go of a session that ended."""
        sessions = self._sessions.get(opened.run_id, {})
        session = sessions.get(opened.agent.incarnation)
        if session is not None and session.opened.session_id == opened.session_id:
            del sessions[opened.agent.incarnation]
            if not sessions:
                del self._sessions[opened.run_id]
            for reader in self._readers.values():
                if reader.run_id == opened.run_id:
                    reader.lost(opened.agent.incarnation)

    @contextmanager
    def open(self, asked: LogsAsked, agents: Mapping[str, AskedAgent]) -> Iterator[LogReader]:
        """Have output brought while the context is open.

        ``agents`` are those whose workers are asked for in the current round.
        """
        reader = LogReader(asked.run_id, uuid.uuid4().hex, LogReading(asked, dict(agents)))
        self._readers[reader.request_id] = reader
        if not asked.follow:  # else those that are away may be back by then
            self._give_up(reader, agents, "")
        concerned = None if asked.follow else tuple(agents)
        self._tell_all(asked.run_id, concerned)
        late = f"its agent has not answered within {self._within_s:g} s"
        loop = asyncio.get_running_loop()
        patience = loop.call_later(self._within_s, self._give_up, reader, tuple(agents), late)
        try:
            yield reader
        finally:
            patience.cancel()
            del self._readers[reader.request_id]
            reader.close()
            self._tell_all(asked.run_id, concerned)

    def find(self, run_id: str, request_id: str) -> LogReader | None:
        """Return a reader that is still there."""
        reader = self._readers.get(request_id)
        return reader if reader is not None and reader.run_id == run_id else None

    def _give_up(self, reader: LogReader, agents: Iterable[str], late: str) -> None:
        """Name those that can't answer, and for being ``late`` those that could."""
        for incarnation in agents:
            if why := self._why_not(reader.run_id, incarnation) or late:
                reader.give_up(incarnation, why)

    def _why_not(self, run_id: str, incarnation: str) -> str:
        session = self._sessions.get(run_id, {}).get(incarnation)
        return why_not(session, FEATURE, "brings no logs")

    def _tell_all(self, run_id: str, incarnations: Iterable[str] | None) -> None:
        """Tell these agents of a run or all, some at a time: others have their turn in between."""
        sessions = self._sessions.get(run_id, {})
        chosen = tuple(sessions) if incarnations is None else incarnations
        self._tell_some(iter([sessions[i] for i in chosen if i in sessions]))

    def _tell_some(self, sessions: Iterator[Session]) -> None:
        for number, session in enumerate(itertools.islice(sessions, TOLD_AT_ONCE_MAX), 1):
            self._tell(session)
            if number == TOLD_AT_ONCE_MAX:
                asyncio.get_running_loop().call_soon(self._tell_some, sessions)

    def _tell(self, session: Session) -> None:
        """Tell an agent all that is asked of it at present."""
        opened = session.opened
        if FEATURE not in opened.features:
            return
        requests = {
            request_id: reader.reading.asked
            for request_id, reader in self._readers.items()
            if reader.run_id == opened.run_id
            and reader.reading.is_wanted_of(opened.agent.incarnation)
        }
        session.put(fx.TellLogs(session_id=opened.session_id, requests=requests))
