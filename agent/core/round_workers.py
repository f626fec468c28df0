"""Pure. This host's workers of a round: what their ends mean, and which failures they are."""

from __future__ import annotations

from agent.core import effects as fx
from agent.core.events import SupervisorDied, WorkerExited, WorkerStartFailed
from agent.core.group_state import Group
from agent.core.inprocess.iterations import HostIterations
from agent.core.inprocess.model import WorkerStep
from agent.core.model import Assignment, Failure, GroupState
from agent.workers.failures import records

SIGTERM = 15


class RoundWorkers:
    """The worker group, its part in iterations and its failures. One owner calls it.

    ``failures_written`` counts over all rounds; ``failure`` is what made the group fail.
    """

    def __init__(self, local_world_size: int, *, shutdown_timeout_s: float) -> None:
        self.group = Group()
        self.inprocess = HostIterations(local_world_size, shutdown_timeout_s=shutdown_timeout_s)
        self.failures_written = 0
        self._failure: Failure | None = None
        self._local_world_size = local_world_size
        self._shutdown_timeout_s = shutdown_timeout_s

    @property
    def failure(self) -> Failure | None:
        """What made the group fail, if it has."""
        return self._failure if self.group.state is GroupState.FAILED else None

    def begin_round(self, assignment: Assignment) -> None:
        """Take the round's workers for starting."""
        self.group.assign(assignment, self._local_world_size)
        self._failure = None
        self.inprocess.begin_round(assignment.round_id)

    def stop(self, signum: int = SIGTERM) -> list[fx.Effect]:
        """Stop what is left of the group, unless that was asked for already."""
        if not self.group.request_stop():
            return []
        self.inprocess.stopping()
        round_id, timeout_s = self._assignment.round_id, self._shutdown_timeout_s
        return [fx.StopWorkers(round_id=round_id, signum=signum, timeout_s=timeout_s)]

    def give_up(self) -> list[fx.Effect]:
        """Fail although no worker has ended badly, and stop them."""
        self.group.give_up()
        return self.stop()

    def start_failed(self, event: WorkerStartFailed, *, now: float) -> list[fx.Effect]:
        """Note that a worker, and those after it, could not be started."""
        if not self.group.fail(event.round_id, event.local_rank):
            return []
        failure = records.not_started(self._assignment, event, self._sequence(), now=now)
        return [self._write(failure), *self.stop()]

    def step_taken(self, step: WorkerStep, *, now: float) -> list[fx.Effect]:
        """Take in how far a worker is in an iteration."""
        fault = self.inprocess.step_taken(step, now=now)
        if fault is None:
            return []
        write = self._write(records.interrupted_by(self._assignment, fault, self._sequence()))
        return [write, *(self.give_up() if fault.is_fatal else ())]

    def exited(self, event: WorkerExited) -> list[fx.Effect]:
        """Take in a worker's end; if it is a failure, write it down and stop the others."""
        is_good = event.exit_code == 0 and event.hang is None
        fault = self.inprocess.exited(event)
        if not self.group.exited(
            event.round_id, event.local_rank, is_good=is_good, is_excused=fault is not None
        ):
            return []
        self.group.workers_done += event.exit_code == 0 and not event.is_stopped
        if fault is not None:
            sequence = self._sequence()
            return [self._write(records.ended_by(self._assignment, event, sequence, fault))]
        is_asked = event.is_stopped and event.hang is None
        if is_good or (is_asked and not self.group.has_failed):
            return []  # done, or ended as it was asked to, and not because of a failure here
        write = self._write(records.ended_by(self._assignment, event, self._sequence()))
        return [write, *(() if event.is_stopped else self.stop())]

    def lost(self, event: SupervisorDied, *, now: float) -> list[fx.Effect]:
        """Take in that all workers have ended with their supervisor."""
        assignment, effects = self.group.assignment, list[fx.Effect]()
        for local_rank in self.group.lose_all(self.inprocess.is_excused):
            assert assignment is not None, "workers without a round"
            fault = self.inprocess.lost(local_rank, records.killed_with_it(event), now=now)
            sequence = self._sequence()
            failure = records.killed_with_supervisor(
                assignment, local_rank, event, sequence, fault, now=now
            )
            effects.append(self._write(failure))
        return effects

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        self.group.check_invariants()
        self.inprocess.check_invariants()

    @property
    def _assignment(self) -> Assignment:
        assert self.group.assignment is not None, "a worker of no round"
        return self.group.assignment

    def _sequence(self) -> int:
        self.failures_written += 1
        return self.failures_written

    def _write(self, failure: Failure) -> fx.Effect:
        first, is_at_fault = self._failure, not (failure.is_stopped_by_agent or failure.is_survived)
        if is_at_fault and (first is None or failure.happened_at < first.happened_at):
            self._failure = failure
        return fx.WriteFailure(failure=failure)
