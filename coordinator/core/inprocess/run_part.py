"""Pure. The restarts in process of the round that runs: what is to be journaled and told.

Around ``Iterations``, which decides, this knows whose agents are members, which of
them holds a free port, and who has been told what. A round whose workers do not
restart in process never has one: nothing here costs it anything.
"""

from __future__ import annotations

from coordinator.core.effects import Instruct
from coordinator.core.inprocess.history import hosts_of
from coordinator.core.inprocess.iterations import Address, Iterations
from coordinator.core.inprocess.model import InprocessReport
from coordinator.core.inprocess.records import IterationBegan, IterationPhase, IterationRecord
from coordinator.core.membership.leases import Membership
from coordinator.core.phases.leader import LeaderPort
from coordinator.core.phases.rendezvous import GiveUp, Wait
from coordinator.core.run.publisher import Publisher
from coordinator.core.run.state import Phase, RunState


class Iterating:
    """The in-process part of one run. Not thread-safe; one owner calls it.

    The owner calls ``next_record`` until it returns ``None``; each record it commits
    and hands to ``noted``. ``wait`` and ``give_up`` then say what it has come to.
    ``is_watching``: workers of the round that runs restart in process.
    """

    def __init__(
        self,
        state: RunState,
        members: Membership,
        publisher: Publisher,
        *,
        progress_interval_s: float,
        now: float,
    ) -> None:
        self.is_watching = False
        self.wait: Wait | None = None
        self.give_up: str | None = None
        self._state = state
        self._members = members
        self._leader_port = LeaderPort(state, members)
        self._publisher = publisher
        self._progress_interval_s = progress_interval_s
        self._iterations: Iterations | None = None
        # Since when it waits, and when people are told of it next.
        self._waits_since = 0.0
        self._progress_at: float | None = None
        # Who may not know what to do in the present iteration.
        self._untold: set[str] = set()
        self._is_for_all = False
        if state.iterations is not None and state.iterations.phase is not IterationPhase.NONE:
            self._begin(now)  # of an earlier life of the coordinator

    # What happens.

    def reported(self, incarnation: str, report: InprocessReport, *, now: float) -> None:
        """Take in what a participant reports of the round that runs."""
        iterations = self._iterations or self._begin(now)
        iterations.reported(incarnation, report, now=now)

    def connected(self, incarnation: str) -> None:
        """Tell a member that has a new session what it may not have heard."""
        if self._iterations is not None:
            self._untold.add(incarnation)

    def finished(self, incarnation: str) -> None:
        """Take in that all workers of a participant exited with 0: they enter no more."""
        if self._iterations is not None:
            self._iterations.agent_lost(incarnation, "its workers have ended")

    def lost(self, incarnation: str, why: str) -> bool:
        """Take in that a member was given up; return whether the round goes on without it."""
        state = self._state
        if self._iterations is None or not state.is_seated(incarnation):
            return False
        self._iterations.agent_lost(incarnation, why)
        if incarnation in state.succeeded:
            return False
        return self._iterations.is_engaged or incarnation in state.excused

    def _begin(self, now: float) -> Iterations:
        """Watch the iterations of the round. Linear in workers."""
        state = self._state
        assert state.round is not None, "an iteration without a round"
        assert state.iterations is not None, "a round that can't have iterations"
        lost = [i for i in state.round.seats if i in state.given_up or i in state.succeeded]
        self._iterations = Iterations(state.iterations, state.round, lost=lost, now=now)
        self._is_for_all = self.is_watching = True
        return self._iterations

    # What follows.

    def next_record(self, *, now: float) -> IterationRecord | None:
        """Return what is to be journaled next, ``None`` if nothing follows yet."""
        self.wait = None
        if self._iterations is None:
            return None
        match self._iterations.decide(lambda leader: self._address(leader, now), now=now):
            case GiveUp(reason=reason):
                self.give_up = reason
            case Wait() as wait:
                self.wait = wait
            case record:
                return record
        return None

    def noted(self, record: IterationRecord, *, now: float) -> None:
        """Follow a record that has just been folded into the state of the run."""
        iterations, current = self._iterations, self._state.round
        assert iterations is not None, "a record of iterations that nobody watches"
        assert current is not None, "an iteration without a round"
        iterations.noted(record, now=now)
        self._is_for_all = True
        if isinstance(record, IterationBegan):
            leader = next(iter(hosts_of(iterations.state.order[:1], current)))
            self._members.presences[leader].master_port_spent = record.master_port
            self._publisher.one(leader)
            self._leader_port = LeaderPort(self._state, self._members)

    def progress(self, *, now: float) -> str | None:
        """Return what it waits for if people are to be told now: rarer, the longer it takes."""
        if self.wait is None:
            self._progress_at = None
        elif self._progress_at is None:
            self._waits_since, self._progress_at = now, now + self._progress_interval_s
        elif now >= self._progress_at:
            self._progress_at = now + max(self._progress_interval_s, now - self._waits_since)
            return self.wait.reason
        return None

    def next_deadline(self) -> float | None:
        """Return when to look again if nothing happens; ``None``: only after an event."""
        instants = (self.wait.until if self.wait else None, self._progress_at)
        return min((at for at in instants if at is not None), default=None)

    def effects(self) -> list[Instruct]:
        """Return what to tell participants, and begin anew. Linear in workers after a record."""
        if not self._is_for_all and not self._untold:
            return []
        state, iterations = self._state, self._iterations
        is_running = state.phase is Phase.RUNNING and state.round is not None
        if iterations is None or not is_running or state.round is None:
            return []
        whom = state.round.seats if self._is_for_all else sorted(self._untold)
        self._untold, self._is_for_all = set(), False
        effects: list[Instruct] = []
        for incarnation in whom:
            presence = self._members.presences.get(incarnation)
            if presence is None or presence.session_id is None or incarnation in state.given_up:
                continue
            directive = iterations.directive_for(incarnation)
            if directive is not None:
                effects.append(Instruct(session_id=presence.session_id, directive=directive))
        return effects

    def rank_of(self, incarnation: str, local_rank: int) -> int | None:
        """Return a worker's rank now, ``None`` if it takes no part any more."""
        iterations, current = self._iterations, self._state.round
        if iterations is None or not iterations.state.order:
            return current.seats[incarnation].rank_first + local_rank if current else None
        return iterations.rank_of(incarnation, local_rank)

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in workers; for tests."""
        if self._iterations is not None:
            assert self._iterations.state is self._state.iterations, "iterations of another round"
            self._iterations.check_invariants()

    def _address(self, leader: str, now: float) -> Address | Wait | GiveUp:
        """Return where rank 0 listens; an address given for the round is its leader's."""
        port = self._leader_port.port_for(leader, what="the iteration", now=now)
        if not isinstance(port, int):
            return port
        state, address = self._state, self._state.members[leader].address
        is_as_given = state.round is not None and leader == state.round.leader
        return ((state.spec.master_addr or address) if is_as_given else address), port
