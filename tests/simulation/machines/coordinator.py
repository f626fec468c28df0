"""The coordinator's side: machines, and lives of a process around the real turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached, Event, SessionOpened
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.records import RoundStarted
from drumbeat.coordinator.errors import CoordinatorError, Deposed, NotLeader
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Outbox
from drumbeat.coordinator.shell.turns import Turns
from drumbeat.coordinator.wire import session as convert
from drumbeat.coordinator.wire.failure import failure_reported
from drumbeat.model import HealthState
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import session_pb2
from drumbeat.wire.mapping import refuse
from tests.simulation.clock import Actor, Clock
from tests.simulation.machines.disk import Disk
from tests.simulation.machines.network import SILENT, End
from tests.simulation.machines.versions import newer, unknown
from tests.simulation.plan import RUN
from tests.support import breaks
from tests.support.journal import take_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from drumbeat.coordinator.core.model import KeptDrain
    from drumbeat.coordinator.core.run.state import RunState
    from drumbeat.coordinator.journal.batches import Change
    from drumbeat.coordinator.journal.journal import JournaledRuns
    from tests.simulation.checks.checker import Checker
    from tests.simulation.machines.network import Link, Network
    from tests.simulation.plan import Plan

STRANGER = "stranger"


def _end_of(error: CoordinatorError) -> End:
    leader = error.leader if isinstance(error, NotLeader) else ""
    return End(str(error), error.refusal, leader)


def _pass_over(_problem: InvalidField) -> None:
    pass


class Session:
    """The coordinator's end of one stream, as ``services.sessions`` holds it."""

    def __init__(self, life: Life[Any], link: Link, session_id: str) -> None:
        self.session_id = session_id
        self._life, self._link = life, link
        self._opened: SessionOpened | None = None
        self._outbox = Outbox()
        self._is_over = False
        self._is_flush_due = False
        self._incarnations: set[str] = set()  # that the present stream of records told of
        # Ours say nothing that can't be read; of others that is passed over.
        self._on_problem = _pass_over if link.host == STRANGER else refuse
        self._random = life.clock.random(f"{link.name} outbox")
        link.up.into(life.actor, self.on_up)
        link.records.into(life.actor, self.on_record)

    def on_up(self, message: session_pb2.AgentReport | End) -> None:
        """Take what the agent says."""
        if self._is_over:
            return
        if isinstance(message, End):
            self._close()
            return
        life, turns = self._life, self._life.turns
        try:
            if self._opened is None:
                opened = convert.session_opened(message, session_id=self.session_id)
                if message.hello.term > life.term:
                    raise Deposed(message.hello.term)
                turns.open(opened, self.put, now=life.clock.now)
                self._opened = opened
            else:
                event = convert.session_event(message, self._opened, self._on_problem)
                if event is None:
                    return
                turns.submit(event, now=life.clock.now)
        except CoordinatorError as error:
            self._end(_end_of(error))
            return

    def on_record(self, message: session_pb2.ReportFailuresRequest | End) -> None:
        """Take a failure record."""
        if isinstance(message, End):
            self._incarnations.clear()
            return
        link, record = self._link, message.record

        def answer(effect: fx.Answer) -> None:
            if isinstance(effect.result, CoordinatorError):
                link.acks.send(End("the record was refused", "UNAVAILABLE"))
                return
            is_kept = bool(effect.result)
            self._life.machine.checker.on_acknowledged(record, is_kept=is_kept)
            link.acks.send(
                session_pb2.ReportFailuresResponse(
                    incarnation=record.fence.incarnation,
                    sequence=record.sequence,
                    kept=is_kept,
                )
            )

        life = self._life
        event, incarnation = failure_reported(message, Limits(), refuse), record.fence.incarnation
        is_first, number = incarnation not in self._incarnations, life.expect(answer)
        event = replace(event, is_first=is_first, request_id=number)
        self._incarnations.add(incarnation)
        life.turns.submit(event, now=life.clock.now)

    def put(self, effect: fx.Push | fx.Reject) -> None:
        """Queue what is to be sent; an error ends the stream at once."""
        self._life.machine.checker.on_sent(effect)
        self._outbox.put(effect)
        if self._outbox.error is not None:
            self._end(_end_of(self._outbox.error))
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._life.after(self._random.uniform(0, 0.001), self._flush)

    def _close(self) -> None:
        self._end(End("the coordinator ended the session"))

    def _end(self, end: End) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._link.end_down(end, is_lossy=False)
        if self._opened is not None:
            self._life.close(self._opened)

    def _flush(self) -> None:
        self._is_flush_due = False
        while not self._is_over and (effect := self._outbox.take()) is not None:
            message = convert.directive_message(effect, run_id=RUN, term=self._life.term)
            if self._life.is_newer:
                self._link.down.send(unknown())
                message = newer(message)
            self._link.down.send(message)


class CoordinatorProcess(Protocol):
    """One life of a coordinator's process."""

    @property
    def machine(self) -> Machine[Any]:
        """Where it runs."""
        ...

    @property
    def actors(self) -> list[Actor]:
        """All that is of the process; its own first."""
        ...

    def open(self, link: Link, lost_term: int = 0) -> None:
        """Serve a new stream."""
        ...


P = TypeVar("P", bound=CoordinatorProcess)


class Machine(Generic[P]):
    """A machine of a coordinator, and the process that it runs now, if any."""

    def __init__(self, world: Coordinators[Any], name: str) -> None:
        self.world, self.name, self.address = world, name, f"{name}:1"
        self.clock, self.checker, self.policy = world.clock, world.checker, world.policy
        self.random = world.clock.random(f"machine {name}")
        """Where its faults come from."""
        self.process: P | None = None
        self.is_break_due = False
        self.lives = self.stalls = 0

    def start(self) -> None:
        """Begin a new life, if there is none."""
        if self.process is None:
            self.lives += 1
            self.clock.note(self.name, "STARTS", f"life {self.lives}")
            self.begin()

    def begin(self) -> None:
        """Make a process."""
        raise NotImplementedError

    def crash(self, *, is_silent: bool = False) -> None:
        """End the life at once."""
        process, self.process = self.process, None
        if process is None:
            return
        for actor in process.actors:
            actor.is_dead = True
        self.clock.note(self.name, "CRASHES", self.abandon(process))
        network = self.world.network
        for link in self.links_of(process):
            if is_silent:
                self.after_silence(partial(network.lose_silently, link))
            else:
                link.cut("connection reset")

    def abandon(self, _process: P) -> str:
        """See to what the process was about when it died; return a word on it."""
        return ""

    def links_of(self, _process: P) -> list[Link]:
        """Return the connections that break if the process dies now."""
        links = self.world.network.links
        return [link for link in links if link.ends[1] == self.name and not link.is_cut]

    def stall(self) -> None:
        """Stop the process; agents' transports notice after a while."""
        process = self.process
        if process is None or process.actors[0].is_stalled:
            return
        self.stalls += 1
        for actor in process.actors:
            self.clock.stall(actor)
        for link in self.links_of(process):
            self.give_up(link, process)

    def give_up(self, link: Link, process: P) -> None:
        """Have the agent's transport give up a connection to a process that stands still."""
        number = self.stalls

        def notice() -> None:
            if process.actors[0].is_stalled and self.stalls == number:
                link.down.inject(End(SILENT))

        self.after_silence(notice)

    def after_silence(self, action: Callable[[], None]) -> None:
        """Do what an agent's transport does when it has had no answer for too long."""
        delay = self.random.uniform(*self.world.network.keepalive_s)
        self.clock.after(delay, None, action)

    def resume(self) -> None:
        """Let the process go on."""
        if self.process is None:
            return
        actors, stalls = self.process.actors, self.stalls
        self.random.shuffle(actors)  # any may be the first to do what it was about to
        for actor in actors:
            if self.stalls == stalls:  # else what the first one did stops it all again
                self.clock.resume(actor, self.random)


M = TypeVar("M", bound=Machine[Any])


class Coordinators(Generic[M]):
    """All coordinators of a world, as hosts, faults and operators reach them."""

    machines: Sequence[M]

    def __init__(self, clock: Clock, network: Network, checker: Checker, policy: Policy) -> None:
        self.clock, self.network, self.checker, self.policy = clock, network, checker, policy
        self.asked = 0  # calls of the operator

    @property
    def life(self) -> Life[M] | None:
        """The core that serves, if one does."""
        raise NotImplementedError

    def at(self, address: str) -> M:
        """Return the coordinator of an address."""
        return next(machine for machine in self.machines if machine.address == address)

    def start(self) -> None:
        """Start those that do not run."""
        for machine in self.machines:
            machine.start()

    def heal(self) -> None:
        """Let them be well again: started, and running."""
        self.start()
        for machine in self.machines:
            machine.resume()


class Life(Generic[M]):
    """One life of a coordinator's core: its driver and sessions, in virtual time."""

    def __init__(
        self,
        machine: M,
        name: str,
        runs: JournaledRuns,
        term: int,
        *,
        is_successor: bool = False,
    ) -> None:
        self.clock = machine.clock
        self.actor = Actor(name)
        self.machine = machine
        policy = replace(machine.policy, is_successor=is_successor)
        self.registry = Registry(policy)
        self.runs, self.term = runs, term
        self.turns = Turns(
            self.registry,
            read_run=self._read_run,
            log=lambda _effect: None,
            wake=self.wake,
            queue_max=100_000,
            failure_taken=lambda: None,
        )
        self._random = machine.clock.random(self.actor.name)
        self.is_newer = machine.clock.random(f"version of {self.actor.name}").random() < 0.2
        self._is_busy = False
        self._timer: float | None = None
        self._requests = 0

    def restore(self, drains: Iterable[KeptDrain]) -> None:
        """Take over the journal, as it was read back."""
        handle = self.registry.handle
        self.registry.handle = partial(self._handle, handle)  # type: ignore[method-assign]
        self.registry.drains.restore(drains)
        states = [state for key in self.runs.states if (state := self.runs.copy(key)) is not None]
        self._perform(take_over(self.registry, states, now=self.clock.now))

    def _read_run(self, key: str) -> RunState | None:
        return self.runs.copy(key)

    def close(self, opened: SessionOpened) -> None:
        """Take in that a session ended."""
        self.turns.close(opened, is_revoked=False, now=self.clock.now)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in this life, later."""
        self.clock.after(delay_s, self.actor, action)

    def expect(self, answer: Callable[[fx.Answer], None]) -> int:
        """Return the id of a request whose answer goes there."""
        self._requests += 1
        self.turns.answers[self._requests] = answer
        return self._requests

    def wake(self) -> None:
        """Begin a turn soon, unless one is being taken."""
        if not self._is_busy:
            self._is_busy = True
            self.after(self._random.uniform(0, 0.001), self._turn)

    def _turn(self) -> None:
        effects = self.turns.decide(now=self.clock.now)
        if self.turns.is_idle:
            due = self.registry.next_deadline()
            assert due is None or due > self.clock.now, "a deadline that is over stays due"
        self._perform(effects)

    def _handle(self, handle: Callable[..., list[fx.Effect]], event: Event, *, now: float) -> Any:
        """Handle an event; if a fault wants it, the core raises at its end."""
        run = self.registry.runs.get(RUN)
        if not isinstance(event, DeadlineReached):
            self.clock.note(self.actor.name, "<-", event)
        if self.machine.is_break_due and run is not None:
            self.machine.is_break_due = False
            with breaks.broken_core(run):
                effects = handle(event, now=now)
        else:
            effects = handle(event, now=now)
        self.registry.check_invariants()
        for effect in effects:
            self.clock.note(self.actor.name, "  ->", effect)
            if isinstance(effect, fx.Persist) and isinstance(effect.record, RoundStarted):
                self._expect_fit(effect.record.participants)
        return effects

    def _expect_fit(self, participants: Iterable[str]) -> None:
        """A round has its minimum, and no host that is unhealthy or being checked."""
        run = self.registry.runs[RUN]
        assert len(list(participants)) >= run.state.spec.agents_min, "below the minimum"
        for incarnation in participants:
            health = run.members.presences[incarnation].beat.health
            is_fit = health is None or health.state is HealthState.HEALTHY
            assert is_fit, f"{incarnation} is seated, and {health}"

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        """Journal first; effects leave when the journal has them. It is tried until it has."""
        self._is_busy = True
        self.write(effects)

    def write(self, effects: Sequence[fx.Effect]) -> None:
        """Have the journal keep what is to be kept of these, and call ``tell`` then."""
        raise NotImplementedError

    def tell(self, effects: Sequence[fx.Effect]) -> None:
        """The journal has what is to be kept of these effects: let them leave."""
        self.turns.tell(effects)
        self._is_busy = False
        if not self.turns.is_idle:
            self.wake()
        if not self._is_busy:
            self._set_timer()

    def _set_timer(self) -> None:
        due = self.turns.next_deadline()
        if due is None or due == self._timer:
            return
        self._timer = due
        self.clock.at(due, self.actor, lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if self._timer == due:
            self._timer = None
            self.wake()


class LoneLife(Life["LoneMachine"]):
    """One life of the process of a coordinator that is alone, with its journal on a disk."""

    def __init__(self, machine: LoneMachine) -> None:
        disk = machine.world.disk
        super().__init__(machine, f"head.{machine.lives}", disk.read(), 1)
        self.writing: list[Change] = []
        self._disk: Disk = disk

    @property
    def actors(self) -> list[Actor]:
        """All that is of the process."""
        return [self.actor]

    def open(self, link: Link, _lost_term: int = 0) -> None:
        """Serve a new stream."""
        Session(self, link, f"s{link.name}")

    def write(self, effects: Sequence[fx.Effect]) -> None:
        """Put it on the disk."""
        drains = [effect for effect in effects if isinstance(effect, fx.KeepDrain)]
        changes = [*self.runs.changes(effects), *drains]
        if changes and self.clock.now < self._disk.full_until:
            self.turns.outage = "its disk is full"
            self.after(self._random.uniform(0.05, 2.0), lambda: self.write(effects))
            return
        if changes and self._disk.is_lost:
            self.clock.note(self.actor.name, "LOST LEADERSHIP")
            self.machine.crash()  # as a process does whose journal is another's now
            self.clock.after(1.0, None, self.machine.start)
            return
        self.writing = changes
        duration = self._disk.write_s(self._random) if changes else 0.0
        self.after(duration, lambda: self._written(effects))

    def _written(self, effects: Sequence[fx.Effect]) -> None:
        changes, self.writing = self.writing, []
        self.runs.take(self.machine.commit(changes))
        self.tell(effects)


class LoneMachine(Machine[LoneLife]):
    """The machine of a coordinator that is alone."""

    world: LoneCoordinator

    def __init__(self, world: LoneCoordinator) -> None:
        super().__init__(world, "head")
        self.random = world.clock.random("head machine")

    def commit(self, changes: Sequence[Change]) -> list[Change]:
        """Have changes on the disk; return them as they are read back."""
        disk = self.world.disk
        before = set(disk.drained())
        read = disk.write(changes)
        self.checker.drained = before & set(disk.drained())
        for change in read:
            if isinstance(change, fx.Persist):
                self.checker.on_journaled(change.record)
        return read

    def start(self) -> None:
        """Begin a new life from what is on the disk, once there is room on it."""
        disk = self.world.disk
        if self.process is None and self.clock.now < disk.full_until:
            self.clock.at(disk.full_until, None, self.start)
        else:
            super().start()

    def begin(self) -> None:
        """Read the journal."""
        disk = self.world.disk
        disk.is_lost = False
        life = self.process = LoneLife(self)
        shadow = self.checker.shadow
        assert life.runs.find(RUN) == shadow, "what was read back is not what was written"
        life.restore(disk.drains.values())

    def abandon(self, process: LoneLife) -> str:
        """Have a part of the batch that was being written on the disk."""
        kept = self.random.randint(0, len(process.writing))
        self.commit(process.writing[:kept])
        return f"{kept} of {len(process.writing)} changes written"

    def links_of(self, process: LoneLife) -> list[Link]:
        """Return its connections."""
        links = self.world.network.links
        return [link for link in links if link.life is process and not link.is_cut]


class LoneCoordinator(Coordinators[LoneMachine]):
    """The only coordinator of a world, and its disk."""

    def __init__(self, clock: Clock, network: Network, checker: Checker, plan: Plan) -> None:
        super().__init__(clock, network, checker, plan.policy)
        self.disk = Disk(clock)
        self.machine = LoneMachine(self)
        self.machines = [self.machine]

    @property
    def life(self) -> LoneLife | None:
        """The core of its process."""
        return self.machine.process

    def heal(self) -> None:
        """Let it be well again."""
        self.disk.slow_until = self.disk.full_until = 0.0
        self.disk.is_lost = False
        super().heal()
