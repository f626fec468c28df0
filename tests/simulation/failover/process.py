"""One of several coordinators: lives of its process, and in each the terms that it leads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from drumbeat.coordinator.cluster import model as do
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.errors import CommandFailed, JournalOutage, LostLeadership, NotLeader
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.stored import Host
from tests.simulation.clock import Actor
from tests.simulation.failover.candidate import Candidate
from tests.simulation.failover.etcd import KEYS, EtcdClient, drive
from tests.simulation.machines.coordinator import Life, Machine, Session
from tests.simulation.machines.disk import RECORDS_PER_SNAPSHOT
from tests.simulation.machines.network import End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drumbeat.coordinator.cluster.model import Leader
    from drumbeat.coordinator.core.events import SessionOpened
    from drumbeat.coordinator.journal.etcd.model import Transaction, TransactionOutcome
    from tests.simulation.clock import Clock
    from tests.simulation.failover.coordinators import ElectedCoordinators
    from tests.simulation.machines.network import Link


def _ignore() -> None:
    pass


class TermLife(Life["Coordinator"]):
    """The core in one term, with its journal in etcd."""

    def __init__(self, process: Process, term: int) -> None:
        self.process = process
        client = process.client.of_term(self._on_commit)
        clock = process.clock
        host = Host("sim", monotonic=lambda: clock.now, wall=lambda: clock.now)
        self.journal = EtcdJournal(client, KEYS, term=term, host=host)
        name = f"{process.actor.name} term {term}"
        is_successor = process.candidate.core.is_successor
        super().__init__(process.machine, name, self.journal.runs, term, is_successor=is_successor)
        client.actor = self.actor  # what ends with the term hears no answer
        self.is_serving = False
        self.is_leaving = False
        self._is_over = False
        self._is_writing = False
        self._settled: Callable[[], None] = _ignore  # by who waits for the end of a write
        self._waiting: Sequence[fx.Effect] | None = None  # to be written if it leads on

    def begin(self) -> None:
        """Take the journal over."""
        drive(self.journal.load(), self._loaded)

    def end(self, error: NotLeader) -> None:
        """End with the term; what is being written may be durable, and is not told."""
        self.clock.note(self.actor.name, "ENDS", error)
        self._is_over = True
        self.turns.stop(error)
        self.actor.is_dead = True

    def close(self, opened: SessionOpened) -> None:
        """Take in that a session ended."""
        if not self._is_over:
            super().close(opened)

    def leave(self, is_settled: Callable[[], None]) -> None:
        """Write nothing any more; call back when nothing is being written."""
        self.is_leaving = True
        if not self._is_writing:
            is_settled()
        else:
            self._settled = is_settled

    def stay(self) -> None:
        """Write again."""
        self.is_leaving = False
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self.write(waiting)

    def write(self, effects: Sequence[fx.Effect]) -> None:
        """Put it into etcd, unless there is nothing to be kept."""
        if not any(isinstance(effect, fx.Kept) for effect in effects):
            self.tell(effects)
        elif self.is_leaving:
            self._waiting = effects
        else:
            self._is_writing = True
            drive(self.journal.write(effects, now=self.clock.now), partial(self._wrote, effects))

    def _wrote(self, effects: Sequence[fx.Effect], outcome: CommandFailed | None) -> None:
        if self.actor.is_dead:
            return
        self._is_writing = False
        match outcome:
            case None:
                self.machine.world.watcher.on_readers(self)
                self.tell(effects)
            case JournalOutage():
                self.turns.outage = str(outcome)
                self.after(self._random.uniform(0.05, 2.0), partial(self.write, effects))
            case LostLeadership():
                self.process.candidate.take(do.WriteRefused(self.term))
            case _:
                raise outcome
        if self.is_leaving:
            settled, self._settled = self._settled, _ignore
            settled()

    def _loaded(self, outcome: float | CommandFailed) -> None:
        if self.actor.is_dead:
            return
        match outcome:
            case JournalOutage():
                self.after(self._random.uniform(0.05, 2.0), self.begin)
            case LostLeadership():
                self.process.candidate.take(do.WriteRefused(self.term))
            case CommandFailed():
                raise outcome
            case _:
                self._serve()

    def _serve(self) -> None:
        self.runs = self.journal.runs
        self.runs.records_per_snapshot = RECORDS_PER_SNAPSHOT
        self.machine.world.watcher.on_taken_over(self)
        self.is_serving = True
        self.restore(self.journal.drains.values())
        self.process.serve()

    def _on_commit(self, asked: Transaction, outcome: TransactionOutcome) -> None:
        self.machine.world.watcher.on_commit(self, asked, outcome)


class Reception:
    """A stream from its first message until it is served, or told who leads."""

    def __init__(self, process: Process, link: Link, lost_term: int) -> None:
        self.lost_term = lost_term
        self.is_over = False
        self._process, self._link = process, link
        self._said: list[Any] = []
        self._session: Session | None = None
        link.up.into(process.actor, self._on_up)
        process.clock.after(process.candidate.core.ttl_s + 1.0, process.actor, self._on_timeout)

    def _on_up(self, message: Any) -> None:
        if self._session is not None:
            self._session.on_up(message)
            return
        if self.is_over:
            return
        if isinstance(message, End):
            self._end(message)
            return
        self._said.append(message)
        self.consider()

    def consider(self) -> None:
        """Serve it, or say who leads, if it has said anything and one is known."""
        process = self._process
        if self.is_over or not self._said:
            return
        if process.life is not None and process.life.is_serving:
            self.is_over = True
            self._session = Session(process.life, self._link, f"s{self._link.name}")
            for message in self._said:
                self._session.on_up(message)
        elif self._other is not None and self._other.term > self.lost_term:
            self._refuse()

    def _on_timeout(self) -> None:
        if not self.is_over:
            self._refuse()

    @property
    def _other(self) -> Leader | None:
        """Who else leads, as far as is known."""
        leader, member = self._process.candidate.leader, self._process.candidate.member
        return leader if leader is not None and leader.member != member else None

    def _refuse(self) -> None:
        address = "" if self._other is None else self._other.address
        error = NotLeader(address, self._process.candidate.core.reason)
        self._end(End(str(error), error.refusal, address))

    def _end(self, end: End) -> None:
        self.is_over = True
        self._link.end_down(end, is_lossy=False)


class Process:
    """One life of a coordinator's process, in which terms come and go."""

    def __init__(self, machine: Coordinator) -> None:
        self.machine = machine
        self.clock: Clock = machine.clock
        self.actor: Actor = Actor(f"{machine.name}.{machine.lives}")
        self.client: EtcdClient = EtcdClient(machine.world.etcd, self.actor, machine.name)
        self.client.on_send = partial(machine.spring, "send")
        self.client.on_answer = partial(machine.spring, "answer")
        self.candidate: Candidate = Candidate(self, machine.ttl_s)
        self.life: TermLife | None = None
        self._receptions: list[Reception] = []

    def open(self, link: Link, lost_term: int = 0) -> None:
        """Take a new stream; the agent's transport gives up one that a stopped process has."""
        if self.actor.is_stalled:
            self.machine.give_up(link, self)
        reception = Reception(self, link, lost_term)
        self._receptions = [*(each for each in self._receptions if not each.is_over), reception]

    def serve(self) -> None:
        """See to those that are held."""
        for reception in list(self._receptions):
            reception.consider()

    def lead(self, term: int) -> None:
        """Begin a term."""
        assert self.life is None, "one term at a time"
        self.clock.note(self.actor.name, "LEADS", f"term {term}")
        self.life = TermLife(self, term)
        self.life.begin()

    def stop(self, error: NotLeader) -> None:
        """End the term."""
        if self.life is not None:
            life, self.life = self.life, None
            life.end(error)

    def step_down(self) -> None:
        """Have another one lead."""
        if (life := self.life) is not None and life.is_serving and not life.is_leaving:
            self.clock.note(self.actor.name, "STEPS DOWN")
            life.leave(lambda: self.candidate.take(do.StepDownAsked("asked to")))

    def stay(self) -> None:
        """Lead on, for no other one could."""
        if self.life is not None and self.life.is_leaving:
            self.life.stay()

    @property
    def actors(self) -> list[Actor]:
        """All that is of the process."""
        return [self.actor, *([self.life.actor] if self.life is not None else [])]


class Coordinator(Machine[Process]):
    """The machine of one coordinator."""

    world: ElectedCoordinators

    def __init__(self, world: ElectedCoordinators, name: str, ttl_s: float) -> None:
        super().__init__(world, name)
        self.ttl_s = ttl_s
        self.lag_s = 0.0  # for how long its clock has stood still
        self._suspended_at: float | None = None
        # What is to happen at a request of the leader that is about to leave, or an answer that
        # has come; and how many of them pass before.
        self._traps: dict[str, tuple[int, Callable[[], None]]] = {}

    @property
    def now(self) -> float:
        """What its monotonic clock says."""
        return self.clock.now - self.lag_s

    @property
    def is_excused(self) -> bool:
        """Whether it cannot know how late it is: it stands still, or its clock did."""
        return self.lag_s > 0.0 or (self.process is not None and self.process.actor.is_stalled)

    @property
    def is_leading(self) -> bool:
        """Whether it believes so."""
        return self.process is not None and self.process.life is not None

    @property
    def term(self) -> int:
        """That it believes to lead."""
        return self.process.life.term if self.process and self.process.life else 0

    def set_trap(self, where: str, calls: int, act: Callable[[], None]) -> None:
        """Let something happen after so many calls of a leader."""
        self._traps[where] = calls, act

    def disarm(self) -> None:
        """Let nothing happen any more."""
        self._traps.clear()
        self.is_break_due = False

    def spring(self, where: str) -> None:
        """Spring a trap that is set there."""
        if not self.is_leading or where not in self._traps:
            return
        calls, act = self._traps[where]
        self._traps[where] = calls - 1, act
        if calls == 0:
            del self._traps[where]
            act()

    def begin(self) -> None:
        """Take part in the election."""
        self.process = Process(self)
        self.process.candidate.begin()

    def stall(self, *, is_suspended: bool = False) -> None:
        """Stop the process, or all of its machine, and with it its clock."""
        if self.process is not None and not self.process.actor.is_stalled:
            self._suspended_at = self.clock.now if is_suspended else None
            super().stall()

    def resume(self) -> None:
        """Let the process go on."""
        is_stalled = self.process is not None and self.process.actor.is_stalled
        if self._suspended_at is not None and is_stalled:
            self.lag_s += self.clock.now - self._suspended_at
            self._suspended_at = None
        super().resume()
