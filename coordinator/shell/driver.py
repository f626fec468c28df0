"""Shell. The one owner of the core: runs its turns, on a real clock and a real journal."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog

from coordinator.core import effects as fx
from coordinator.core.events import Event, FailureReported, LimitsReset, SessionOpened
from coordinator.core.registry.registry import Registry
from coordinator.core.run.history import CoordinatorHistory
from coordinator.errors import CoordinatorError
from coordinator.journal.journal import Journal, read_run
from coordinator.journal.runs import JournaledRuns
from coordinator.journal.writer import OnServing, Writer
from coordinator.shell.outbox import Outbox
from coordinator.shell.turns import Turns

log = structlog.get_logger()


async def ignore(is_serving: bool) -> None:
    """Tell no one."""


class Driver:
    """Runs a registry. Everything that reaches it comes through ``submit``.

    Events that arrive while the journal is being written are handled together
    afterwards, so one write to the disk serves as many of them as there are. A write
    that fails is tried until it succeeds: meanwhile nothing is decided and nothing
    decided is told, and ``on_serving`` has been told ``False``. ``is_embedded``: decisions
    are details, for an agent in this process logs them.
    """

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        *,
        queue_max: int = 100_000,
        failures_waiting_max: int = 256,
        is_embedded: bool = False,
        on_serving: OnServing = ignore,
    ) -> None:
        self.registry = registry
        self._journal = journal
        # Streams are not read beyond it: gRPC then holds the rest back on the agents.
        self._failure_room = asyncio.Semaphore(failures_waiting_max)
        self._turns = Turns(
            registry,
            read_run=lambda key: read_run(journal.runs, key),
            log=self._log,
            queue_max=queue_max,
            failure_taken=self._failure_room.release,
        )
        self._writer = Writer(journal, on_outage=self._note_outage, on_serving=on_serving)
        self._is_embedded = is_embedded
        self._history = CoordinatorHistory()
        self._due = asyncio.Event()
        self._clock_offset = 0.0

    @property
    def journaled(self) -> JournaledRuns:
        """The runs as they are durable."""
        return self._journal.runs

    def now(self) -> float:
        """Return the coordinator's clock: monotonic seconds that go on across its restarts."""
        return time.monotonic() + self._clock_offset

    async def restore(self) -> None:
        """Take over what the journal holds. Raises ``JournalError``."""
        self._clock_offset = await self._journal.load()
        runs = self._journal.runs
        states = [state for key in runs.states if (state := read_run(runs, key)) is not None]
        now = self.now()
        effects = self.registry.restore(states, now=now)
        await self._journal.write(effects, now=now)
        for state in states:
            text = f"{state.run_id}: restored from the journal, {state.phase}"
            log.info("run restored", message=text, **{"run.id": state.run_id})

    def open(self, opened: SessionOpened) -> Outbox:
        """Let a session begin, and return what it is sent. As ``submit``."""
        outbox = Outbox()
        self._wake(self._turns.open(opened, outbox, now=self.now()))
        return outbox

    def close(self, opened: SessionOpened) -> None:
        """Take in that a session ended."""
        self._wake(self._turns.close(opened, now=self.now()))

    def submit(self, event: Event) -> None:
        """Hand an event over. Raises ``LimitReached`` or ``Unavailable``, see ``Turns``."""
        self._wake(self._turns.submit(event, now=self.now()))

    async def submit_failure(self, event: FailureReported) -> asyncio.Future[int | None]:
        """Ask for a failure record to be kept, once there is room for it."""
        await self._failure_room.acquire()
        try:
            return self.ask(event)
        except CoordinatorError:
            self._failure_room.release()
            raise

    def ask(self, event: FailureReported | LimitsReset) -> asyncio.Future[int | None]:
        """Submit what has an answer; return the future that is done once that is journaled.

        For a failure record it holds whether that was kept; for a reset how many
        limits were forgotten, ``None`` if there is no such run.
        """
        self.submit(event)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._turns.answers[event.request_id] = partial(_settle, future)
        return future

    def stop(self, error: CoordinatorError) -> None:
        """Decide nothing any more, and end every session with an error."""
        self._turns.stop(error)

    async def run(self) -> None:
        """Handle events until cancelled. Raises what no write can heal, as ``LostLeadership``."""
        try:
            while True:
                await self._wait_until_due()
                now = self.now()
                effects = self._turns.decide(now=now)
                await self._writer.write(effects, now=now)
                self._turns.tell(effects)
                # The others have their turn, however much waits here.
                await asyncio.sleep(0)
        finally:
            await self._journal.close()

    async def _wait_until_due(self) -> None:
        """Return when an event is there or a deadline has come."""
        if not self._turns.is_idle:
            return
        self._due.clear()
        due = self._turns.next_deadline()
        timer = None
        if due is not None:
            delay = max(0.0, due - self.now())
            timer = asyncio.get_running_loop().call_later(delay, self._due.set)
        try:
            await self._due.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self, is_due: bool) -> None:
        if is_due:
            self._due.set()

    def _note_outage(self, reason: str) -> None:
        self._turns.outage = reason

    def _log(self, effect: fx.Decided | fx.ReadRun) -> None:
        if isinstance(effect, fx.ReadRun):
            log.error("run broken", exc_info=effect.error, **{"run.id": effect.run_id})
            return
        write = log.debug if self._is_embedded else log.info
        write(
            effect.decision,
            message=self._history.line(effect),
            reason=effect.reason,
            **{"run.id": effect.run_id, "run.round": effect.round_id},
        )


def _settle(future: asyncio.Future[int | None], answer: fx.Answer) -> None:
    if future.done():
        return  # who asked is gone
    if isinstance(answer.result, CoordinatorError):
        future.set_exception(answer.result)
        future.exception()  # who asked may go without looking
    else:
        future.set_result(answer.result)
