"""A candidacy in virtual time, as ``drumbeat.coordinator.cluster.election`` runs it."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from drumbeat.coordinator.cluster import model as do
from drumbeat.coordinator.cluster import transactions
from drumbeat.coordinator.cluster.candidacy import Candidacy
from drumbeat.coordinator.cluster.election import answer
from drumbeat.coordinator.cluster.model import EtcdCall, Leader, Member
from drumbeat.coordinator.errors import CommandFailed, NotLeader
from tests.simulation.failover.etcd import KEYS, Watch, drive

if TYPE_CHECKING:
    from drumbeat.coordinator.journal.etcd.model import Changed, KeyValue
    from tests.simulation.failover.process import Process

# Two clocks of one instant differ by less.
ROUNDING_S = 1e-6


class Candidate:
    """What a process believes of who leads, and what it asks of etcd."""

    def __init__(self, process: Process, ttl_s: float) -> None:
        self.process, self.client = process, process.client
        self.member = Member(process.actor.name, process.machine.address)
        self.core = Candidacy(self.member, ttl_s=ttl_s)
        self._ttl_s = ttl_s
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
        if not isinstance(effect, do.Ask) or effect.call is not EtcdCall.KEEP_ALIVE:
            self._clock.note(process.actor.name, "  ->", effect)
        match effect:
            case do.Ask():
                self._ask(effect)
            case do.Lead(term):
                process.lead(term)
            case do.StopLeading(leader, reason):
                process.stop(NotLeader("" if leader is None else leader.address, reason))
            case do.RefuseStepDown():
                process.stay()
            case do.LeaderChanged():
                process.serve()

    # As in the election.

    def _ask(self, request: do.Ask) -> None:
        def answered(outcome: do.Event | CommandFailed) -> None:
            if isinstance(outcome, CommandFailed):
                outcome = do.EtcdCallFailed(request.call, request.lease_id, str(outcome))
            self.take(outcome)

        ttl_s, clock = self._ttl_s, lambda: self._machine.now
        drive(answer(request, self.client, KEYS, self.member, ttl_s=ttl_s, clock=clock), answered)

    def _read(self) -> None:
        """Read who is there, and watch; again whenever that breaks."""
        where = transactions.range_of(KEYS)

        def again() -> None:
            self._clock.after(self._random.uniform(0.0, 1.0), self.process.actor, self._read)

        def take_pairs(outcome: Any) -> None:
            if isinstance(outcome, CommandFailed):
                again()
                return
            self._pairs = {pair.key: pair for pair in outcome.pairs}
            self._see(outcome.revision)
            Watch(self.client, where, outcome.revision, changed=self._on_changed, broken=again)

        drive(self.client.read(*where), take_pairs)

    def _on_changed(self, changed: Changed) -> None:
        for key in changed.deleted:
            self._pairs.pop(key, None)
        self._pairs |= {pair.key: pair for pair in changed.put}
        self._see(changed.revision)

    def _see(self, revision: int) -> None:
        leader, members = transactions.cluster(self._pairs.values(), KEYS)
        self.take(do.ClusterSeen(leader, members, revision))
