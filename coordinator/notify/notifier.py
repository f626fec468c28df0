"""Shell. Sends notifications, each endpoint on its own. Nothing waits for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from drumbeat.coordinator.access.recent import Recent
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.run.records import Record
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.notify.endpoints import Endpoint, endpoints_of
from drumbeat.coordinator.notify.facts import Level, Message, message, messages_of
from drumbeat.coordinator.notify.heartbeat import Heartbeat
from drumbeat.coordinator.notify.queue import MessageQueue
from drumbeat.tasks import in_thread
from drumbeat.text.format import count
from drumbeat.v1.query_pb2 import Notification

log = structlog.get_logger()

# What is not answered by then is given up: it may have arrived.
SEND_WITHIN_S = 60.0
# The end of the process waits so long for messages that are still to be sent.
CLOSE_WITHIN_S = 3.0


class Notifier:
    """The notifications of one coordinator process, over all its terms. One event loop uses it.

    ``is_well`` says whether this coordinator leads and can write its journal.
    """

    def __init__(self, config: CoordinatorConfig, is_well: Callable[[], bool]) -> None:
        """Read the endpoints. Raises ``NotificationsUnusable``."""
        endpoints = endpoints_of(config.notify, config.notify_file)
        self.recent = Recent()
        self._senders = [_Sender(endpoint, self.recent) for endpoint in endpoints]
        self._heartbeat: Heartbeat | None = None
        if config.notify_heartbeat is not None:
            interval_s = config.notify_heartbeat_interval
            self._heartbeat = Heartbeat(config.notify_heartbeat, interval_s, is_well)
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        self.name = "coordinator"
        self.page = ""  # its address, empty if none is served

    @property
    def counts(self) -> Counter[str]:
        """What became of messages so far."""
        return sum((sender.queue.counts for sender in self._senders), Counter[str]())

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(sender.run(), name="notify") for sender in self._senders]
        if self._heartbeat is not None:
            self._beating = asyncio.create_task(self._heartbeat.run(), name="heartbeat")

    def observe(self, state: RunState, record: Record) -> None:
        """Take in a durable record of this term; ``state`` is that of its run before it."""
        try:
            for message in messages_of(state, record, self.page):
                self._put(message)
        except Exception:  # no decision depends on what is told of it
            log.exception("a notification could not be made", **{"run.id": state.run_id})

    def journal_changed(self, outage: str) -> None:
        """Tell that the journal cannot be written, and why; empty: that it can be again."""
        fact, level = "the journal cannot be written", Level.FAILURE
        lines = [f"Reason: {outage}", "Nothing is decided until it can; workers go on"]
        if not outage:
            fact, level = "the journal can be written again", Level.INFO
            lines = ["Decisions are made again"]
        self._put(message(fact, level, self.name, lines))

    async def close(self) -> None:
        """Send what waits, for a short while, and end."""
        if self._beating is not None:
            self._beating.cancel()
        for sender in self._senders:
            sender.hurry()
        tasks = [*self._tasks, *filter(None, [self._beating])]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders:
            if waiting := sender.queue.size:
                text = f"{count(waiting, 'notification')} not sent to {sender.name} before the end"
                log.warning("notifications not sent", message=text, endpoint=sender.name)

    def _put(self, message: Message) -> None:
        for sender in self._senders:
            sender.put(message)


class _Sender:
    """Sends the messages of one endpoint, one after the other, each in a thread of its own.

    Threads are daemons: one that hangs keeps neither another endpoint nor the end waiting.
    """

    def __init__(self, endpoint: Endpoint, recent: Recent) -> None:
        self.queue, self.name, self._recent = MessageQueue(), endpoint.name, recent
        self._endpoint = endpoint
        self._changed = asyncio.Event()
        self._is_ending = self._is_failing = False

    def put(self, message: Message) -> None:
        if message.level in self._endpoint.levels:
            self.queue.put(message)
            self._changed.set()

    def hurry(self) -> None:
        """End once all is sent."""
        self._is_ending = self.queue.is_hurried = True
        self._changed.set()

    async def run(self) -> None:
        while self.queue.size or not self._is_ending:
            due, now = self.queue.due_at(), time.monotonic()
            if due is None or due > now:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else due - now):
                        await self._changed.wait()
            else:
                await self._send(self.queue.take(now=now))

    async def _send(self, message: Message) -> None:
        answer = asyncio.ensure_future(in_thread(partial(self._endpoint.send, message)))
        try:
            await asyncio.wait({answer}, timeout=SEND_WITHIN_S)
            is_answered = answer.done()
            is_sent = is_answered and answer.result()
            outcome = "sent" if is_sent else "refused" if is_answered else "no answer"
            self._recent.add(Notification(endpoint=self.name, title=message.title, outcome=outcome))
            self.queue.settle(is_sent=is_sent, may_retry=is_answered, now=time.monotonic())
            self._note(is_sent, "it refused a message" if is_answered else "it does not answer")
            await answer  # one thread at a time
        finally:
            answer.cancel()

    def _note(self, is_sent: bool, reason: str) -> None:
        """Log once that an endpoint takes no messages, and once that it does again."""
        if is_sent is self._is_failing:
            what = "notifications arrive again" if is_sent else "notifications do not arrive"
            text = f"{what} at {self.name}{'' if is_sent else f': {reason}'}"
            log.warning(what, message=text, endpoint=self.name)
        self._is_failing = not is_sent
