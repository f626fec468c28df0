"""Pure. One agent: makes its host's workers match what the coordinator wants.

The coordinator's latest word is the desired state, the supervisor's events make
the actual one. ``_reconcile`` compares the two after every event and takes one
step; what is lost or repeated on the way therefore changes nothing.
"""

from __future__ import annotations

from typing import assert_never

from agent.core import effects as fx
from agent.core.events import (
    DeadlineReached,
    DirectiveReceived,
    Event,
    GpuMemoryFree,
    InprocessDirected,
    InprocessStepTaken,
    PaceChanged,
    PortReserved,
    SessionLost,
    SessionWelcomed,
    SignalReceived,
    SignalToForward,
    SupervisorDied,
    SupervisorNotStarted,
    SuspendRequested,
    WatchdogActed,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from agent.core.group_state import Group
from agent.core.inprocess.iterations import HostIterations
from agent.core.master_ports import MasterPorts
from agent.core.model import (
    AgentPolicy,
    Assignment,
    Beat,
    DesiredState,
    Exit,
    Failure,
    GpuMemory,
    GroupState,
    Standby,
)
from agent.core.reconnect import Connection
from agent.core.supervisor_restarts import SupervisorRestarts
from agent.errors import AgentError, ProcessesStuck, RunForgotten, SupervisorLost
from agent.telemetry.waits import Situation
from agent.workers.failures.records import (
    ended_by,
    interrupted_by,
    killed_with_it,
    killed_with_supervisor,
    not_started,
)

SIGTERM = 15
EXIT_SUCCESS, EXIT_FAILED, EXIT_SIGNAL = 0, 1, 128


class AgentCore:
    """The core of an agent. Not thread-safe; one owner calls it."""

    def __init__(self, policy: AgentPolicy) -> None:
        self._policy = policy
        self._connection = Connection(
            policy.coordinator,
            join_timeout_s=policy.join_timeout_s,
            grace_s=policy.coordinator_grace_s,
        )
        self._group = Group()
        self._inprocess = HostIterations(
            policy.local_world_size, shutdown_timeout_s=policy.shutdown_timeout_s
        )
        self._ports = MasterPorts()
        self._gpu_memory = GpuMemory.FREE
        self._desired: DesiredState = Standby(reason="not heard of the coordinator yet")
        self._port_spent = 0
        self._ending: fx.Ending | None = None
        self._is_finished = False
        # Set when processes outlived SIGKILL: this host can't take part any more.
        self._stuck: AgentError | None = None
        self._failures_written = 0
        self._failure: Failure | None = None  # what made the group fail
        self._supervisor_restarts = SupervisorRestarts()
        self._beat_sent: Beat | None = None
        self._beat_at: float | None = None
        self._effects: list[fx.Effect] = []

    # The interface of every core.

    def start(self, *, now: float, master_port: int = 0) -> list[fx.Effect]:
        """Return what to do first, at ``now`` (monotonic seconds).

        ``master_port`` is a port held already, so that the first hello can name it.
        """
        self._ports.next = master_port
        if not master_port:
            self._effects.append(fx.ReservePort())
        self._connect(self._connection.begin(now=now), now)
        return self._flush(now)

    def handle(self, event: Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        if self._is_finished:
            return []
        match event:
            case (
                SessionWelcomed()
                | PaceChanged()
                | DirectiveReceived()
                | InprocessDirected()
                | SessionLost()
            ):
                if event.attempt == self._connection.attempt:
                    self._on_coordinator(event, now)
            case PortReserved():
                self._ports.next = event.port
                self._effects += self._ports.replace_spent(self._port_spent, self._desired)
            case WorkersStarted() | WorkerStartFailed() | InprocessStepTaken() | WorkerExited():
                self._on_worker(event, now)
            case WorkersStopped() | SupervisorDied() | SupervisorNotStarted() | GpuMemoryFree():
                self._on_gone(event, now)
            case SignalReceived():
                self._on_signal(event.signum)
            case SignalToForward():
                self._on_signal_to_forward(event.signum)
            case DeadlineReached():
                self._on_deadline(now)
            case WatchdogActed() | SuspendRequested():
                return []  # for people; a worker's end tells what there is to do
            case _:
                assert_never(event)
        self._reconcile(now)
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        instants = (self._connection.deadline, self._beat_at, self._inprocess.deadline)
        return min((instant for instant in instants if instant is not None), default=None)

    def situation(self) -> Situation:
        """Return where this agent stands, for what people are told."""
        group = self._group
        return Situation(
            line=self._connection.state(),
            desired=self._desired,
            group=group.state,
            workers_alive=group.workers_alive,
            is_stopping=group.is_stopping,
            is_ending=self._ending is not None,
            is_gpu_memory_awaited=self._gpu_memory is GpuMemory.AWAITED,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        self._group.check_invariants()
        self._inprocess.check_invariants()
        self._ports.check_invariants()
        assert self._beat_at is None or self._connection.is_open, "beats without a session"

    # The coordinator.

    def _on_coordinator(
        self,
        event: SessionWelcomed | PaceChanged | DirectiveReceived | InprocessDirected | SessionLost,
        now: float,
    ) -> None:
        match event:
            case SessionWelcomed():
                self._connection.welcomed(event.pace)
                self._beat_at = now + event.pace.heartbeat_interval_s
            case PaceChanged():
                self._connection.pace = event.pace
                self._beat_at = now + event.pace.heartbeat_interval_s
            case DirectiveReceived():
                self._on_directive(event)
            case InprocessDirected():
                self._effects += self._inprocess.directed(event.directive, now=now)
                if self._inprocess.has_failed:
                    self._group.give_up()
                    self._stop_group()
            case SessionLost():
                self._on_session_lost(event, now)

    def _on_directive(self, directive: DirectiveReceived) -> None:
        state = self._desired = directive.state
        self._port_spent = directive.master_port_spent
        self._effects += self._ports.replace_spent(self._port_spent, state)
        if isinstance(state, Exit):
            if state.is_released and self._ending is None:
                reason = "its workers succeeded, and it waited long enough for the others"
                self._effects.append(fx.SendGoodbye(reason=reason))
            code = EXIT_SUCCESS if state.is_success else EXIT_FAILED
            self._end(fx.Finish(exit_code=code, report=state.report))

    def _on_session_lost(self, event: SessionLost, now: float) -> None:
        self._beat_at = self._beat_sent = None
        if event.refusal is not None:
            self._end_with(event.refusal)
        if self._ending is not None:
            self._connection.end()  # there is nothing to come back for
            return
        if event.is_stale:
            # Others may hold our ranks already.
            self._desired, self._port_spent = Standby(reason=event.reason), 0
            self._effects.append(fx.Tell(what="fenced", why=event.reason))
        elif self._connection.is_open:
            self._effects.append(fx.Tell(what="coordinator lost", why=event.reason))
        self._connect(self._connection.lost(event.reason, now=now), now)

    def _connect(self, delay_max_s: float, now: float) -> None:
        if self._ending is None and not self._is_over(now):
            attempt = self._connection.attempt
            self._effects.append(
                fx.OpenSession(attempt=attempt, delay_max_s=delay_max_s, beat=self._beat())
            )

    def _on_deadline(self, now: float) -> None:
        if self._beat_at is not None and now >= self._beat_at:
            self._beat_sent = None  # so that `_flush` sends one
        self._is_over(now)

    def _is_over(self, now: float) -> bool:
        """Give up if the coordinator was away for too long; return whether it was."""
        error = self._connection.given_up(now=now)
        if error is not None:
            self._end_with(error)
            self._connection.end()
        return error is not None

    # Workers.

    def _on_worker(
        self,
        event: WorkersStarted | WorkerStartFailed | InprocessStepTaken | WorkerExited,
        now: float,
    ) -> None:
        match event:
            case WorkersStarted():
                self._group.started(event.round_id)
                self._inprocess.started(event.round_id, event.pids)
                self._supervisor_restarts.reset()
            case WorkerStartFailed():
                self._on_start_failed(event, now)
            case InprocessStepTaken():
                self._on_step(event, now)
            case WorkerExited():
                self._on_worker_exited(event)

    def _on_start_failed(self, event: WorkerStartFailed, now: float) -> None:
        if self._group.fail(event.round_id, event.local_rank):
            self._write(not_started(self._assigned(), event, self._next_sequence(), now=now))
            self._stop_group()

    def _on_step(self, event: InprocessStepTaken, now: float) -> None:
        fault = self._inprocess.step_taken(event, now=now)
        if fault is None:
            return
        self._write(interrupted_by(self._assigned(), fault, self._next_sequence()))
        if fault.is_fatal:
            self._group.give_up()
            self._stop_group()

    def _on_worker_exited(self, event: WorkerExited) -> None:
        is_good = event.exit_code == 0 and event.hang is None
        fault = self._inprocess.exited(event)
        is_excused = fault is not None
        if not self._group.exited(
            event.round_id, event.local_rank, is_good=is_good, is_excused=is_excused
        ):
            return
        self._group.workers_done += event.exit_code == 0 and not event.is_stopped
        if fault is not None:
            self._write(ended_by(self._assigned(), event, self._next_sequence(), fault))
            return
        is_asked = event.is_stopped and event.hang is None
        if is_good or (is_asked and not self._group.has_failed):
            return  # done, or ended as it was asked to, and not because of a failure here
        self._write(ended_by(self._assigned(), event, self._next_sequence()))
        if not event.is_stopped:
            self._stop_group()

    def _on_gone(
        self,
        event: WorkersStopped | SupervisorDied | SupervisorNotStarted | GpuMemoryFree,
        now: float,
    ) -> None:
        match event:
            case WorkersStopped():
                self._on_workers_stopped(event)
            case SupervisorDied():
                self._on_supervisor_died(event, now)
            case SupervisorNotStarted():
                self._on_supervisor_not_started(event, now)
            case GpuMemoryFree():
                self._on_gpu_memory_free(event)

    def _on_workers_stopped(self, event: WorkersStopped) -> None:
        if event.stuck_pids:
            pids = ", ".join(str(pid) for pid in event.stuck_pids)
            why = f"not even SIGKILL ended pid {pids}; the kernel holds them"
            self._effects.append(fx.Tell(what="processes stuck", why=why))
            self._stuck = ProcessesStuck(event.round_id, event.stuck_pids)
        self._group.stopped(event.round_id)

    def _on_gpu_memory_free(self, event: GpuMemoryFree) -> None:
        self._gpu_memory = GpuMemory.FREE
        if event.note:
            self._effects.append(fx.Tell(what="GPU memory not free", why=event.note))

    def _on_supervisor_died(self, event: SupervisorDied, now: float) -> None:
        self._effects.append(fx.Tell(what="supervisor died", why=event.ending))
        self._replace_supervisor(event.ending, has_lived=True)
        self._lose_workers(event, now)

    def _on_supervisor_not_started(self, event: SupervisorNotStarted, now: float) -> None:
        self._effects.append(fx.Tell(what="supervisor not started", why=event.reason))
        ending = f"could not be started: {event.reason}"
        if not self._replace_supervisor(ending, has_lived=False):
            self._lose_workers(SupervisorDied(ending=ending), now)

    def _replace_supervisor(self, ending: str, *, has_lived: bool) -> bool:
        """Have another one started; return whether there will be one."""
        delay_s = self._supervisor_restarts.delay_s(has_lived=has_lived)
        if delay_s is None:
            self._end_with(SupervisorLost(self._supervisor_restarts.count, ending))
            return False
        start = fx.StartSupervisor(delay_s=delay_s, is_command_kept=not has_lived)
        self._effects.append(start)
        return True

    def _lose_workers(self, event: SupervisorDied, now: float) -> None:
        assignment = self._group.assignment
        for local_rank in self._group.lose_all(self._inprocess.is_excused):
            assert assignment is not None, "workers without a round"
            sequence = self._next_sequence()
            fault = self._inprocess.lost(local_rank, killed_with_it(event), now=now)
            failure = killed_with_supervisor(
                assignment, local_rank, event, sequence, fault, now=now
            )
            self._write(failure)

    def _assigned(self) -> Assignment:
        assert self._group.assignment is not None, "a worker of no round"
        return self._group.assignment

    def _next_sequence(self) -> int:
        self._failures_written += 1
        return self._failures_written

    def _write(self, failure: Failure) -> None:
        first, is_at_fault = self._failure, not (failure.is_stopped_by_agent or failure.is_survived)
        if is_at_fault and (first is None or failure.happened_at < first.happened_at):
            self._failure = failure
        self._effects.append(fx.WriteFailure(failure=failure))

    def _stop_group(self, signum: int = SIGTERM) -> None:
        """Stop what is left of the group, unless that was asked for already."""
        if self._group.request_stop():
            round_id = self._assigned().round_id
            self._inprocess.stopping()
            self._effects.append(
                fx.StopWorkers(
                    round_id=round_id, signum=signum, timeout_s=self._policy.shutdown_timeout_s
                )
            )

    def _on_signal_to_forward(self, signum: int) -> None:
        """Hand a signal on. Workers that are being stopped have heard what they need."""
        round_id = self._group.round_to_signal
        if round_id is None:
            why = f"signal {signum} came while no workers run, so nobody gets it"
            self._effects.append(fx.Tell(what="signal dropped", why=why))
            return
        self._effects.append(fx.SignalWorkers(round_id=round_id, signum=signum))
        why = f"signal {signum} goes to the workers"
        self._effects.append(fx.Tell(what="signal forwarded", why=why, round_id=round_id))

    # The end.

    def _on_signal(self, signum: int) -> None:
        if self._ending is not None:
            self._effects.append(fx.KillWorkers())
            return
        self._effects.append(fx.SendGoodbye(reason=f"ended by signal {signum}"))
        self._end(fx.Finish(exit_code=EXIT_SIGNAL + signum), signum)

    def _end_with(self, error: AgentError) -> None:
        self._end(fx.Finish(exit_code=error.exit_code, error=error))

    def _end(self, finish: fx.Finish, signum: int = SIGTERM) -> None:
        """Stop the workers, then finish; the first reason counts."""
        self._ending = self._ending or fx.Ending(finish=finish, signum=signum)

    # Desired and actual.

    def _reconcile(self, now: float) -> None:
        """Take the next step from what is to what shall be."""
        wanted = self._desired if self._ending is None else None
        target = wanted if isinstance(wanted, Assignment) else None
        group = self._group
        if not self._inprocess.is_on:
            group.conclude()
        if group.assignment is not None and (
            target is None or target.round_id != group.assignment.round_id
        ):
            ended = self._dismiss(now)
            if ended is None:
                self._stop_group(self._ending.signum if self._ending else SIGTERM)
                self._inprocess.stopping()
            else:
                self._effects += ended
            group.leave()
        if group.is_free and target is not None:
            self._start(target)
        self._effects += self._inprocess.settle(now=now)
        if group.is_free and self._ending is not None:
            self._finish(self._ending)

    def _dismiss(self, now: float) -> list[fx.Effect] | None:
        """Let workers that restart in process end by themselves; ``None``: stop them now."""
        is_signalled = self._ending is not None and self._ending.finish.exit_code > EXIT_SIGNAL
        if is_signalled:
            return None
        return self._inprocess.dismiss(self._desired.reason, now=now)

    def _start(self, target: Assignment) -> None:
        """Start a round, or leave the run if this host can't; a round is never started again."""
        group, error = self._group, self._stuck
        if target.round_id == group.succeeded_round_id:
            return  # given up after its success, which counts; the run goes on without us
        if error is None and target.round_id <= group.latest_round_id:
            error = RunForgotten(target.round_id, group.latest_round_id)
        if error is not None:
            self._effects.append(fx.SendGoodbye(reason=str(error)))
            self._end_with(error)
        elif self._is_gpu_memory_free():
            group.assign(target, self._policy.local_world_size)
            self._failure = None
            self._inprocess.begin_round(target.round_id)
            self._effects.append(fx.StartWorkers(assignment=target))

    def _is_gpu_memory_free(self) -> bool:
        """Return whether a round may start; if not, it is looked at again when it may."""
        if self._gpu_memory is GpuMemory.USED:
            self._gpu_memory = GpuMemory.AWAITED
            self._effects.append(fx.AwaitGpuMemory())
        if self._gpu_memory is GpuMemory.AWAITED:
            return False
        if self._policy.is_gpu_memory_awaited:
            self._gpu_memory = GpuMemory.USED
        return True

    def _finish(self, ending: fx.Ending) -> None:
        self._is_finished = True
        self._beat_at = None
        self._effects.append(ending.finish)

    def _beat(self) -> Beat:
        group = self._group
        return Beat(
            state=group.state,
            round_id=group.assignment.round_id if group.assignment else None,
            master_port=self._ports.next,
            failures_written=self._failures_written,
            workers_alive=group.workers_alive,
            is_start_impossible=group.is_start_impossible,
            inprocess=self._inprocess.report if group.assignment else None,
            failure=self._failure if group.state is GroupState.FAILED else None,
            workers_done=group.workers_done if group.assignment else 0,
        )

    def _flush(self, now: float) -> list[fx.Effect]:
        """Return the effects, with a beat at the end if the actual state is news."""
        beat = self._beat()
        if self._connection.is_open and beat.news != self._beat_sent and not self._is_finished:
            self._beat_sent = beat.news
            self._beat_at = now + self._connection.pace.heartbeat_interval_s
            self._effects.append(fx.SendBeat(beat=beat))
        done, self._effects = self._effects, []
        return done
