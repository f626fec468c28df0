"""Pure. The turns of a coordinator, as the driver takes them and the simulation.

They journal the effects of ``decide``, and hand them to ``tell`` once they are durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CoordinatorError, LimitReached, Unavailable
from drumbeat.model import GroupState

# Sessions and events handled between two writes of the journal, so that one write serves many, and
# others are served in between.
BATCH_MAX = 250
# Failure records of one batch: what the disk takes within milliseconds, so that decisions
# wait no longer.
FAILURES_MAX = 256
FAILURES_BYTES_MAX = 1024 * 1024

_CONCLUSIONS = frozenset({GroupState.SUCCEEDED, GroupState.FAILED})
_CONCLUDED = "concluded"
_ORDER = (ev.SessionOpened, _CONCLUDED, ev.BeatReceived, ev.AgentLeft, ev.SessionClosed)


@dataclass(slots=True)
class Inbox:
    """What one session has said and the core has not taken in: the latest of each kind.

    A beat keeps what it does not say anew of the one before. The end of a round's workers is
    kept beside what came after it: it counts, even if its agent leaves at once.
    """

    _said: dict[object, ev.SessionEvent] = field(default_factory=dict)

    def put(self, event: ev.SessionEvent) -> None:
        """Take an event in."""
        before = self._said.get(ev.BeatReceived)
        if isinstance(event, ev.BeatReceived) and isinstance(before, ev.BeatReceived):
            beat, was = event.beat, before.beat
            is_as_before = (beat.state, beat.round_id) == (was.state, was.round_id)
            if was.state in _CONCLUSIONS and not is_as_before:
                self._said[_CONCLUDED] = before
            uptime_s = event.uptime_s or 0.0  # unknown of agents of before
            later_s = max(0.0, uptime_s - (before.uptime_s or uptime_s))
            event = replace(event, beat=beat.after(was, later_s=later_s))
        self._said[type(event)] = event

    def events(self) -> list[ev.SessionEvent]:
        """Return what there is, oldest first."""
        return [self._said[kind] for kind in _ORDER if kind in self._said]


class Queued(NamedTuple):
    """How much waits for a turn."""

    events: int  # and sessions that have said something
    failures: int


Send = Callable[[fx.Push | fx.Reject], None]  # takes in what is to be sent in a session


class Turns:
    """Queues events for a registry, and hands its effects to whom they concern.

    ``wake`` is called when a turn is due, ``failure_taken`` for each failure record that leaves
    the queue, ``on_revoked`` with the id of a token once it is revoked. ``outboxes`` are the open
    sessions, ``answers`` what waits for an answer by request id. ``outage`` is why the journal
    can't be written, empty if it can; ``tell`` clears it.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        read_run: Callable[[str], RunState | None],
        log: Callable[[fx.Decided | fx.ReadRun], None],
        wake: Callable[[], None],
        queue_max: int,
        failure_taken: Callable[[], None],
    ) -> None:
        self.outboxes: dict[str, Send] = {}
        self.answers: dict[int, Callable[[fx.Answer], None]] = {}
        self.on_revoked: Callable[[str], None] = lambda _token_id: None
        # Called with what is wanted; ``EvidenceTaken`` is submitted once it is there.
        self.take_evidence: Callable[[fx.TakeEvidence], None] = lambda _question: None
        self.outage = ""
        self._registry, self._queue_max = registry, queue_max
        self._read_run, self._log = read_run, log
        self._wake, self._failure_taken = wake, failure_taken
        # What waits for a turn. A session is in there once at most, with its inbox.
        self._queue: deque[Inbox | ev.Event] = deque()
        self._inboxes: dict[str, Inbox] = {}
        self._failures: deque[ev.FailureReported] = deque()
        self._turns: list[ev.TurnCame] = []  # of runs that have more to tell
        self._taken = 0
        self._overdue_from: int | None = None
        self._is_stopping = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._queue and not self._failures and not self._turns

    @property
    def queued(self) -> Queued:
        """How much waits."""
        return Queued(len(self._queue), len(self._failures))

    def open(self, opened: ev.SessionOpened, send: Send, *, now: float) -> None:
        """Let a session begin. As ``submit``; one that is refused leaves nothing behind."""
        self.submit(opened, now=now)
        self.outboxes[opened.session_id] = send

    def close(self, opened: ev.SessionOpened, *, is_revoked: bool, now: float) -> None:
        """Take in that a session ended; what was not sent yet is dropped."""
        self.outboxes.pop(opened.session_id, None)
        closed = ev.SessionClosed(
            run_id=opened.run_id,
            session_id=opened.session_id,
            incarnation=opened.agent.incarnation,
            is_revoked=is_revoked,
        )
        self._put(closed, now)

    def submit(self, event: ev.Event, *, now: float) -> None:
        """Take an event in.

        What a session says takes no more room than the session has: the latest counts.
        Raises ``LimitReached`` if too many events wait, and ``Unavailable`` for what needs
        an answer before long, while the journal can't be written.
        """
        if self.outage and isinstance(event, ev.SessionOpened | ev.OperatorRequest):
            raise Unavailable(self.outage)
        # A job has one quorum that waits, and there are few front ends.
        is_bounded = isinstance(
            event, ev.BeatReceived | ev.AgentLeft | ev.QuorumFormed | ev.OutageEnded | ev.Deafened
        )
        if not is_bounded and len(self._queue) >= self._queue_max:
            raise LimitReached("event_queue_max", self._queue_max)
        self._put(event, now)

    def note(self, event: ev.CallNoted, *, now: float) -> None:
        """Have what a caller did noted in its run, unless that takes room that others need."""
        has_room = not self.outage and len(self._queue) < self._queue_max
        if has_room and (noted := self._registry.worth_noting(event, now=now)) is not None:
            self._put(noted, now)

    def stop(self, error: CoordinatorError) -> None:
        """Decide nothing any more, and end every session with an error.

        What comes from here on is dropped; agents send it again to the next coordinator.
        """
        self._is_stopping = True
        self._queue.clear()
        self._inboxes.clear()
        self._turns.clear()
        while self._failures:
            self._failures.popleft()
            self._failure_taken()
        for session_id, send in self.outboxes.items():
            send(fx.Reject(session_id=session_id, error=error))

    def next_deadline(self) -> float | None:
        """Return when the next turn is due if nothing happens before."""
        return None if self._is_stopping else self._registry.next_deadline()

    def decide(self, *, now: float) -> list[fx.Effect]:
        """Handle one batch of what waits, and return what follows.

        Failure records decide nothing, so they come last, and only if nothing else waits.
        """
        handle = self._registry.handle
        effects: list[fx.Effect] = []
        if self._registry.was_deaf(now=now):
            self._queue.append(ev.OutageEnded())
        turns, self._turns = self._turns, []
        for turn in turns:  # before what those say who were told in the one before
            effects += handle(turn, now=now)
        for _ in range(min(len(self._queue), BATCH_MAX)):
            self._taken += 1
            item = self._queue.popleft()
            if isinstance(item, Inbox):
                events = item.events()
                del self._inboxes[events[0].session_id]
                for event in events:
                    effects += handle(event, now=now)
            else:
                effects += handle(item, now=now)
        if self._is_overdue(now):
            effects += handle(ev.DeadlineReached(), now=now)
        size = 0
        for _ in range(0 if self._queue else min(len(self._failures), FAILURES_MAX)):
            if size >= FAILURES_BYTES_MAX:
                break
            failure = self._failures.popleft()
            self._failure_taken()
            size += failure.record.size_bytes
            effects += handle(failure, now=now)
        return effects

    def tell(self, effects: Sequence[fx.Effect]) -> None:
        """Hand effects on, all that is to be kept of them being durable."""
        for effect in effects:
            match effect:
                case (
                    fx.Persist() | fx.Forget() | fx.KeepDrain() | fx.KeepForgets() | fx.KeepQuorum()
                ):
                    pass
                case fx.KeepToken(token=token):
                    if token is not None and token.revoked_at is not None:
                        self.on_revoked(token.token_id)
                case fx.Decided():
                    self._log(effect)
                case fx.ReadRun() | fx.TellMore():
                    self._answer(effect)
                case fx.TakeEvidence():
                    self.take_evidence(effect)
                case fx.Answer():
                    if (answer := self.answers.pop(effect.request_id, None)) is not None:
                        answer(effect)
                case _:
                    if (send := self.outboxes.get(effect.session_id)) is not None:
                        send(effect)
        if self.outage:
            self.outage = ""
            self._queue.append(ev.OutageEnded())

    def _answer(self, asked: fx.ReadRun | fx.TellMore) -> None:
        """Queue what a run asked for."""
        if isinstance(asked, fx.TellMore):
            self._turns.append(ev.TurnCame(run_id=asked.run_id))
            return
        self._log(asked)
        read = self._read_run(asked.run_id)
        self._queue.append(ev.RunRead(run_id=asked.run_id, state=read))

    def _put(self, event: ev.Event, now: float) -> None:
        if self._is_stopping:
            return
        if isinstance(event, ev.FailureReported):
            self._failures.append(event)
        elif isinstance(event, ev.SessionEvent):
            inbox = self._inboxes.get(event.session_id)
            if inbox is not None:
                inbox.put(event)
                return
            # Most beats say nothing new, and need no turn.
            if isinstance(event, ev.BeatReceived) and self._registry.take_quietly(event, now=now):
                return
            inbox = self._inboxes[event.session_id] = Inbox()
            inbox.put(event)
            self._queue.append(inbox)
        else:
            self._queue.append(event)
        self._wake()

    def _is_overdue(self, now: float) -> bool:
        """Return whether a deadline is over and all that waited by then, and may renew it, handled.

        What comes later must not delay it for ever.
        """
        due = self._registry.next_deadline()
        if due is None or due > now:
            self._overdue_from = None
        elif self._overdue_from is None:
            self._overdue_from = self._taken + len(self._queue)
        is_overdue = self._overdue_from is not None and self._taken >= self._overdue_from
        if is_overdue:
            self._overdue_from = None
        return is_overdue
