"""The coordinator's side: lives of a process around the real registry, and its journal."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.core import effects as fx
from coordinator.core.events import (
    DeadlineReached,
    Event,
    OutageEnded,
    RunRead,
    SessionClosed,
    SessionOpened,
)
from coordinator.core.registry.registry import Registry, RegistryPolicy
from coordinator.errors import CoordinatorError, Unavailable
from coordinator.shell.outbox import Outbox
from coordinator.wire import session as convert
from coordinator.wire.failure import failure_reported
from drumbeat.mapping import refuse
from drumbeat.v1 import session_pb2
from tests.simulation.clock import Actor, Clock
from tests.simulation.network import End
from tests.simulation.plan import RUN
from tests.support import breaks
from tests.support.journal import fold, round_trip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.core.run.records import Record
    from tests.simulation.checks import Checker
    from tests.simulation.network import Link, Network

RECORD_BYTES_MAX = 256 * 1024
TEXT_CHARACTERS_MAX = 64 * 1024

Entry = tuple[str, "Record"]


class Session:
    """The coordinator's end of one stream, with an outbox that keeps the latest of each kind."""

    def __init__(self, life: HeadLife, link: Link, session_id: str) -> None:
        self.session_id = session_id
        self._life, self._link = life, link
        self._opened: SessionOpened | None = None
        self._outbox = Outbox()
        self._is_over = False
        self._is_flush_due = False
        self._random = life.clock.random(f"{link.name} outbox")
        link.up.into(life.actor, self.on_up)
        link.records.into(life.actor, self.on_record)

    def on_up(self, message: session_pb2.AgentReport | End) -> None:
        """Take what the agent says."""
        if self._is_over:
            return
        if isinstance(message, End):
            self._end(End("the coordinator ended the session"))
            return
        event: Event
        try:
            if self._opened is None and self._life.is_out:
                raise Unavailable("its disk is full")
            if self._opened is None:
                event = self._opened = convert.session_opened(message, session_id=self.session_id)
            else:
                heard = convert.session_event(message, self._opened, refuse)
                if heard is None:
                    return
                event = heard
        except CoordinatorError as error:
            self.fail(error)
            return
        self._life.submit(event)
        if message.WhichOneof("kind") == "goodbye":
            self._life.after(self._random.uniform(0, 0.002), self._close)

    def on_record(self, message: session_pb2.ReportFailuresRequest | End) -> None:
        """Take a failure record."""
        if isinstance(message, End):
            return
        life, link = self._life, self._link
        record = message.record

        def answer(is_kept: bool | None) -> None:
            if is_kept is None:
                link.acks.send(End("the record was refused", "UNAVAILABLE"))
                return
            link.acks.send(
                session_pb2.ReportFailuresResponse(
                    incarnation=record.fence.incarnation, sequence=record.sequence, kept=is_kept
                )
            )

        life.submit(
            failure_reported(
                message,
                request_id=life.expect(answer),
                record_bytes_max=RECORD_BYTES_MAX,
                text_characters_max=TEXT_CHARACTERS_MAX,
                on_problem=refuse,
            )
        )

    def put(self, effect: fx.Push | fx.Reject) -> None:
        """Queue what is to be sent."""
        self._outbox.put(effect)
        if self._outbox.error is not None:
            self.fail(self._outbox.error)
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._life.after(self._random.uniform(0, 0.001), self._flush)

    def fail(self, error: CoordinatorError) -> None:
        """End the stream with an error; what was not sent yet is not sent any more."""
        self._end(End(str(error), error.refusal))

    def _close(self) -> None:
        self._end(End("the coordinator ended the session"))

    def _end(self, end: End) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._link.end_down(end, is_lossy=False)
        self._life.sessions.pop(self.session_id, None)
        if self._opened is not None:
            self._life.submit(
                SessionClosed(
                    run_id=self._opened.run_id,
                    session_id=self.session_id,
                    incarnation=self._opened.agent.incarnation,
                )
            )

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_over:
            return
        while (effect := self._outbox.take()) is not None:
            self._link.down.send(convert.directive_message(effect, run_id=RUN, term=1))


class HeadLife:
    """One life of the coordinator's process: its driver and server, in virtual time."""

    def __init__(self, machine: HeadMachine, number: int) -> None:
        self.clock = machine.clock
        self.actor = Actor(f"head.{number}")
        self.registry = machine.make_registry(machine.policy)
        self.sessions: dict[str, Session] = {}
        self.writing: list[Entry] = []
        self.is_out = False  # a write has failed, and none has succeeded since
        self._machine = machine
        self._queue: deque[Event] = deque()
        self._random = machine.clock.random(self.actor.name)
        self._is_busy = False
        self._timer: float | None = None
        self._answers: dict[int, Callable[[bool | None], None]] = {}
        self._requests = 0

    def restore(self) -> None:
        """Take over the journal, as it is read back from the disk."""
        states = fold(round_trip(self._machine.disk))
        self._perform(self.registry.restore(list(states.values()), now=self.clock.now))

    def open(self, link: Link) -> None:
        """Serve a new stream."""
        session = Session(self, link, f"s{link.name}")
        self.sessions[session.session_id] = session

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in this life, later."""
        self.clock.after(delay_s, self.actor, action)

    def expect(self, answer: Callable[[bool | None], None]) -> int:
        """Return the id of a request whose answer goes there."""
        self._requests += 1
        self._answers[self._requests] = answer
        return self._requests

    def submit(self, event: Event) -> None:
        """Hand an event to the core, soon."""
        self._queue.append(event)
        self._begin_turn()

    def _begin_turn(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self.after(self._random.uniform(0, 0.001), self._turn)

    def _turn(self) -> None:
        effects: list[fx.Effect] = []
        while self._queue:
            effects += self._handle_next()
        due = self.registry.next_deadline()
        if due is not None and due <= self.clock.now:
            effects += self._handle(DeadlineReached())
            due = self.registry.next_deadline()
            assert due is None or due > self.clock.now, "a deadline that is over stays due"
        self._perform(effects)

    def _handle_next(self) -> list[fx.Effect]:
        """Handle the next event; if a fault wants it, the core raises at its end."""
        event, run = self._queue.popleft(), self.registry.runs.get(RUN)
        if self._machine.is_break_due and run is not None:
            self._machine.is_break_due = False
            with breaks.broken_core(run):
                return self._handle(event)
        return self._handle(event)

    def _handle(self, event: Event) -> list[fx.Effect]:
        if not isinstance(event, DeadlineReached):
            self.clock.note(self.actor.name, "<-", event)
        effects = self.registry.handle(event, now=self.clock.now)
        self.registry.check_invariants()
        for effect in effects:
            self.clock.note(self.actor.name, "  ->", effect)
        return effects

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        """Journal first; effects leave when the disk has it. It is tried until it has."""
        self._is_busy = True
        is_writing = any(isinstance(effect, fx.Persist) for effect in effects)
        if is_writing and self.clock.now < self._machine.full_until:
            self.is_out = True
            self.after(self._random.uniform(0.05, 2.0), lambda: self._perform(effects))
            return
        self.writing = [(e.run_id, e.record) for e in effects if isinstance(e, fx.Persist)]
        duration = self._machine.write_s(self._random) if self.writing else 0.0
        self.after(duration, lambda: self._written(effects))

    def _written(self, effects: Sequence[fx.Effect]) -> None:
        self._machine.commit(self.writing)
        self.writing = []
        for effect in effects:
            self._execute(effect)
        if self.is_out:
            self.is_out = False
            self._queue.append(OutageEnded())
        self._is_busy = False
        if self._queue:
            self._begin_turn()
        else:
            self._set_timer()

    def _execute(self, effect: fx.Effect) -> None:
        match effect:
            case fx.AcknowledgeFailure():
                self._answers.pop(effect.request_id)(effect.is_kept)
            case fx.RefuseRequest():
                self._answers.pop(effect.request_id)(None)
            case fx.ReadRun():
                state = fold(round_trip(self._machine.disk)).get(effect.run_id)
                self._queue.append(RunRead(run_id=effect.run_id, state=state))
            case fx.Welcome() | fx.SetPace() | fx.Direct() | fx.Instruct() | fx.Reject():
                self._machine.checker.on_sent(effect)
                session = self.sessions.get(effect.session_id)
                if session is not None:
                    session.put(effect)
            case _:
                pass

    def _set_timer(self) -> None:
        due = self.registry.next_deadline()
        if due is None or due == self._timer:
            return
        self._timer = due
        self.clock.at(due, self.actor, lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if self._timer == due:
            self._timer = None
            self._begin_turn()


class HeadMachine:
    """The machine of the coordinator: its disk, and the life it has now, if any."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        checker: Checker,
        *,
        policy: RegistryPolicy,
        make_registry: Callable[[RegistryPolicy], Registry],
    ) -> None:
        self.clock, self.network, self.checker = clock, network, checker
        self.policy = policy
        self.make_registry = make_registry
        self.disk: list[Entry] = []
        self.life: HeadLife | None = None
        self.slow_disk_until = 0.0
        self.full_until = 0.0
        self.is_break_due = False
        self._lives = 0
        self._stalls = 0
        self._random = clock.random("head machine")

    def write_s(self, random: Any) -> float:
        """Return how long the disk takes."""
        if self.clock.now < self.slow_disk_until:
            return float(random.uniform(0.0, 3.0))
        return float(random.uniform(0.0001, 0.004))

    def commit(self, entries: list[Entry]) -> None:
        """Have records on the disk."""
        self.disk += entries
        for _, record in round_trip(entries):
            self.checker.on_journaled(record)

    def start(self) -> None:
        """Begin a new life from what is on the disk."""
        if self.life is not None:
            return
        if self.clock.now < self.full_until:
            self.clock.at(self.full_until, None, self.start)
            return
        self._lives += 1
        self.clock.note("head", "STARTS", f"life {self._lives}, {len(self.disk)} records")
        self.life = HeadLife(self, self._lives)
        self.life.restore()

    def crash(self, *, is_silent: bool = False) -> None:
        """End the life at once; a batch that was being written is on the disk in part."""
        life, self.life = self.life, None
        if life is None:
            return
        life.actor.is_dead = True
        kept = self._random.randint(0, len(life.writing))
        self.commit(life.writing[:kept])
        self.clock.note("head", "CRASHES", f"{kept} of {len(life.writing)} records written")
        for link in self.network.links:
            if link.life is life and not link.is_cut:
                if is_silent:
                    delay = self._random.uniform(5.0, 15.0)
                    self.clock.after(delay, None, partial(self.network.lose_silently, link))
                else:
                    link.cut("connection reset")

    def stall(self) -> None:
        """Stop the process; agents' transports notice after a while."""
        life = self.life
        if life is None or life.actor.is_stalled:
            return
        self._stalls += 1
        number = self._stalls
        self.clock.stall(life.actor)

        def notice(link: Link) -> None:
            if life.actor.is_stalled and self._stalls == number:
                link.down.inject(End("no answer to keepalive pings"))

        for link in self.network.links:
            if link.life is life and not link.is_cut:
                delay = self._random.uniform(5.0, 15.0)
                self.clock.after(delay, None, partial(notice, link))

    def resume(self) -> None:
        """Let the process go on."""
        if self.life is not None:
            self.clock.resume(self.life.actor, self._random)
