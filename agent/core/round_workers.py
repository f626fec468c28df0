"""Pure. This host's workers of a round: which are alive, what their ends mean, what failed."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core import failure_records as records
from drumbeat.agent.core.inprocess.iterations import HostIterations
from drumbeat.agent.core.model import NO_ROUND, Beat, Failure
from drumbeat.agent.core.preflight import FINDINGS_MAX
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.model import Assignment, FaultKind, FaultOrder, GroupState, PreflightFinding

SIGTERM, SIGKILL, SIGCONT, SIGSTOP = 15, 9, 18, 19

_TRANSITIONS: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.IDLE: (GroupState.STARTING,),
    GroupState.STARTING: (GroupState.RUNNING, GroupState.FAILED, GroupState.STOPPING),
    # IDLE: it held only workers that were excused when their supervisor died.
    GroupState.RUNNING: (
        GroupState.SUCCEEDED, GroupState.FAILED, GroupState.STOPPING, GroupState.IDLE,
    ),
    GroupState.SUCCEEDED: (GroupState.STOPPING, GroupState.IDLE),
    GroupState.FAILED: (GroupState.STOPPING, GroupState.IDLE),
    GroupState.STOPPING: (GroupState.IDLE,),
}  # fmt: skip


class RoundWorkers:
    """One worker group at a time, its part in iterations and its failures. One owner calls it.

    The round counts as ours until ``leave``; ``has_failed`` stays until the next. ``workers_done``:
    those that ended well by themselves. ``is_stopping``: the supervisor is to end what is left.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.inprocess = HostIterations(config)
        self.state = GroupState.IDLE
        self.assignment: Assignment | None = None
        self.latest_round_id = self.succeeded_round_id = NO_ROUND
        self.has_failed = self.is_stopping = False
        self.workers_done = self.failures_written = 0
        self._failure: Failure | None = None
        self._named: tuple[PreflightFinding, ...] = ()  # by workers of the preflight
        self._alive: set[int] = set()
        # There may be workers, or what they left behind.
        self._has_processes = False
        self._has_good_end = self._has_left = False
        self.resumes_at: float | None = None  # when workers that a rehearsal has stopped go on
        # The group failed at its start, and no worker has ever run here; or a launcher gave it up.
        self._has_ever_run = self._is_start_impossible = self._is_preflight = False

    @property
    def workers_alive(self) -> int:
        """At least 1 while processes are being ended."""
        return max(len(self._alive), int(self.is_stopping))

    def beat(self, master_port: int) -> Beat:
        """Return the actual state of this host, which holds that port."""
        assignment, is_failed = self.assignment, self.state is GroupState.FAILED
        return Beat(
            state=self.state,
            round_id=assignment.round_id if assignment else None,
            master_port=master_port,
            failures_written=self.failures_written,
            workers_alive=self.workers_alive,
            is_start_impossible=is_failed and self._is_start_impossible,
            inprocess=self.inprocess.report if assignment else None,
            failure=self._failure if is_failed else None,
            workers_done=self.workers_done if assignment else 0,
            preflight=self._named if assignment else (),
        )

    def begin(self, assignment: Assignment) -> fx.Effect:
        """Start the workers of a round."""
        assert self.assignment is None, "a round starts while an older one is not over"
        if self._is_preflight and not assignment.is_preflight:
            self._has_ever_run = False  # the program of the run has not
        self._is_preflight, self._named = assignment.is_preflight, ()
        self.assignment, self.latest_round_id = assignment, assignment.round_id
        self.has_failed = self._has_left = self._has_good_end = False
        self.workers_done, self._failure = 0, None
        self._alive, self._has_processes = set(range(self._config.nproc_per_node)), True
        self._enter(GroupState.STARTING)
        self.inprocess.begin_round(assignment.round_id)
        return fx.StartRound(assignment=assignment)

    def started(self, event: ev.WorkersStarted) -> None:
        """Note that all workers run."""
        self._has_ever_run = True
        if self._current(event.round_id) is not None:
            if self.state is GroupState.STARTING:
                self._enter(GroupState.RUNNING)
            self.inprocess.started(event.pids)

    def start_failed(self, event: ev.WorkerStartFailed, *, now: float) -> list[fx.Effect]:
        """Note that a worker, and those after it, could not be started."""
        assignment = self._current(event.round_id)
        if assignment is None or self.state is not GroupState.STARTING:
            return []
        self._alive = {rank for rank in self._alive if rank < event.local_rank}
        self._has_ever_run = self._has_ever_run or bool(self._alive)
        self._is_start_impossible = not self._has_ever_run
        self._enter(GroupState.FAILED)
        failure = records.not_started(assignment, event, now=now)
        return [self._write(failure), *self.stop()]

    def step_taken(self, step: ev.WorkerStep, *, now: float) -> list[fx.Effect]:
        """Take in how far a worker is in an iteration."""
        fault = self.inprocess.step_taken(step, now=now)
        if fault is None or self.assignment is None:
            return []
        write = self._write(records.interrupted_by(self.assignment, fault))
        return [write, *(self.give_up() if fault.is_fatal else ())]

    def exited(self, event: ev.WorkerExited) -> list[fx.Effect]:
        """Take in a worker's end; if it is a failure, write it down and stop the others."""
        assignment = self._current(event.round_id)
        if assignment is None or event.local_rank not in self._alive:
            return []
        # The end of one that did something to an iteration is neither good nor bad for the group.
        fault = self.inprocess.exited(event)
        self._named = (*self._named, *event.preflight)[:FINDINGS_MAX]
        self._alive.discard(event.local_rank)
        if self.state is GroupState.STARTING:
            self._has_ever_run = True
            self._enter(GroupState.RUNNING)
        is_good = event.exit_code == 0 and not event.is_faulty
        if fault is None:
            self._has_good_end = self._has_good_end or is_good
            if not is_good:
                self._is_start_impossible = self._is_start_impossible or event.is_final
                self._fail()
        self.workers_done += event.exit_code == 0 and not event.is_stopped
        is_asked = event.is_stopped and not event.is_faulty
        if fault is None and (is_good or (is_asked and not self.has_failed)):
            return []  # done, or ended as it was asked to, and not because of a failure here
        write = self._write(records.ended_by(assignment, event, fault))
        return [write, *(self.stop() if fault is None and not event.is_stopped else ())]

    def lost(self, event: ev.SupervisorDied, *, now: float) -> list[fx.Effect]:
        """Take in that all processes have ended with their supervisor."""
        if (assignment := self.assignment) is None:
            return []
        if self.state is GroupState.STARTING:
            self._enter(GroupState.FAILED)
        effects: list[fx.Effect] = []
        why = f"the agent's supervisor {event.ending}; its workers were killed with it"
        lost, self._has_processes = () if self.is_stopping else sorted(self._alive), False
        for local_rank in lost:
            worker = self.inprocess.workers[local_rank]
            end = ev.WorkerExited(
                round_id=assignment.round_id,
                local_rank=local_rank,
                pid=worker.pid,
                exit_code=-SIGKILL,
                is_stopped=False,
                ended_at=now,
                # What it has said itself tells more.
                error=None if worker.fault else WorkerError(message=why),
                explanation=event.explanation,
            )
            effects += self.exited(end)
        self.stopped(assignment.round_id)
        return effects

    def stopped(self, round_id: int) -> None:
        """Note that nothing of the round is alive."""
        if self._current(round_id) is not None:
            self._alive, self._has_processes, self.is_stopping = set(), False, False
            self._release()

    def signal(self, signum: int) -> list[fx.Effect]:
        """Hand a signal on. Workers that are being stopped have heard what they need."""
        if self.assignment is None or not self._alive or self.is_stopping:
            why = f"signal {signum} came while no workers run, so none gets it"
            return [fx.Tell(what="signal dropped", why=why)]
        round_id, why = self.assignment.round_id, f"signal {signum} goes to the workers"
        signal = fx.SignalWorkers(round_id=round_id, signum=signum)
        return [signal, fx.Tell(what="signal forwarded", why=why, round_id=round_id)]

    def refusal(self, order: FaultOrder) -> str:
        """Return why a fault of a rehearsal can't be injected; empty if it can."""
        if self._current(order.round_id) is None or self.state is not GroupState.RUNNING:
            return f"no workers of round {order.round_id} run here"
        if order.kind is FaultKind.OTHER:
            return "this agent does not know such a fault"
        if order.kind is FaultKind.WORKER and order.local_rank not in self._alive:
            return f"worker {order.local_rank} of this host has ended"
        return ""

    def inject(self, order: FaultOrder, *, now: float) -> list[fx.Effect]:
        """Kill one worker, or stop all of them for a while."""
        if order.kind is FaultKind.WORKER:
            return [self._signal(SIGKILL, local_rank=order.local_rank)]
        self.resumes_at = now + order.pause_s
        return [self._signal(SIGSTOP)]

    def resume(self, *, now: float = inf) -> list[fx.Effect]:
        """Let workers that a rehearsal has stopped go on, if it is time."""
        if self.resumes_at is None or now < self.resumes_at:
            return []
        self.resumes_at = None
        return [self._signal(SIGCONT)] if self.assignment is not None else []

    def _signal(self, signum: int, **whom: int) -> fx.Effect:
        assert self.assignment is not None, "a signal for no workers"
        round_id = self.assignment.round_id
        return fx.SignalWorkers(round_id=round_id, signum=signum, is_for_group=True, **whom)

    def conclude(self) -> None:
        """Succeed if all workers have ended, and not all of them were excused."""
        if self.inprocess.is_on or self._alive or not self._has_good_end:
            return
        if self.state is GroupState.RUNNING and self.assignment is not None:
            self._enter(GroupState.SUCCEEDED)
            self.succeeded_round_id = self.assignment.round_id

    def give_up(self) -> list[fx.Effect]:
        """Fail although no worker has ended badly, and stop them."""
        self._fail()
        return self.stop()

    def stop(self, signum: int = SIGTERM) -> list[fx.Effect]:
        """Stop what is left of the group, unless that was asked for already."""
        if self.assignment is None or not self._has_processes or self.is_stopping:
            return []
        self.is_stopping = True
        self.inprocess.stopping()
        round_id, timeout_s = self.assignment.round_id, self._config.shutdown_timeout
        stop = fx.StopWorkers(round_id=round_id, signum=signum, timeout_s=timeout_s)
        return [*self.resume(), stop]

    def leave(self) -> None:
        """Give the round up: it is over as soon as nothing of it is alive."""
        if not self._has_left:
            self._has_left = True
            if self._has_processes:
                self._enter(GroupState.STOPPING)
        self._release()

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        assert (self.assignment is None) == (self.state is GroupState.IDLE), self.state
        assert self.assignment is not None or not self._has_processes, "processes of no round"
        assert self._has_processes or not (self._alive or self.is_stopping), "no processes"
        self.inprocess.check_invariants()

    def _current(self, round_id: int) -> Assignment | None:
        current = self.assignment
        return current if current is not None and current.round_id == round_id else None

    def _release(self) -> None:
        if self._has_left and not self._has_processes and self.assignment is not None:
            self.assignment = self.resumes_at = None
            self._enter(GroupState.IDLE)

    def _fail(self) -> None:
        """Fail, unless it has failed, succeeded or is stopping already."""
        if self.state is GroupState.RUNNING:
            self._enter(GroupState.FAILED)

    def _enter(self, state: GroupState) -> None:
        assert state in _TRANSITIONS[self.state], f"{self.state} can't become {state}"
        self.state = state
        self.has_failed = self.has_failed or state is GroupState.FAILED

    def _write(self, failure: Failure) -> fx.Effect:
        self.failures_written += 1
        failure = replace(failure, sequence=self.failures_written)
        first, is_at_fault = self._failure, not (failure.is_stopped_by_agent or failure.is_survived)
        if is_at_fault and (first is None or failure.happened_at < first.happened_at):
            self._failure = failure
        return fx.WriteFailure(failure=failure)
