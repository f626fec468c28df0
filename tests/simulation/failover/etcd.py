"""Etcd in virtual time: its state, the ways to it and back, and what happens on them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from drumbeat.coordinator.errors import CommandFailed, JournalOutage
from drumbeat.coordinator.journal.keys import Keys
from tests.support.etcd_state import EXPIRY_LAG_MAX_S, Compacted, EtcdState, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from drumbeat.coordinator.journal.etcd.model import (
        Changed,
        Lease,
        RangeReading,
        Transaction,
        TransactionOutcome,
    )
    from tests.simulation.clock import Actor, Clock

T = TypeVar("T")

KEYS = Keys("sim")

# After this long without an answer a client gives a request up.
TIMEOUT_S = 1.0
# So late does a request arrive at most after its client gave it up.
LATE_MAX_S = 15.0
# So late is a watch at most that still hears of everything.
LAG_MAX_S = 5.0
# A watch that hears nothing is found to be broken.
BROKEN_MIN_S, BROKEN_MAX_S = 2.0, 6.0


class Call(Generic[T]):
    """An answer that a coroutine waits for."""

    def __init__(self) -> None:
        self._outcome: list[T | CommandFailed] = []
        self._go_on: Callable[[], None] = lambda: None

    def __await__(self) -> Generator[Call[T], None, T]:
        if not self._outcome:
            yield self
        (outcome,) = self._outcome
        if isinstance(outcome, CommandFailed):
            raise outcome
        return outcome

    def then(self, go_on: Callable[[], None]) -> None:
        """Do this when the answer is there."""
        self._go_on = go_on

    def settle(self, outcome: T | CommandFailed) -> None:
        """Answer; what comes after the first answer is dropped."""
        if not self._outcome:
            self._outcome.append(outcome)
            self._go_on()


def drive(
    coroutine: Coroutine[Call[Any], None, T], done: Callable[[T | CommandFailed], None]
) -> None:
    """Run what waits for calls alone; ``done`` hears what came of it."""

    def step() -> None:
        try:
            call = coroutine.send(None)
        except StopIteration as end:
            done(end.value)
        except CommandFailed as error:
            done(error)
        else:
            call.then(step)

    step()


class EtcdService:
    """The cluster of etcd, as one: its members agree, or nothing is answered."""

    def __init__(self, clock: Clock, *, sloppiness: float) -> None:
        self.clock = clock
        self.state = EtcdState()
        self.sloppiness = sloppiness  # how likely a request, or its answer, goes astray
        self.slow_until = 0.0
        self.has_majority = True
        self.watches: list[Watch] = []
        self.on_expired: Callable[[RangeReading], None] = lambda _before: None
        self._cuts: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._told = 0  # what revision watches were told of
        self._looks_at: float | None = None  # for leases that are over
        self._random = clock.random("etcd")

    def delay(self) -> float:
        """Return how long a request, or an answer, takes."""
        if self.clock.now < self.slow_until:
            return self._random.uniform(0.0, 0.4)
        return self._random.uniform(0.0002, 0.004)

    def is_astray(self) -> bool:
        """Return whether this one does not arrive."""
        return self._random.random() < self.sloppiness

    # Requests.

    def take(self, client: EtcdClient, apply: Callable[[], None]) -> None:
        """A request is on its way; ``apply`` does it, and sends the answer."""

        def arrive() -> None:
            if self.is_cut(client.name) or self.is_astray():
                return
            if self.has_majority:
                apply()
            elif self._random.random() < 0.3:
                self._waiting.append(apply)  # a member has it, and its client does not know

        self.clock.after(self.delay(), None, arrive)
        if self.is_astray():
            self.clock.after(self._random.uniform(0.0, LATE_MAX_S), None, arrive)

    def settle(self) -> None:
        """Tell watches what is news, and see when the next lease ends."""
        if self.state.revision > self._told:
            self._told = self.state.revision
            for watch in self.watches:
                lag_s = self._random.uniform(0.0, LAG_MAX_S) if self.is_astray() else 0.0
                self.clock.after(self.delay() + lag_s, None, watch.deliver)
        due = self.state.next_expiry()
        if due is not None and (self._looks_at is None or due < self._looks_at):
            self._looks_at = due
            lag_s = self._random.uniform(0.0, EXPIRY_LAG_MAX_S)
            self.clock.at(due + lag_s, None, self._expire)

    def _expire(self) -> None:
        self._looks_at = None
        if self.has_majority:
            before = self.state.read(KEYS.leader, "")
            self.state.expire(now=self.clock.now)
            self.on_expired(before)
            self.settle()

    # Faults.

    def is_cut(self, name: str) -> bool:
        """Return whether a client does not reach etcd."""
        return self._cuts.get(name, 0) > 0

    def cut(self, name: str) -> None:
        """Cut a client off, silently; this may overlap."""
        self.clock.note("etcd", "CUT OFF", name)
        self._cuts[name] = self._cuts.get(name, 0) + 1
        for watch in self.watches:
            if watch.client.name == name:
                delay = self._random.uniform(BROKEN_MIN_S, BROKEN_MAX_S)
                self.clock.after(delay, None, watch.look)

    def join(self, name: str) -> None:
        """Take that back once."""
        if self.is_cut(name):
            self._cuts[name] -= 1
            self.clock.note("etcd", "REACHED AGAIN", name)
            self._tell_all()

    def lose_majority(self) -> None:
        """Answer nothing any more."""
        self.clock.note("etcd", "LOSES ITS MAJORITY")
        self.has_majority = False

    def elect(self) -> None:
        """Have another leader among the members, and so a majority; leases begin anew."""
        self.clock.note("etcd", "ELECTS")
        self.has_majority = True
        self.state.elect(now=self.clock.now)
        waiting, self._waiting = self._waiting, []
        self._random.shuffle(waiting)
        for apply in waiting:
            apply()
        self._tell_all()

    def _tell_all(self) -> None:
        self._told = 0
        self.settle()

    def heal(self) -> None:
        """Let everything be well again."""
        self.slow_until = 0.0
        self.sloppiness = 0.0
        self._cuts.clear()
        self.elect()


class Watch:
    """A watch of one client."""

    def __init__(
        self,
        client: EtcdClient,
        where: tuple[str, str],
        after: int,
        *,
        changed: Callable[[Changed], None],
        broken: Callable[[], None],
    ) -> None:
        self.client = client
        self._where, self._after = where, after
        self._changed, self._broken = changed, broken
        client.service.watches.append(self)
        client.service.clock.after(client.service.delay(), None, self.deliver)

    def deliver(self) -> None:
        """Tell what is news."""
        service, client = self.client.service, self.client
        if self not in service.watches or not service.has_majority or service.is_cut(client.name):
            return
        try:
            changed = service.state.changes(*self._where, after=self._after)
        except Compacted:
            self._break()
            return
        if changed is not None:
            self._after = changed.revision
            service.clock.hand(client.actor, "etcd watch", partial(self._changed, changed))

    def look(self) -> None:
        """See whether anything still answers."""
        if self in self.client.service.watches and self.client.service.is_cut(self.client.name):
            self._break()

    def _break(self) -> None:
        self.client.service.watches.remove(self)
        self.client.service.clock.hand(self.client.actor, "etcd watch", self._broken)


class EtcdClient:
    """An ``Etcd`` of one process, for coroutines that ``drive`` runs.

    ``on_send`` and
    ``on_answer`` are called where a fault may strike: just before a request leaves, and when its
    answer has come. ``on_commit`` is called when etcd has done a transaction.
    """

    def __init__(self, service: EtcdService, actor: Actor, name: str) -> None:
        self.service, self.actor, self.name = service, actor, name
        self.on_send: Callable[[], None] = lambda: None
        self.on_answer: Callable[[], None] = lambda: None
        self.on_commit: Callable[[Transaction, TransactionOutcome], None] = (
            lambda _asked, _outcome: None
        )

    def of_term(self, on_commit: Callable[[Transaction, TransactionOutcome], None]) -> EtcdClient:
        """Return one for what is asked within a term."""
        client = EtcdClient(self.service, self.actor, self.name)
        client.on_send, client.on_answer = self.on_send, self.on_answer
        client.on_commit = on_commit
        return client

    async def commit(self, transaction: Transaction) -> TransactionOutcome:
        """Do a transaction."""

        def act(state: EtcdState, _now: float) -> TransactionOutcome:
            outcome = state.commit(transaction)
            self.on_commit(transaction, outcome)
            return outcome

        return await self._ask(act)

    async def read(self, key: str, end: str) -> RangeReading:
        """Read a range."""
        return await self._ask(lambda state, _now: state.read(key, end))

    async def grant(self, ttl_s: float) -> Lease:
        """Begin a lease."""
        return await self._ask(lambda state, now: state.grant(ttl_s, now=now))

    async def keep_alive(self, lease_id: int) -> float:
        """Keep a lease."""
        return await self._ask(lambda state, now: state.keep_alive(lease_id, now=now))

    async def revoke(self, lease_id: int) -> None:
        """End a lease."""
        await self._ask(lambda state, _now: state.revoke(lease_id))

    async def compact(self, revision: int) -> None:
        """Forget history."""
        await self._ask(lambda state, _now: state.compact(revision))

    def watch(self, key: str, end: str, *, after: int) -> AsyncGenerator[Changed, None]:
        """Raise: simulated coordinators watch with ``Watch``, whose events the clock hands out."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is held."""

    def _ask(self, act: Callable[[EtcdState, float], T]) -> Call[T]:
        clock, service = self.service.clock, self.service
        call = Call[T]()

        def apply() -> None:
            outcome: T | CommandFailed
            try:
                outcome = act(service.state, clock.now)
            except Refused as error:
                outcome = error
            service.settle()
            if not service.is_astray():
                clock.after(service.delay(), None, partial(answer, outcome))

        def answer(outcome: T | CommandFailed) -> None:
            if not service.is_cut(self.name):
                clock.hand(self.actor, "etcd", partial(hear, outcome))

        def hear(outcome: T | CommandFailed) -> None:
            self.on_answer()
            if self.actor.is_stalled:
                clock.hand(self.actor, "etcd", partial(call.settle, outcome))
            elif not self.actor.is_dead:
                call.settle(outcome)

        def give_up() -> None:
            call.settle(JournalOutage("etcd", f"no answer within {TIMEOUT_S:g} s"))

        def send() -> None:
            service.take(self, apply)
            clock.after(TIMEOUT_S, self.actor, give_up)

        self.on_send()
        clock.after(service.delay() / 10, self.actor, send)
        return call
