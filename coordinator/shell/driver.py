"""Shell. The one owner of the core: feeds it events, journals its records, executes its effects."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import structlog

from coordinator.core import effects as fx
from coordinator.core.events import (
    AgentLeft,
    BeatReceived,
    DeadlineReached,
    Event,
    FailureReported,
    LimitsReset,
    OutageEnded,
    RunRead,
    SessionClosed,
    SessionOpened,
)
from coordinator.core.registry.registry import Registry
from coordinator.core.run.history import CoordinatorHistory
from coordinator.core.run.records import FailuresCounted, weight
from coordinator.errors import (
    CoordinatorError,
    JournalCorrupt,
    LimitReached,
    Unavailable,
)
from coordinator.journal.readable import JournaledRuns
from coordinator.journal.sqlite import Append, Change, Compact, Erase, Journal, snapshots_due
from coordinator.journal.writer import OnServing, Writer, ignore
from coordinator.shell.failure_queue import FailureQueue
from coordinator.shell.inbox import Inbox
from coordinator.shell.outbox import Outbox

log = structlog.get_logger()

# Sessions and events handled between two writes of the journal, so that one write serves many.
BATCH_MAX = 1_000


class Driver:
    """Runs a registry. Everything that reaches it comes through ``submit``.

    Events that arrive while the journal is being written are handled together
    afterwards, so one write to the disk serves as many of them as there are. A write
    that fails is tried until it succeeds: meanwhile nothing is decided and nothing
    decided is told, and ``on_serving`` has been told ``False``. ``is_embedded``: decisions
    are details, for an agent in this process tells their story.
    """

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        *,
        queue_max: int = 100_000,
        failure_bytes_max: int = 64 * 1024 * 1024,
        is_embedded: bool = False,
        on_serving: OnServing = ignore,
    ) -> None:
        self.registry = registry
        self.journaled = JournaledRuns()
        self._is_embedded = is_embedded
        self._history = CoordinatorHistory()
        self._journal = journal
        self._writer = Writer(journal, on_serving=on_serving)
        # What waits for a turn. A session is in there once at most, with its inbox.
        self._queue: deque[Inbox | Event] = deque()
        self._inboxes: dict[str, Inbox] = {}
        self._taken = 0
        self._overdue_from: int | None = None
        self._failures = FailureQueue(failure_bytes_max)
        self._queue_max = queue_max
        self._arrived = asyncio.Event()
        self._outboxes: dict[str, Outbox] = {}
        self._answers: dict[int, asyncio.Future[int | None]] = {}
        self._sizes: dict[str, int] = {}  # records since the last snapshot, by run
        self._clock_offset = journal.clock_offset()
        self._is_stopping = False

    def now(self) -> float:
        """Return the coordinator's clock: monotonic seconds that go on across its restarts."""
        return time.monotonic() + self._clock_offset

    def restore(self) -> None:
        """Take over what the journal holds. Raises ``JournalError``."""
        states = self._journal.load()
        self._sizes = self._journal.sizes()
        self.journaled.restore(self._journal.load())  # a copy that only the journal changes
        now = self.now()
        if changes := self._changes(self.registry.restore(states, now=now)):
            self._journal.write(changes, now=now)
            self._publish(changes)
        for state in states:
            text = f"{state.run_id}: restored from the journal, {state.phase}"
            log.info("run restored", message=text, **{"run.id": state.run_id})

    def submit(self, event: Event) -> None:
        """Hand an event over. Raises ``LimitReached`` if too many wait already.

        What a session says takes no more room than the session has: the latest counts.
        Raises ``Unavailable`` for what needs an answer before long, while the journal
        can't be written.
        """
        outage = self._writer.outage
        if outage is not None and isinstance(event, SessionOpened | LimitsReset):
            raise Unavailable(outage.reason)
        is_told_anew = isinstance(event, BeatReceived | AgentLeft)
        if not is_told_anew and len(self._queue) >= self._queue_max:
            raise LimitReached("event_queue_max", self._queue_max)
        self.submit_always(event)

    def submit_always(self, event: Event) -> None:
        """Hand an event over that must not be lost, such as the end of a session."""
        if self._is_stopping:
            return
        if isinstance(event, FailureReported):
            self._failures.add(event)
        elif isinstance(event, SessionOpened | BeatReceived | AgentLeft | SessionClosed):
            inbox = self._inboxes.get(event.session_id)
            if inbox is not None:
                inbox.put(event)
                return
            # Most beats say nothing new: they need no turn, nor anyone to be woken.
            if isinstance(event, BeatReceived) and self._is_quiet(event):
                return
            inbox = self._inboxes[event.session_id] = Inbox()
            inbox.put(event)
            self._queue.append(inbox)
        else:
            self._queue.append(event)
        self._arrived.set()

    async def room_for_failure(self) -> None:
        """Return when one more failure record may be submitted."""
        await self._failures.room()

    def open_outbox(self, session_id: str) -> Outbox:
        """Return the place where effects for a session will be put."""
        outbox = self._outboxes[session_id] = Outbox()
        return outbox

    def close_outbox(self, session_id: str) -> None:
        """Drop what is still to be sent to a session that has ended."""
        self._outboxes.pop(session_id, None)

    def stop(self, error: CoordinatorError) -> None:
        """Decide nothing any more, and end every session with an error.

        The sessions that end now say nothing about their agents, so what comes
        from here on is dropped; agents send it again to the next coordinator.
        """
        self._is_stopping = True
        self._queue.clear()
        self._failures.clear()
        self._inboxes.clear()
        for session_id, outbox in self._outboxes.items():
            outbox.put(fx.Reject(session_id=session_id, error=error))

    def expect_answer(self, request_id: int) -> asyncio.Future[int | None]:
        """Return the future that is done when what was submitted is journaled.

        For a failure record it holds whether that was kept; for a reset how many
        limits were forgotten, ``None`` if there is no such run.
        """
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = future
        return future

    def drop_answer(self, request_id: int) -> None:
        """Stop waiting for an answer."""
        self._answers.pop(request_id, None)

    async def run(self) -> None:
        """Handle events until cancelled."""
        try:
            while True:
                await self._wait_for_work()
                await self._turn()
                # The others have their turn, however much waits here.
                await asyncio.sleep(0)
        finally:
            self._writer.close()

    async def _wait_for_work(self) -> None:
        """Return when an event is there or a deadline has come."""
        if self._queue or self._failures:
            return
        self._arrived.clear()
        loop, due = asyncio.get_running_loop(), self.registry.next_deadline()
        timer = None
        if due is not None and not self._is_stopping:
            timer = loop.call_later(max(0.0, due - self.now()), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _turn(self) -> None:
        """Handle one batch: decide, then journal, then tell.

        Failure records decide nothing, so they come last, and only if nothing else waits.
        """
        now, effects = self.now(), list[fx.Effect]()
        for _ in range(min(len(self._queue), BATCH_MAX)):
            for event in self._take():
                effects += self.registry.handle(event, now=now)
        if self._is_overdue(now):
            effects += self.registry.handle(DeadlineReached(), now=now)
        if not self._queue:
            for failure in self._failures.take():
                effects += self.registry.handle(failure, now=now)
        if changes := self._changes(effects):
            await self._write(changes, now)
            self._publish(changes)
        for effect in effects:
            self._execute(effect)
        for effect in effects:
            if isinstance(effect, fx.ReadRun):
                await self._read_run(effect)

    def _is_quiet(self, beat: BeatReceived) -> bool:
        return self.registry.take_quietly(beat, now=self.now())

    def _take(self) -> Sequence[Event]:
        self._taken += 1
        item = self._queue.popleft()
        if not isinstance(item, Inbox):
            return (item,)
        events = item.events()
        del self._inboxes[events[0].session_id]
        return events

    def _is_overdue(self, now: float) -> bool:
        """Return whether a deadline is over and all that waited by then was handled.

        What waits may renew what seems to be over; what comes later must not delay it for ever.
        """
        due = self.registry.next_deadline()
        if due is None or due > now:
            self._overdue_from = None
            return False
        if self._overdue_from is None:
            self._overdue_from = self._taken + len(self._queue)
        if self._taken < self._overdue_from:
            return False
        self._overdue_from = None
        return True

    def _changes(self, effects: Sequence[fx.Effect]) -> list[Change]:
        changes: list[Change] = []
        counted: dict[str, tuple[int, list[FailuresCounted]]] = {}
        for effect in effects:
            match effect:
                case fx.Persist(record=FailuresCounted() as count) if effect.run_id in counted:
                    counted[effect.run_id][1].append(count)
                case fx.Persist():
                    if isinstance(effect.record, FailuresCounted):
                        counted[effect.run_id] = len(changes), [effect.record]
                    changes.append(Append(run_id=effect.run_id, record=effect.record))
                case fx.Forget():
                    changes.append(Erase(run_id=effect.run_id))
                    self._sizes.pop(effect.run_id, None)
        for key, (place, records) in counted.items():
            changes[place] = Append(run_id=key, record=FailuresCounted.together(records))
        return changes + self._snapshots(changes)

    def _snapshots(self, changes: Sequence[Change]) -> list[Change]:
        """Return what keeps the journal small after these changes."""
        appended = (
            change.run_id
            for change in changes
            if isinstance(change, Append)
            for _ in range(weight(change.record))
        )
        due = snapshots_due(self._sizes, appended)
        states = [self.registry.state(key) for key in due]
        return [Compact(state=state) for state in states if state is not None]

    def _publish(self, changes: Sequence[Change]) -> None:
        """Let readers see what is durable now."""
        for change in changes:
            match change:
                case Append():
                    self.journaled.append(change.run_id, change.record)
                case Erase():
                    self.journaled.erase(change.run_id)
                case Compact():
                    pass  # it changes nothing

    async def _write(self, changes: list[Change], now: float) -> None:
        outages = self._writer.outages_count
        await self._writer.write(changes, now=now)
        if self._writer.outages_count > outages:
            self.submit_always(OutageEnded())

    async def _read_run(self, effect: fx.ReadRun) -> None:
        run_id, state = effect.run_id, None
        log.error("run broken", exc_info=effect.error, **{"run.id": run_id})
        try:
            state = await self._writer.load_run(run_id)
        except JournalCorrupt:
            log.exception("run cannot be read", **{"run.id": run_id})
        self.submit_always(RunRead(run_id=run_id, state=state))

    def _execute(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist() | fx.Forget() | fx.ReadRun():
                pass  # done before, or after all others
            case fx.RefuseRequest():
                self._refuse(effect.request_id, effect.error)
            case fx.AcknowledgeFailure():
                self._answer(effect.request_id, effect.is_kept)
            case fx.AnswerReset():
                self._answer(effect.request_id, effect.forgotten)
            case fx.Decided():
                self._tell(effect)
            case _:
                outbox = self._outboxes.get(effect.session_id)
                if outbox is not None:
                    outbox.put(effect)

    def _tell(self, decided: fx.Decided) -> None:
        tell = log.debug if self._is_embedded else log.info
        tell(
            decided.decision,
            message=self._history.line(decided),
            reason=decided.reason,
            **{"run.id": decided.run_id, "run.round": decided.round_id},
        )

    def _answer(self, request_id: int, result: int | None) -> None:
        future = self._answers.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(result)

    def _refuse(self, request_id: int, error: CoordinatorError) -> None:
        future = self._answers.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # who asked may be gone
