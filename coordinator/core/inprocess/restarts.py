"""Pure. In-process restart as a running round sees it: what is journaled, and who is told."""

from __future__ import annotations

from msgspec.structs import replace

from drumbeat.coordinator.core.effects import Instruct
from drumbeat.coordinator.core.failures.root_cause import exception_type
from drumbeat.coordinator.core.inprocess import records as rec
from drumbeat.coordinator.core.inprocess.iterations import Address, Iterations
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.phases.rendezvous import GiveUp, LeaderPort, Wait
from drumbeat.coordinator.core.restarts import decision as restarts
from drumbeat.coordinator.observe.failures import LOST
from drumbeat.coordinator.observe.goodput.stretches import Cause, StretchEnd
from drumbeat.inprocess import InterruptionKind


class InProcessRestarts:
    """The in-process restarts of one round. Not thread-safe; one owner calls it.

    ``give_up`` says why no iteration can follow, ``review_at`` when to call ``review`` again.
    A round whose workers do not restart in process has no ``Iterations``, at no cost.
    """

    def __init__(self, run: RunContext, current: Round, *, now: float) -> None:
        self.give_up: str | None = None
        self.review_at: float | None = None
        self._run, self._round = run, current
        self._leader_port = LeaderPort(run.state)
        self._iterations: Iterations | None = None
        # Since when an iteration is waited for, and when that is logged next.
        self._waits_since = 0.0
        self._log_at: float | None = None
        # Agents that may not know what to do in the present iteration.
        self._untold: set[str] = set()
        state = run.state.iterations
        if state is not None and state.phase is not rec.IterationPhase.NONE:
            self._begin(now)  # of an earlier life of the coordinator

    def reported(self, incarnation: str, report: rec.InprocessReport, *, now: float) -> None:
        """Take in what a participant reports of this round."""
        iterations = self._iterations or self._begin(now)
        iterations.reported(incarnation, report, now=now)

    def resumed(self, *, now: float) -> None:
        """Wait anew for a port, if one is waited for."""
        self._leader_port.resumed(now=now)

    def connected(self, incarnation: str) -> None:
        """Tell a member that has a new session what it may not have heard."""
        if self._iterations is not None:
            self._untold.add(incarnation)

    def lost(self, incarnation: str, why: str) -> bool:
        """Take in that an agent was given up, or that all of its workers exited with 0.

        Returns whether the round goes on without it.
        """
        state = self._run.state
        if self._iterations is None or not state.is_seated(incarnation):
            return False
        is_first = incarnation == next(iter(self._round.seats))
        if is_first and self._iterations.needs_first_agent and incarnation not in state.succeeded:
            return False
        self._iterations.agent_lost(incarnation, why)
        if incarnation in state.succeeded:
            return False
        return self._iterations.is_engaged or incarnation in state.excused

    def review(self, *, now: float) -> Wait | None:
        """Journal what follows, and return what is waited for then, if anything is."""
        wait = None
        while (iterations := self._iterations) is not None:
            if self._is_stuck():
                self.give_up = iterations.state.reason
                break
            decision = iterations.decide(lambda leader: self._address(leader, now), now=now)
            if decision is None or isinstance(decision, GiveUp | Wait):
                if isinstance(decision, GiveUp):
                    self.give_up = decision.reason
                else:
                    wait = decision
                break
            delay = restarts.waiting(self._run.state, now=now)
            if delay is not None and isinstance(decision, rec.IterationBegan):
                wait = delay
                break
            if isinstance(decision, rec.IterationInterrupted):
                decision = self._counted(iterations, decision, now)
            if not isinstance(decision, rec.IterationCompleted):
                self._run.close_stretch(self._stretch_end(iterations, decision, now), now=now)
            self._run.commit(decision)
            self._run.log(*rec.decision_of(decision))
            iterations.noted(decision, now=now)
            self._untold.update(self._round.seats)
            if isinstance(decision, rec.IterationBegan):
                leader = iterations.roster.host_of(iterations.state.order[0]).agent.incarnation
                self._run.members.presences[leader].master_port_spent = decision.master_port
                self._run.tell([leader])
                self._leader_port = LeaderPort(self._run.state)
        self._log_wait(wait, now)
        instants = (wait.until if wait else None, self._log_at)
        self.review_at = min((at for at in instants if at is not None), default=None)
        return wait

    def instructions(self) -> list[Instruct]:
        """Return what to tell participants, once. Linear in workers after a record."""
        if not self._untold:
            return []  # as after most events, which must not cost more in a larger run
        iterations, state, seats = self._iterations, self._run.state, self._round.seats
        untold, self._untold = (self._untold & seats.keys()) - state.given_up, set()
        effects: list[Instruct] = []
        for incarnation in sorted(untold, key=lambda i: seats[i].group_rank):
            presence = self._run.members.presences.get(incarnation)
            if iterations is None or presence is None or presence.session_id is None:
                continue
            directive = iterations.roster.directive_for(incarnation, iterations.state)
            if directive is not None:
                effects.append(Instruct(session_id=presence.session_id, directive=directive))
        return effects

    def rank_of(self, incarnation: str, local_rank: int) -> int | None:
        """Return a worker's rank now, ``None`` if it takes no part any more."""
        if self._iterations is None or not self._iterations.state.order:
            return self._round.seats[incarnation].rank_first + local_rank
        return self._iterations.roster.rank_of(incarnation, local_rank)

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in workers; for tests."""
        if self._iterations is not None:
            assert self._iterations.state is self._run.state.iterations, "of another round"
            self._iterations.check_invariants()

    def _is_stuck(self) -> bool:
        """Return whether the run is to end, for iterations bring no progress."""
        state, iterations = self._run.state, self._run.state.iterations
        is_over = iterations is not None and iterations.phase is rec.IterationPhase.INTERRUPTED
        return is_over and restarts.is_stuck(state)

    def _counted(
        self, iterations: Iterations, decision: rec.IterationInterrupted, now: float
    ) -> rec.IterationInterrupted:
        """Add what a failed iteration means for the next; a lost host or a rehearsal is none."""
        kind = None if iterations.first_fault is None else iterations.first_fault.kind
        is_running = iterations.state.phase is rec.IterationPhase.RUNNING
        is_excused = kind is InterruptionKind.HOST_LOST or self._run.state.is_rehearsed(now)
        if not is_running or is_excused:
            return decision
        cause = "" if kind is None else kind.label
        attempt = restarts.interrupted(self._run, decision.iteration, cause, now=now)
        return replace(decision, attempt=attempt)

    def _stretch_end(
        self, iterations: Iterations, decision: rec.IterationRecord, now: float
    ) -> StretchEnd | None:
        """Return what interrupts an iteration that runs."""
        fault = iterations.first_fault
        is_running = iterations.state.phase is rec.IterationPhase.RUNNING
        if fault is None or not is_running or not isinstance(decision, rec.IterationInterrupted):
            return None
        if self._run.state.is_rehearsed(now):
            return StretchEnd(cause=Cause.REHEARSED)
        kind, is_hang = fault.kind, fault.kind in restarts.HANGS
        # The same on any host.
        signature = exception_type(fault.message) or kind.label
        return StretchEnd(
            cause=Cause.HANG if is_hang else Cause.INTERRUPTED,
            host=fault.agent,
            since=self._run.members.observer.meter.marks.progress if is_hang else None,
            signature=LOST if kind is InterruptionKind.HOST_LOST else signature,
            ranks=() if fault.rank is None else (fault.rank,),
            names=(fault.agent,),
        )

    def _begin(self, now: float) -> Iterations:
        """Watch the iterations of the round. Linear in workers."""
        state = self._run.state
        assert state.iterations is not None, "a round that can't have iterations"
        lost = [i for i in self._round.seats if i in state.given_up or i in state.succeeded]
        self._iterations = Iterations(state.iterations, self._round, lost=lost, now=now)
        self._untold.update(self._round.seats)
        return self._iterations

    def _log_wait(self, wait: Wait | None, now: float) -> None:
        """Log what an iteration waits for: more rarely, the longer it takes."""
        interval_s = self._run.policy.progress_interval_s
        if wait is None:
            self._log_at = None
        elif self._log_at is None:
            self._waits_since, self._log_at = now, now + interval_s
        elif now >= self._log_at:
            self._log_at = now + max(interval_s, now - self._waits_since)
            self._run.log("iteration waiting", wait.reason)  # no decision that would be kept
            seated = self._round.seats.keys() - self._run.state.given_up
            self._run.tell(self._run.members.connected - seated)

    def _address(self, leader: str, now: float) -> Address | Wait | GiveUp:
        """Return where rank 0 listens; an address given for the round is its leader's."""
        if not (port := self._run.port_of(leader)):
            return self._leader_port.wait_for(leader, "the iteration", now=now)
        state, is_as_given = self._run.state, leader == next(iter(self._round.seats))
        address = state.members[leader].address
        return (state.spec.master_addr or address) if is_as_given else address, port
