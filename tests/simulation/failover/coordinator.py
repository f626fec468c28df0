"""One of several coordinators: lives of its process, and in each the terms that it leads."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.core import effects as fx
from coordinator.errors import CommandFailed, JournalOutage, LostLeadership, NotLeader
from coordinator.journal.etcd.journal import EtcdJournal, Host
from coordinator.leadership import model as do
from coordinator.leadership import requests
from coordinator.leadership.candidacy import Candidacy
from coordinator.leadership.model import Call, Leader, Member
from tests.simulation.clock import Actor
from tests.simulation.failover.etcd import KEYS, EtcdClient, Watch, drive
from tests.simulation.machines.disk import RECORDS_PER_SNAPSHOT
from tests.simulation.machines.head import Life, Session
from tests.simulation.machines.network import SILENT, End

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random

    from coordinator.core.events import SessionOpened
    from coordinator.journal.etcd.model import Changed, KeyValue, Outcome, Transaction
    from tests.simulation.failover.heads import Heads
    from tests.simulation.machines.network import Link

# Two clocks of one instant differ by less.
ROUNDING_S = 1e-6


class TermLife(Life["Coordinator"]):
    """The core in one term, with its journal in etcd."""

    def __init__(self, process: Process, term: int) -> None:
        self.process = process
        client = process.client.of_term(self._on_commit)
        clock = process.clock
        host = Host("sim", monotonic=lambda: clock.now, wall=lambda: clock.now)
        self.journal = EtcdJournal(client, KEYS, term=term, host=host)
        name = f"{process.actor.name} term {term}"
        super().__init__(process.machine, name, self.journal.runs, term)
        client.actor = self.actor  # what ends with the term hears no answer
        self.is_serving = False
        self.is_leaving = False
        self._is_over = False
        self._is_writing = False
        self._waiting: Sequence[fx.Effect] | None = None  # to be written if it leads on

    def begin(self) -> None:
        """Take the journal over."""
        drive(self.journal.load(), self._loaded)

    def end(self, error: NotLeader) -> None:
        """End with the term; what is being written may be durable, and is told to no one."""
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
                self.machine.heads.watcher.on_readers(self)
                self.tell(effects)
            case JournalOutage():
                self.turns.outage = str(outcome)
                self.after(self._random.uniform(0.05, 2.0), partial(self.write, effects))
            case LostLeadership():
                self.process.candidate.take(do.WriteRefused(self.term))
            case _:
                raise outcome
        if self.is_leaving:
            settled, self._settled = self._settled, lambda: None
            settled()

    def _settled(self) -> None:
        """Nothing waits for the end of a write."""

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
        self.machine.heads.watcher.on_taken_over(self)
        self.is_serving = True
        self.restore(self.journal.drains.values())
        self.process.serve()

    def _on_commit(self, asked: Transaction, outcome: Outcome) -> None:
        self.machine.heads.watcher.on_commit(self, asked, outcome)


class Candidate:
    """A candidacy in virtual time, as ``coordinator.leadership.election`` runs it."""

    def __init__(self, process: Process, ttl_s: float) -> None:
        self.process, self.client = process, process.client
        self.member = Member(process.actor.name, process.machine.address)
        self.core = Candidacy(self.member, ttl_s=ttl_s)
        self._clock = process.clock
        self._machine = process.machine
        self._random = process.clock.random(f"{process.actor.name} candidacy")
        self._events: deque[do.Event] = deque()
        self._is_handling = False
        self._timer: float | None = None
        self._pairs: dict[str, KeyValue] = {}

    @property
    def leader(self) -> Leader | None:
        """Who leads, as far as is known."""
        leader = self.core.leader
        is_self = leader is not None and leader.member == self.member
        return None if is_self and not self.core.is_leading(now=self._machine.now) else leader

    def begin(self) -> None:
        """Take part."""
        self._read()
        self.take(do.DeadlineReached())

    def take(self, event: do.Event) -> None:
        """Hand an event over, and carry out what follows."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        while self._events:
            effects = self.core.handle(self._events.popleft(), now=self._machine.now)
            self.core.check_invariants()
            for effect in effects:
                self._do(effect)
        self._is_handling = False
        due = self.core.next_deadline()
        if due is not None and due != self._timer:
            self._timer = due
            self._clock.at(
                due + self._machine.lag_s + ROUNDING_S,
                self.process.actor,
                partial(self._on_timer, due),
            )

    def _on_timer(self, due: float) -> None:
        if due == self._timer:
            self._timer = None
            self.take(do.DeadlineReached())

    def _do(self, effect: do.Effect) -> None:
        process = self.process
        if not isinstance(effect, do.KeepAlive):
            self._clock.note(process.actor.name, "  ->", effect)
        match effect:
            case do.Grant(ttl_s):
                self._call(Call.GRANT, 0, self._grant(ttl_s))
            case do.KeepAlive(lease_id):
                self._call(Call.KEEP_ALIVE, lease_id, self._keep_alive(lease_id))
            case do.Enrol(lease_id):
                self._call(Call.ENROL, lease_id, self._enrol(lease_id))
            case do.Campaign(lease_id):
                self._call(Call.CAMPAIGN, lease_id, self._campaign(lease_id))
            case do.Resign(lease_id, term):
                self._call(Call.RESIGN, lease_id, self._resign(lease_id, term))
            case do.Revoke(lease_id):
                self._call(Call.REVOKE, lease_id, self._revoke(lease_id))
            case do.Lead(term):
                process.lead(term)
            case do.StopLeading(leader, reason):
                process.stop(NotLeader("" if leader is None else leader.address, reason))
            case do.RefuseStepDown():
                process.stay()
            case do.Tell():
                process.serve()

    # As in the election.

    def _call(self, call: Call, lease_id: int, asked: Coroutine[Any, Any, do.Event]) -> None:
        def answered(outcome: do.Event | CommandFailed) -> None:
            if isinstance(outcome, CommandFailed):
                outcome = do.CallFailed(call, lease_id, str(outcome))
            self.take(outcome)

        drive(asked, answered)

    async def _grant(self, ttl_s: float) -> do.Event:
        asked_at = self._machine.now
        return do.LeaseGranted(await self.client.grant(ttl_s), asked_at)

    async def _enrol(self, lease_id: int) -> do.Event:
        outcome = await self.client.commit(requests.enrol(KEYS, self.member, lease_id))
        return do.Answered(Call.ENROL, lease_id, requests.found(outcome), outcome.revision)

    async def _keep_alive(self, lease_id: int) -> do.Event:
        asked_at = self._machine.now
        return do.LeaseKept(lease_id, await self.client.keep_alive(lease_id), asked_at)

    async def _campaign(self, lease_id: int) -> do.Event:
        outcome = await self.client.commit(requests.campaign(KEYS, self.member, lease_id))
        leader = requests.campaigned(outcome, self.member, lease_id)
        return do.Answered(Call.CAMPAIGN, lease_id, leader, outcome.revision)

    async def _resign(self, lease_id: int, term: int) -> do.Event:
        outcome = await self.client.commit(requests.resign(KEYS, term))
        leader = requests.found(outcome)
        return do.Answered(Call.RESIGN, lease_id, leader, outcome.revision)

    async def _revoke(self, lease_id: int) -> do.Event:
        await self.client.revoke(lease_id)
        return do.Revoked(lease_id)

    def _read(self) -> None:
        """Read who is there, and watch; again whenever that breaks."""
        where = requests.range_of(KEYS)

        def again() -> None:
            self._clock.after(self._random.uniform(0.0, 1.0), self.process.actor, self._read)

        def found(outcome: Any) -> None:
            if isinstance(outcome, CommandFailed):
                again()
                return
            self._pairs = {pair.key: pair for pair in outcome.found}
            self._see(outcome.revision)
            Watch(self.client, where, outcome.revision, changed=self._on_changed, broken=again)

        drive(self.client.read(*where), found)

    def _on_changed(self, changed: Changed) -> None:
        for key in changed.deleted:
            self._pairs.pop(key, None)
        self._pairs |= {pair.key: pair for pair in changed.put}
        self._see(changed.revision)

    def _see(self, revision: int) -> None:
        leader, members = requests.cluster(self._pairs.values(), KEYS)
        self.take(do.ClusterSeen(leader, members, revision))


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

    def __init__(self, machine: Coordinator, number: int) -> None:
        self.machine, self.clock = machine, machine.clock
        self.actor = Actor(f"{machine.name}.{number}")
        self.client = EtcdClient(machine.heads.etcd, self.actor, machine.name)
        self.client.on_send = partial(machine.spring, "send")
        self.client.on_answer = partial(machine.spring, "answer")
        self.candidate = Candidate(self, machine.ttl_s)
        self.life: TermLife | None = None
        self._receptions: list[Reception] = []

    def open(self, link: Link, lost_term: int = 0) -> None:
        """Take a new stream."""
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


class Coordinator:
    """The machine of one coordinator."""

    def __init__(self, heads: Heads, name: str, ttl_s: float) -> None:
        self.heads, self.name, self.ttl_s = heads, name, ttl_s
        self.address = f"{name}:1"
        self.clock, self.checker, self.policy = heads.clock, heads.checker, heads.policy
        self.make_registry = heads.make_registry
        self.is_break_due = False
        self.process: Process | None = None
        self.lag_s = 0.0  # for how long its clock has stood still
        self._is_suspended = False
        self._stopped_at = 0.0
        # What is to happen at a request of the leader that is about to leave, or an answer that
        # has come; and how many of them pass before.
        self._traps: dict[str, tuple[int, Callable[[], None]]] = {}
        self._lives = 0
        self._stalls = 0
        self._random = heads.clock.random(f"machine {name}")

    @property
    def random(self) -> Random:
        """Where its faults come from."""
        return self._random

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

    def start(self) -> None:
        """Begin a new life, if there is none."""
        if self.process is None:
            self._lives += 1
            self.clock.note(self.name, "STARTS", f"life {self._lives}")
            self.process = Process(self, self._lives)
            self.process.candidate.begin()

    def crash(self, *, is_silent: bool = False) -> None:
        """End the life at once."""
        process, self.process = self.process, None
        if process is None:
            return
        self.clock.note(self.name, "CRASHES")
        for actor in process.actors:
            actor.is_dead = True
        network = self.heads.network
        for link in network.links:
            if link.ends[1] == self.name and not link.is_cut:
                if is_silent:
                    delay = self._random.uniform(*network.keepalive_s)
                    self.clock.after(delay, None, partial(network.lose_silently, link))
                else:
                    link.cut("connection reset")

    def stall(self, *, is_suspended: bool = False) -> None:
        """Stop the process, or all of its machine; agents' transports notice after a while."""
        process = self.process
        if process is None or process.actor.is_stalled:
            return
        self._is_suspended, self._stopped_at = is_suspended, self.clock.now
        self._stalls += 1
        number = self._stalls
        for actor in process.actors:
            self.clock.stall(actor)

        def notice(link: Link) -> None:
            if process.actor.is_stalled and self._stalls == number:
                link.down.inject(End(SILENT))

        network = self.heads.network
        for link in network.links:
            if link.ends[1] == self.name and not link.is_cut:
                delay = self._random.uniform(*network.keepalive_s)
                self.clock.after(delay, None, partial(notice, link))

    def resume(self) -> None:
        """Let the process go on."""
        if self.process is not None:
            if self._is_suspended and self.process.actor.is_stalled:
                self._is_suspended = False
                self.lag_s += self.clock.now - self._stopped_at
            for actor in self.process.actors:
                self.clock.resume(actor, self._random)
