"""Pure. One agent: makes its host's workers match what the coordinator wants.

The coordinator's latest directive is the desired state, the supervisor's reports make
the actual one. ``_reconcile`` compares the two after every event and takes one
step; what is lost or repeated on the way therefore changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from agent.core import effects as fx
from agent.core import events as ev
from agent.core.master_ports import MasterPorts
from agent.core.model import (
    AgentPolicy,
    Assignment,
    Beat,
    DesiredState,
    Exit,
    GpuMemory,
    Standby,
)
from agent.core.retries import CoordinatorLink, SupervisorRestarts
from agent.core.round_workers import SIGTERM, RoundWorkers
from agent.errors import AgentError, ProcessesStuck, RunForgotten, SupervisorLost
from agent.telemetry.waits import Situation

EXIT_SUCCESS, EXIT_FAILED, EXIT_SIGNAL = 0, 1, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """What is to be done once the workers, who get ``signum``, are gone."""

    finish: fx.Finish
    signum: int


class AgentCore:
    """The core of an agent. Not thread-safe; one owner calls it."""

    def __init__(self, policy: AgentPolicy) -> None:
        self._policy = policy
        self._link = CoordinatorLink(
            policy.coordinator,
            join_timeout_s=policy.join_timeout_s,
            grace_s=policy.coordinator_grace_s,
        )
        self._workers = RoundWorkers(
            policy.local_world_size, shutdown_timeout_s=policy.shutdown_timeout_s
        )
        self._group, self._inprocess = self._workers.group, self._workers.inprocess
        self._ports = MasterPorts()
        self._gpu_memory = GpuMemory.FREE
        self._desired: DesiredState = Standby(reason="not heard of the coordinator yet")
        self._ending: _Ending | None = None
        self._is_finished = False
        # Set when processes outlived SIGKILL: this host can't take part any more.
        self._stuck: AgentError | None = None
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
        self._connect(self._link.begin(now=now), now)
        return self._flush(now)

    def handle(self, event: ev.Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        if self._is_finished or isinstance(event, ev.ObservedEvent):
            return []
        if isinstance(event, ev.SessionEvent):
            if event.attempt == self._link.attempt:
                self._on_session(event, now)
        elif isinstance(event, ev.WorkersEvent):
            self._on_workers(event, now)
        else:
            self._on_host(event, now)
        self._reconcile(now)
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        instants = (self._link.deadline, self._beat_at, self._inprocess.deadline)
        return min((instant for instant in instants if instant is not None), default=None)

    def situation(self) -> Situation:
        """Return where this agent stands, for the console."""
        group, link = self._group, self._link
        return Situation(
            coordinator=link.coordinator,
            is_connected=link.is_open,
            was_connected=link.was_open,
            reason=link.reason,
            until=link.deadline,
            desired=self._desired,
            group=group.state,
            workers_alive=group.workers_alive,
            is_stopping=group.is_stopping,
            is_ending=self._ending is not None,
            is_gpu_memory_awaited=self._gpu_memory is GpuMemory.AWAITED,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        self._workers.check_invariants()
        self._ports.check_invariants()
        assert self._beat_at is None or self._link.is_open, "beats without a session"

    # This host.

    def _on_host(self, event: ev.HostEvent, now: float) -> None:
        match event:
            case ev.PortReserved():
                self._ports.next = event.port
                self._effects += self._ports.replace_spent(self._desired)
            case ev.SupervisorDied() | ev.SupervisorNotStarted():
                self._on_supervisor(event, now)
            case ev.GpuMemoryFree():
                self._gpu_memory = GpuMemory.FREE
                if event.note:
                    self._tell("GPU memory not free", event.note)
            case ev.SignalReceived():
                self._on_signal(event.signum)
            case ev.SignalToForward():
                self._on_signal_to_forward(event.signum)
            case ev.DeadlineReached():
                self._on_deadline(now)
            case _:
                assert_never(event)

    # The coordinator.

    def _on_session(self, event: ev.SessionEvent, now: float) -> None:
        match event:
            case ev.SessionWelcomed() | ev.PaceChanged():
                self._link.welcomed(event.pace)
                self._beat_at = now + event.pace.heartbeat_interval_s
            case ev.DirectiveReceived():
                self._on_directive(event)
            case ev.InprocessDirected():
                self._effects += self._inprocess.directed(event.directive, now=now)
                if self._inprocess.has_failed:
                    self._effects += self._workers.give_up()
            case ev.SessionLost():
                self._on_session_lost(event, now)
            case _:
                assert_never(event)

    def _on_directive(self, directive: ev.DirectiveReceived) -> None:
        state = self._desired = directive.state
        self._ports.spent = directive.master_port_spent
        self._effects += self._ports.replace_spent(state)
        if isinstance(state, Exit):
            if state.is_released and self._ending is None:
                reason = "its workers succeeded, and it waited long enough for the others"
                self._effects.append(fx.SendGoodbye(reason=reason))
            code = EXIT_SUCCESS if state.is_success else EXIT_FAILED
            self._end(fx.Finish(exit_code=code, report=state.report))

    def _on_session_lost(self, event: ev.SessionLost, now: float) -> None:
        self._beat_at = self._beat_sent = None
        if event.refusal is not None:
            self._end_with(event.refusal)
        if self._ending is not None:
            self._link.end()  # there is nothing to come back for
            return
        if event.is_stale:
            # Others may hold our ranks already.
            self._desired, self._ports.spent = Standby(reason=event.reason), 0
            self._tell("fenced", event.reason)
        elif self._link.is_open:
            self._tell("coordinator lost", event.reason)
        self._connect(self._link.lost(event.reason, now=now), now)

    def _connect(self, delay_max_s: float, now: float) -> None:
        if self._ending is None and not self._is_over(now):
            attempt = self._link.attempt
            self._effects.append(
                fx.OpenSession(attempt=attempt, delay_max_s=delay_max_s, beat=self._beat())
            )

    def _on_deadline(self, now: float) -> None:
        if self._beat_at is not None and now >= self._beat_at:
            self._beat_sent = None  # so that `_flush` sends one
        self._is_over(now)

    def _is_over(self, now: float) -> bool:
        """Give up if the coordinator was away for too long; return whether it was."""
        error = self._link.given_up(now=now)
        if error is not None:
            self._end_with(error)
            self._link.end()
        return error is not None

    # Workers.

    def _on_workers(self, event: ev.WorkersEvent, now: float) -> None:
        match event:
            case ev.WorkersStarted():
                self._group.started(event.round_id)
                self._inprocess.started(event.round_id, event.pids)
                self._supervisor_restarts.reset()
            case ev.WorkerStartFailed():
                self._effects += self._workers.start_failed(event, now=now)
            case ev.WorkerStep():
                self._effects += self._workers.step_taken(event, now=now)
            case ev.WorkerExited():
                self._effects += self._workers.exited(event)
            case ev.WorkersStopped():
                if event.stuck_pids:
                    pids = ", ".join(str(pid) for pid in event.stuck_pids)
                    why = f"not even SIGKILL ended pid {pids}; the kernel holds them"
                    self._tell("processes stuck", why)
                    self._stuck = ProcessesStuck(event.round_id, event.stuck_pids)
                self._group.stopped(event.round_id)
            case _:
                assert_never(event)

    def _on_supervisor(
        self, event: ev.SupervisorDied | ev.SupervisorNotStarted, now: float
    ) -> None:
        """Have another one started, unless that has failed too often."""
        has_lived = isinstance(event, ev.SupervisorDied)
        if isinstance(event, ev.SupervisorNotStarted):
            self._tell("supervisor not started", event.reason)
            event = ev.SupervisorDied(ending=f"could not be started: {event.reason}")
        else:
            self._tell("supervisor died", event.ending)
        delay_s = self._supervisor_restarts.delay_s(has_lived=has_lived)
        if delay_s is None:
            self._end_with(SupervisorLost(self._supervisor_restarts.count, event.ending))
        else:
            start = fx.StartSupervisor(delay_s=delay_s, is_command_kept=not has_lived)
            self._effects.append(start)
        if has_lived or delay_s is None:
            self._effects += self._workers.lost(event, now=now)

    def _on_signal_to_forward(self, signum: int) -> None:
        """Hand a signal on. Workers that are being stopped have heard what they need."""
        round_id = self._group.round_to_signal
        if round_id is None:
            self._tell(
                "signal dropped", f"signal {signum} came while no workers run, so none gets it"
            )
            return
        self._effects.append(fx.SignalWorkers(round_id=round_id, signum=signum))
        self._tell("signal forwarded", f"signal {signum} goes to the workers", round_id)

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
        self._ending = self._ending or _Ending(finish=finish, signum=signum)

    # Desired and actual.

    def _reconcile(self, now: float) -> None:
        """Take the next step from the actual to the desired state."""
        wanted, group = self._desired if self._ending is None else None, self._group
        target = wanted if isinstance(wanted, Assignment) else None
        if not self._inprocess.is_on:
            group.conclude()
        if group.assignment is not None and (
            target is None or target.round_id != group.assignment.round_id
        ):
            self._leave_round(now)
        if group.is_free and target is not None:
            self._start(target)
        self._effects += self._inprocess.settle(now=now)
        if group.is_free and self._ending is not None:
            self._is_finished, self._beat_at = True, None
            self._effects.append(self._ending.finish)

    def _leave_round(self, now: float) -> None:
        """Stop the workers, or let those that restart in process end by themselves."""
        ending, ended = self._ending, None
        if ending is None or ending.finish.exit_code <= EXIT_SIGNAL:
            ended = self._inprocess.dismiss(self._desired.reason, now=now)
        if ended is None:
            self._effects += self._workers.stop(ending.signum if ending else SIGTERM)
            self._inprocess.stopping()
        else:
            self._effects += ended
        self._group.leave()

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
            self._workers.begin_round(target)
            self._effects.append(fx.StartRound(assignment=target))

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

    # What is said.

    def _tell(self, what: str, why: str, round_id: int | None = None) -> None:
        self._effects.append(fx.Tell(what=what, why=why, round_id=round_id))

    def _beat(self) -> Beat:
        group, workers = self._group, self._workers
        return Beat(
            state=group.state,
            round_id=group.assignment.round_id if group.assignment else None,
            master_port=self._ports.next,
            failures_written=workers.failures_written,
            workers_alive=group.workers_alive,
            is_start_impossible=group.is_start_impossible,
            inprocess=self._inprocess.report if group.assignment else None,
            failure=workers.failure,
            workers_done=group.workers_done if group.assignment else 0,
        )

    def _flush(self, now: float) -> list[fx.Effect]:
        """Return the effects, with a beat at the end if the actual state is news."""
        beat = self._beat()
        if self._link.is_open and beat.news != self._beat_sent and not self._is_finished:
            self._beat_sent = beat.news
            self._beat_at = now + self._link.pace.heartbeat_interval_s
            self._effects.append(fx.SendBeat(beat=beat))
        done, self._effects = self._effects, []
        return done
