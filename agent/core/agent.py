"""Pure. One agent: makes its host's workers match what the coordinator wants.

``_reconcile`` compares the latest directive with what the supervisor reports after every event and
takes one step; what is lost or repeated on the way therefore changes nothing.
"""

from __future__ import annotations

from signal import Signals
from typing import assert_never

from msgspec.structs import replace

from drumbeat.agent import errors
from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.health import HealthChecks, HostState
from drumbeat.agent.core.link import CoordinatorLink
from drumbeat.agent.core.model import Beat, DesiredState, Exit
from drumbeat.agent.core.notice import Leaving, Notice
from drumbeat.agent.core.round_workers import SIGTERM, RoundWorkers
from drumbeat.agent.core.watchdog.model import Exceeded
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.inprocess import InprocessDirective
from drumbeat.model import Assignment, FaultKind, FaultOrder, FaultReport, Standby, Stop

EXIT_SUCCESS, EXIT_SIGNAL = 0, 128

STOP_SHARE = 0.25
"""Of the grace of a host that goes away, kept for its workers to stop, if they may take as long."""

SIGNAL_REPEAT_S = 2.0
"""The same signal again within this time counts as one, Ctrl-C excepted: a terminal that closes
sends SIGHUP twice."""

FIRST_CHECKS_WAIT_S = 1.0
"""How long the first session waits for the first health checks: ours take some milliseconds."""

BEAT_PHASE_MIN = 0.1
"""The least ``beat_phase``: news that follow each other closely are not said again in between."""

SUPERVISOR_DEATHS_MAX = 5
"""One that ends this often, or can't be started, without a round in between can't live here."""

RETRY_BASE_S = 0.5
"""The wait before the first retry of a supervisor; it doubles. All of them together outlast a
passing shortage of processes or memory, and the first replacement of one that has lived comes at
once."""


class AgentCore:
    """The core of an agent. Not thread-safe; one owner calls it, and the console reads it."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        is_gpu_memory_awaited: bool = False,
        has_health_checks: bool = False,
    ) -> None:
        self._config = config
        self._health = HealthChecks(has_checks=has_health_checks)
        self.link = CoordinatorLink(config)
        self._run_id = config.run_id
        self.workers = RoundWorkers(config)
        self._inprocess = self.workers.inprocess
        # The port for the next round or iteration that this agent leads, 0 while none is held;
        # and the one that the coordinator says is used.
        self._port = self._port_spent = 0
        # Whether there are GPUs whose memory must be free between two rounds; whether workers have
        # run since it was last found free; whether that is waited for.
        self._has_gpu_memory_to_await = is_gpu_memory_awaited
        self._is_gpu_memory_used = self.is_gpu_memory_awaited = False
        self.desired: DesiredState = Standby(reason="not heard of the coordinator yet")
        # What is to be done once the workers, who get the signal, are gone.
        self.ending: fx.Finish | None = None
        self._ending_signum = SIGTERM
        self._signalled: tuple[int, float] | None = None  # the first signal, and when it came
        self._is_finished = False
        # Set when processes outlived SIGKILL: this host can't take part any more.
        self._stuck: errors.AgentError | None = None
        self._supervisor_deaths = 0  # and failed starts, since workers ran last
        self._beat_sent: Beat | None = None
        self._beat_at: float | None = None
        self._beat_phase = 1.0
        self._preempted_by = 0  # a signal
        # Set once this host will go away, until it leaves; and what workers say of a notice, and
        # in which round.
        self._leaving: Leaving | None = None
        self._answered: ev.NoticeAnswered | None = None
        self._holds_workers = False  # that are to be killed for a hang, for the coordinator
        self._exceeded: tuple[Exceeded, ...] = ()  # limits, by workers of any round
        self._fault: FaultReport | None = None  # the latest of a rehearsal
        self._connect_at: float | None = None  # at the latest; then it knows how it is
        self._effects: list[fx.Effect] = []

    def start(
        self, *, now: float, master_port: int = 0, beat_phase: float = 1.0
    ) -> list[fx.Effect]:
        """Return what to do first; the first hello names ``master_port``, which is held already.

        ``beat_phase``: after this share of its interval news is said again, and then after each
        interval. Agents have different ones: all are given their ranks at once, and thousands
        would beat at once from then on.
        """
        self._port, self._beat_phase = master_port, beat_phase
        if not master_port:
            self._effects.append(fx.ReservePort())
        self.link.begin(now=now)
        self._health.begin(now=now)
        self._effects += self._health.review(self._host_state(), now=now)
        if self._health.health is None:
            self._connect(0.0, now)
        else:
            self._connect_at = now + FIRST_CHECKS_WAIT_S
        return self._flush(now)

    def handle(self, event: ev.Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        if self._is_finished or isinstance(event, ev.ObservedEvent):
            return []
        if isinstance(event, ev.SessionEvent):
            if event.attempt == self.link.attempt:
                self._on_session(event, now)
        elif isinstance(event, ev.WorkersEvent):
            self._on_workers(event, now)
        else:
            self._on_host(event, now)
        self._reconcile(now)
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        leaves_at = self._leaving.until if self._leaving and self.ending is None else None
        retry_at = self._health.next_retry(self._host_state())
        instants = (
            self.link.deadline,
            self._beat_at,
            self._inprocess.deadline,
            leaves_at,
            retry_at,
            self.workers.resumes_at,
            self._connect_at,
        )
        return min((instant for instant in instants if instant is not None), default=None)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        self.workers.check_invariants()
        self.link.search.check_invariants()
        self._health.check_invariants()
        assert self._beat_at is None or self.link.is_open, "beats without a session"

    def _on_host(self, event: ev.HostEvent, now: float) -> None:
        match event:
            case ev.PortReserved():
                self._port = event.port
                self._replace_spent_port()
            case ev.SupervisorDied():
                self._on_supervisor_death(event, now)
            case ev.GpuMemoryFree():
                self._is_gpu_memory_used = self.is_gpu_memory_awaited = False
                if event.note:
                    self._tell("GPU memory not free", event.note)
            case ev.ChecksEnded():
                self._effects += self._health.ended(event, now=now)
                self._connect_at = now if self._connect_at is not None else None
                self._connect_first(now)
            case ev.SignalReceived(is_for_workers=True):
                self._effects += self.workers.signal(event.signum)
            case ev.SignalReceived(is_preemption=True):
                self._on_preemption(event.signum, now)
            case ev.SignalReceived():
                self._on_signal(event.signum, now)
            case ev.DeadlineReached():
                if self._leaving is not None and now >= self._leaving.until:
                    self._leave("its time is up")
                if self._beat_at is not None and now >= self._beat_at:
                    self._beat_sent = None  # so that `_flush` sends one
                self._connect_first(now)
                self._effects += self.workers.resume(now=now)
                self._is_over(now)
            case _:
                assert_never(event)

    def _on_session(self, event: ev.SessionEvent, now: float) -> None:
        match event:
            case ev.SessionWelcomed():
                self.link.welcomed(event)
                if event.takes_evidence:
                    self._hold_workers(is_on=True)
                # All may be told another pace at once.
                self._beat_at = now + self._beat_phase * self._beat_interval_s
            case ev.DirectiveReceived():
                self._on_directive(event)
            case ev.OrderReceived(order=order):
                self._on_order(order, now)
            case ev.SessionLost():
                self._on_session_lost(event, now)
            case _:
                assert_never(event)

    def _on_order(
        self, order: Notice | InprocessDirective | fx.HeldReleased | FaultOrder, now: float
    ) -> None:
        match order:
            case Notice():
                self._on_notice(order)
            case FaultOrder():
                self._on_fault(order, now)
            case fx.HeldReleased():
                self._effects.append(order)
            case InprocessDirective():
                self._effects += self._inprocess.directed(order, now=now)
                if self._inprocess.has_failed:
                    self._effects += self.workers.give_up()

    def _on_directive(self, directive: ev.DirectiveReceived) -> None:
        state = self.desired = directive.state
        self._port_spent = directive.master_port_spent
        self._replace_spent_port()
        if isinstance(state, Exit):
            if state.is_released and self.ending is None:
                reason = "its workers succeeded, and it waited long enough for the others"
                if state.is_drained:
                    reason = state.reason
                self._effects.append(fx.SendGoodbye(reason=reason))
            self._end_as(state)
        elif self._leaving is not None and not isinstance(state, Stop):
            held, round_id = self.workers.assignment, getattr(state, "round_id", None)
            if held is None or held.round_id != round_id:
                self._leave("its round is over")

    def _replace_spent_port(self) -> None:
        """Reserve another port once the one held is used; let go of those that all have left.

        That of a round is held until this agent leads another round, that of an iteration until it
        leads another iteration or round.
        """
        if self._port_spent and self._port_spent == self._port:
            self._port, kept = 0, {self._port_spent}
            if isinstance(self.desired, Assignment):
                kept.add(self.desired.master_port)
            self._effects.append(fx.ReservePort(kept=frozenset(kept)))

    def _hold_workers(self, *, is_on: bool) -> None:
        if is_on != self._holds_workers:
            self._holds_workers = is_on
            self._effects.append(fx.JudgeKnown(is_there=is_on))

    def _on_session_lost(self, event: ev.SessionLost, now: float) -> None:
        self._hold_workers(is_on=False)
        self._beat_at = self._beat_sent = None
        if (refusal := self.link.refusal(event)) is not None:
            if self.workers.assignment is not None and self.ending is None:
                self._tell("refused", f"{refusal}; its workers are stopped")
            if event.verdict is not None:
                self.desired = event.verdict
                self._end_as(event.verdict)
            self._end_with(refusal)
        if self.ending is not None:
            is_too_late = self.ending.is_too_late or isinstance(refusal, errors.RunEnded)
            self.ending = replace(self.ending, is_too_late=is_too_late)
            self.link.end()  # there is nothing to come back for
            return
        if event.is_stale:
            # Others may hold our ranks already.
            self.desired, self._port_spent = Standby(reason=event.reason), 0
            self._tell("fenced", event.reason)
        elif self.link.is_open:
            next_one = "; looking for the next leader" if self.link.search.has_others else ""
            if event.leader:
                self._tell("coordinator replaced", f"{event.leader} leads by now")
            else:
                self._tell("coordinator lost", f"{event.reason}{next_one}")
        self._connect(self.link.lost(event, now=now), now)

    def _connect(self, delay_max_s: float, now: float) -> None:
        if self.ending is None and not self._is_over(now):
            self._effects.append(self.link.opening(delay_max_s, self._beat()))

    def _connect_first(self, now: float) -> None:
        """Open the first session, if it waits no more for the first health checks."""
        if self._connect_at is not None and now >= self._connect_at:
            self._connect_at = None
            self._connect(0.0, now)

    def _is_over(self, now: float) -> bool:
        """Give up if the coordinator was away for too long; return whether it was."""
        if (error := self.link.given_up(now=now)) is not None:
            self._end_with(error)
            self.link.end()
        return error is not None

    def _on_workers(self, event: ev.WorkersEvent, now: float) -> None:
        match event:
            case ev.NoticeAnswered():
                self._answered = event
            case ev.LimitsExceeded():
                self._exceeded = event.exceeded
            case ev.WorkersStarted():
                self.workers.started(event)
                self._supervisor_deaths = 0
            case ev.WorkerStartFailed():
                self._effects += self.workers.start_failed(event, now=now)
            case ev.WorkerStep():
                self._effects += self.workers.step_taken(event, now=now)
            case ev.WorkerExited():
                self._effects += self.workers.exited(event)
            case ev.WorkersStopped():
                if event.stuck_pids:
                    pids = ", ".join(str(pid) for pid in event.stuck_pids)
                    why = f"not even SIGKILL ended pid {pids}; the kernel holds them"
                    self._tell("processes stuck", why)
                    self._stuck = errors.ProcessesStuck(event.round_id, event.stuck_pids)
                self.workers.stopped(event.round_id)
            case _:
                assert_never(event)

    def _on_supervisor_death(self, event: ev.SupervisorDied, now: float) -> None:
        """Have another one started, unless that has failed too often."""
        has_lived = event.has_lived
        if event.is_final:
            self._end_with(errors.SupervisorNotExecutable(event.ending))
            self._effects += self.workers.lost(event, now=now)
            return
        self._tell("supervisor died" if has_lived else "no supervisor", event.ending)
        deaths = self._supervisor_deaths = self._supervisor_deaths + 1
        if deaths <= SUPERVISOR_DEATHS_MAX:
            delay_s = 0.0 if has_lived and deaths == 1 else RETRY_BASE_S * 2.0 ** (deaths - 1)
            self._effects.append(fx.StartSupervisor(delay_s=delay_s, is_command_kept=not has_lived))
        else:
            self._end_with(errors.SupervisorLost(deaths, event.ending))
        if has_lived or deaths > SUPERVISOR_DEATHS_MAX:
            self._effects += self.workers.lost(event, now=now)

    def _on_signal(self, signum: int, now: float) -> None:
        if self._signalled is not None and signum != Signals.SIGINT:
            first, at = self._signalled
            if signum == first and now < at + SIGNAL_REPEAT_S:
                return
        self._signalled = self._signalled or (signum, now)
        if self.ending is not None:
            self._effects.append(fx.KillWorkers())
            return
        self._effects.append(fx.SendGoodbye(reason=f"ended by signal {signum}"))
        self._end(fx.Finish(exit_code=EXIT_SIGNAL + signum), signum)

    def _on_preemption(self, signum: int, now: float) -> None:
        """Stay for as long as training may need to save; a second signal ends that."""
        grace_s = self._config.preemption_grace
        stop_s = min(self._config.shutdown_timeout, grace_s * STOP_SHARE)
        self._preempted_by = signum
        if self._leaving is not None or self.workers.assignment is None:
            self._leave("it is told so again" if self._leaving else "it has no workers")
            return
        reason = f"got {Signals(signum).name}, its host will go away"
        self._leaving = Leaving(reason=reason, until=now + grace_s - stop_s)
        self._tell("leaving", f"{reason}; training may save for {grace_s - stop_s:g} s")

    def _on_notice(self, notice: Notice) -> None:
        assignment = self.workers.assignment
        if assignment is None or notice.round_id != assignment.round_id or self.ending is not None:
            return
        if notice.is_over:
            self._answered = None
            self._leave("training was given notice")
        if self.ending is None:  # else its workers wait for their end, and make no step in vain
            self._effects.append(fx.ShowNotice(notice=notice))

    def _on_fault(self, order: FaultOrder, now: float) -> None:
        """Inject a fault of a rehearsal, once; the next beat says what came of it."""
        if self._fault is not None and order.number <= self._fault.number:
            return
        refusal = "the agent ends" if self.ending is not None else self.workers.refusal(order)
        self._fault = FaultReport(number=order.number, refusal=refusal)
        what = f"{order.kind.lower().replace('_', ' ')}, as a rehearsal wants"
        self._tell("fault refused" if refusal else "fault injected", refusal or what)
        if refusal:
            return
        if order.kind is FaultKind.AGENT:
            self._effects.append(fx.Crash())
        else:
            self._effects += self.workers.inject(order, now=now)

    def _leave(self, why: str) -> None:
        """Leave the run, if this host will go away."""
        if self._preempted_by and self.ending is None:
            name = Signals(self._preempted_by).name
            self._effects.append(fx.SendGoodbye(reason=f"preempted by {name}: {why}"))
            self._end(fx.Finish(exit_code=EXIT_SIGNAL + self._preempted_by))

    def _beat(self) -> Beat:
        beat, answered = self.workers.beat(self._port), self._answered
        is_current = answered is not None and answered.round_id == beat.round_id
        report = answered.report if answered is not None and is_current else None
        exceeded = tuple(
            limit for limit in self._exceeded if limit.worker.round_id == beat.round_id
        )
        return replace(
            beat,
            leaving=self._leaving,
            notice=report,
            fault=self._fault,
            exceeded=exceeded,
            health=self._health.health,
        )

    def _end_as(self, state: Exit) -> None:
        """End as the run did, or as it goes on without this agent."""
        if state.is_stopped:
            self._end_with(errors.RunStopped(self._run_id, state.reason))
        elif state.is_drained:
            self._end_with(errors.AgentDrained(state.reason))
        code = EXIT_SUCCESS if state.is_success else state.exit_code
        self._end(fx.Finish(exit_code=code, report=state.report))

    def _end_with(self, error: errors.AgentError) -> None:
        self._end(fx.Finish(exit_code=error.exit_code, error=error))

    def _end(self, finish: fx.Finish, signum: int = SIGTERM) -> None:
        """Stop the workers, then finish; the first reason counts."""
        if self.ending is None:
            self.ending, self._ending_signum = finish, signum
            self._connect_at = None

    def _reconcile(self, now: float) -> None:
        """Take the next step from the actual to the desired state."""
        workers, desired = self.workers, self.desired
        target = desired if isinstance(desired, Assignment) and self.ending is None else None
        workers.conclude()
        current = workers.assignment
        if current is not None and (target is None or target.round_id != current.round_id):
            self._leave_round(now)
        if workers.assignment is None and target is not None:
            self._start(target)
        self._effects += self._inprocess.settle(now=now)
        self._check_health(now)
        if workers.assignment is None and self.ending is not None:
            self._is_finished, self._beat_at = True, None
            self._effects.append(self.ending)

    def _host_state(self) -> HostState:
        workers = self.workers
        return HostState(
            holds_round=workers.assignment is not None,
            are_workers_ending=workers.has_failed and workers.workers_alive > 0,
            is_ending=self.ending is not None,
        )

    def _check_health(self, now: float) -> None:
        """Check the host after each failure here: the beat that tells of it says so already."""
        for effect in self._effects:
            if isinstance(effect, fx.WriteFailure):
                self._health.failed(effect.failure, now=now)
        self._effects += self._health.review(self._host_state(), now=now)

    def _leave_round(self, now: float) -> None:
        """Stop the workers, or let those that restart in process end by themselves."""
        effects, ending = None, self.ending
        if ending is None or ending.exit_code <= EXIT_SIGNAL:
            error = None if ending is None else ending.error
            effects = self._inprocess.dismiss(str(error or self.desired.reason), now=now)
        if effects is None:
            effects = self.workers.stop(self._ending_signum)
            self._inprocess.stopping()
        self._effects += effects
        self.workers.leave()

    def _start(self, target: Assignment) -> None:
        """Start a round, or leave the run if this host can't; a round is never started again."""
        latest, error = self.workers.latest_round_id, self._stuck
        if target.round_id == self.workers.succeeded_round_id:
            return  # given up after its success, which counts; the run goes on without us
        if error is None and target.round_id <= latest:
            error = errors.RunForgotten(target.round_id, latest)
        if error is not None:
            self._effects.append(fx.SendGoodbye(reason=str(error)))
            self._end_with(error)
        elif not self._is_gpu_memory_used:
            self._is_gpu_memory_used = self._has_gpu_memory_to_await
            self._effects.append(self.workers.begin(target))
        elif not self.is_gpu_memory_awaited:  # the round is looked at again when it is free
            self.is_gpu_memory_awaited = True
            self._effects.append(fx.AwaitGpuMemory())

    @property
    def _beat_interval_s(self) -> float:
        pace = self.link.pace
        if self.workers.assignment is None and isinstance(self.desired, Standby):
            return max(pace.heartbeat_interval_s, pace.waiting_interval_s)
        return pace.heartbeat_interval_s

    def _tell(self, what: str, why: str) -> None:
        self._effects.append(fx.Tell(what=what, why=why))

    def _flush(self, now: float) -> list[fx.Effect]:
        """Return the effects, with a beat at the end if the actual state is news."""
        beat = self._beat()
        if self.link.is_open and beat.news != self._beat_sent and not self._is_finished:
            is_due = self._beat_at is not None and now >= self._beat_at
            self._beat_sent = beat.news
            self._beat_at = now + (1.0 if is_due else self._beat_phase) * self._beat_interval_s
            self._effects.append(fx.SendBeat(beat=beat))
        elif self._beat_at is not None:  # sooner, once it does not wait any more
            self._beat_at = min(self._beat_at, now + self._beat_interval_s)
        done, self._effects = self._effects, []
        return done
