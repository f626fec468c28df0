"""Pure. The watchdog of one host: notices workers that hang, and ends them.

It looks at each worker's board at an instant that the board announces: that of the
next limit, but at least once per pulse. What it announced it keeps, even if the reason
is gone: a worker relies on it and does not kick. An instant is therefore only moved
closer, or set anew at a look, and that is followed by reading the board.

Nobody is judged by old news: what is over by what was read earlier only leads to a look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import assert_never

from agent.watchdog.core import effects as fx
from agent.watchdog.core.events import (
    BoardRead,
    DeadlineReached,
    Event,
    EvidenceTaken,
    HeartbeatReceived,
    LimitsLearned,
    SignalFailed,
    TimerAcquired,
    TimerReleased,
    WorkerGone,
    WorkerStarted,
)
from agent.watchdog.core.investigation import (
    EVIDENCE_LATE_S,
    SIGKILL,
    SIGTERM,
    Attempts,
    Case,
    Stage,
)
from agent.watchdog.core.limits import Armed, Stall
from agent.watchdog.core.model import Evidence, Hang, HangKind, Standing, WatchdogPolicy, WorkerKey
from agent.watchdog.core.observations import Tally, merged
from agent.watchdog.core.worker import Watched
from drumbeat.deadlines import Deadlines


class Patient(Watched):
    """A watched worker, and what the watchdog is doing about it."""

    def __init__(self, key: WorkerKey, policy: WatchdogPolicy, *, now: float) -> None:
        super().__init__(key, policy, now=now)
        self.look_at = now
        self.is_reading = False
        self.case: Case | None = None
        self.attempts = Attempts()
        self.has_been_refused = False
        self._signalled_for: tuple[Armed, Hang] | None = None

    def next(self) -> float:
        """Return when something is to be done about it."""
        deadline = self.case.deadline if self.case is not None else None
        return self.look_at if deadline is None else min(self.look_at, deadline)

    def signalled(self, armed: Armed, hang: Hang) -> None:
        """Note why it is about to get a signal."""
        self._signalled_for = (armed, hang)

    @property
    def hang(self) -> Hang | None:
        """Why it got a signal; not if it went on after one that it was free to survive."""
        if self._signalled_for is None:
            return None
        armed, hang = self._signalled_for
        is_doomed = self.case is not None and self.case.stage is Stage.DOOMED
        return hang if is_doomed or self.limits.get(armed.key) is armed else None


class WatchdogCore:
    """The core of a watchdog. Not thread-safe; one owner calls it."""

    def __init__(self, policy: WatchdogPolicy) -> None:
        self._policy = policy
        self._workers: dict[WorkerKey, Patient] = {}
        self._due: Deadlines[WorkerKey] = Deadlines()
        self._learned: Mapping[str, float] = {}
        # Of the latest round: who has gone, and what they observed.
        self._round_id = -1
        self._gone: set[int] = set()
        self._observed_by_gone: dict[str, Tally] = {}
        self._awake_at = float("-inf")
        self._effects: list[fx.Effect] = []

    # The interface of every core.

    def handle(self, event: Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        self._notice_stall(now)
        match event:
            case WorkerStarted():
                self._on_started(event.worker, now)
            case WorkerGone():
                self._on_gone(event.worker)
            case LimitsLearned():
                self._on_learned(event.limits, now)
            case DeadlineReached():
                pass  # what is due is done after every event
            case _:
                worker = self._workers.get(event.worker)
                if worker is not None:
                    self._on_news(worker, event, now)
                    self._settle(worker, now)
        for key in self._due.pop_due(now):
            self._on_due(self._workers[key], now)
        self._awake_at = now
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nobody is watched."""
        return self._due.next()

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        assert len(self._due) == len(self._workers), "deadlines of the gone"
        for key, worker in self._workers.items():
            worker.check_invariants()
            assert self._due.get(key) == worker.next(), "a stale deadline"
            assert self._awake_at < worker.next() <= self._awake_at + self._policy.pulse_s
            first = worker.limits.next()
            if worker.case is None and not worker.is_reading and first is not None:
                assert worker.look_at <= first, "a limit that nobody will look at"
            assert key.round_id < self._round_id or key.local_rank not in self._gone

    # For those who report.

    def standing(self, worker: WorkerKey) -> Standing | None:
        """Return where a worker stands, ``None`` if it is not watched."""
        watched = self._workers.get(worker)
        return None if watched is None else watched.standing()

    def standings(self) -> dict[WorkerKey, Standing]:
        """Return where everybody stands who is watched."""
        return {key: self._workers[key].standing() for key in sorted(self._workers)}

    def hang(self, worker: WorkerKey) -> Hang | None:
        """Return why a worker is being ended.

        ``None`` if it is not, has gone on after a named signal, or is not watched.
        """
        watched = self._workers.get(worker)
        return None if watched is None else watched.hang

    def observations(self, round_id: int) -> Mapping[str, Tally]:
        """Return the longest times of a round's workers and how many there were.

        By section, and "" between two heartbeats. The workers of the latest round count
        also once they have gone.
        """
        workers = (each for key, each in self._workers.items() if key.round_id == round_id)
        observed = [worker.observed() for worker in workers]
        if round_id == self._round_id:
            observed.append(self._observed_by_gone)
        return merged(observed)

    def may_acquire(self, worker: WorkerKey, scope: str) -> bool:
        """Whether ``TimerAcquired`` would be heard: the worker is watched, and has room."""
        watched = self._workers.get(worker)
        return watched is not None and watched.may_acquire(scope)

    # Who is watched.

    def _on_started(self, key: WorkerKey, now: float) -> None:
        self._enter_round(key.round_id)
        is_over = key.round_id < self._round_id or key.local_rank in self._gone
        if is_over or key in self._workers:
            return
        worker = Patient(key, self._policy, now=now)
        worker.learn(self._learned)
        self._workers[key] = worker
        self._look(worker, now)
        self._settle(worker, now)

    def _enter_round(self, round_id: int) -> None:
        if round_id > self._round_id:
            self._round_id = round_id
            self._gone.clear()
            self._observed_by_gone = {}

    def _on_gone(self, key: WorkerKey) -> None:
        self._enter_round(key.round_id)
        if key.round_id == self._round_id:
            self._gone.add(key.local_rank)
        worker = self._workers.pop(key, None)
        if worker is None:
            return
        self._due.clear(key)
        if key.round_id == self._round_id:
            self._observed_by_gone = merged([self._observed_by_gone, worker.observed()])

    # What workers say.

    def _on_learned(self, limits: Mapping[str, float], now: float) -> None:
        self._learned = dict(limits)
        for worker in self._workers.values():
            worker.learn(self._learned)
            self._settle(worker, now)

    def _on_news(
        self,
        worker: Patient,
        event: BoardRead
        | TimerAcquired
        | TimerReleased
        | HeartbeatReceived
        | EvidenceTaken
        | SignalFailed,
        now: float,
    ) -> None:
        match event:
            case BoardRead():
                worker.is_reading = False
                worker.read(event.snapshot)
                self._judge(worker, now)
            case TimerAcquired():
                self._on_acquired(worker, event, now)
            case TimerReleased():
                worker.release(event.scope)
            case HeartbeatReceived():
                worker.heartbeat(event.step, now=now)
            case EvidenceTaken():
                self._on_evidence(worker, event.evidence, now)
            case SignalFailed():
                self._on_signal_failed(worker, event.reason, now)
            case _:
                assert_never(event)

    def _on_acquired(self, worker: Patient, event: TimerAcquired, now: float) -> None:
        is_room = worker.acquire(event, now=now)
        if not is_room and not worker.has_been_refused:
            worker.has_been_refused = True  # once is enough, or one worker fills the log
            why = f"more than {self._policy.timers_max} timers are open; further ones are ignored"
            self._tell(worker, "timer refused", why)

    # Time.

    def _notice_stall(self, now: float) -> None:
        """Give everybody the time during which this process or its host stood still."""
        due = self.next_deadline()
        if due is None or now - due <= self._policy.stall_s:
            return
        stall = Stall(self._awake_at, due, now)
        for worker in self._workers.values():
            worker.extend(stall)
            if worker.case is not None:
                worker.case.extend(stall)
            self._due.set(worker.key, worker.next())
        if stall.lateness_s >= self._policy.pulse_s:  # shorter ones nobody needs to hear of
            why = f"the watchdog stood still for {stall.lateness_s:.1f} s; all limits are longer"
            self._effects.append(fx.Tell(worker=None, what="watchdog stalled", why=why))

    def _on_due(self, worker: Patient, now: float) -> None:
        case = worker.case
        if case is not None and case.deadline is not None and case.deadline <= now:
            case.deadline = None
            if case.stage is Stage.EXAMINED:
                late = f"none came within {self._policy.evidence_timeout_s + EVIDENCE_LATE_S:g} s"
                self._on_evidence(worker, Evidence(notes=late), now)
            else:
                case.is_delivered = True
                self._send(worker, SIGKILL, worker.attempts.expired)
        if worker.look_at <= now:
            self._look(worker, now)
        self._settle(worker, now)

    def _look(self, worker: Patient, now: float) -> None:
        """Announce the next look, then read: who writes in between sees what was announced."""
        self._announce(worker, self._pulse_after(now))
        self._read(worker)

    def _read(self, worker: Patient) -> None:
        if not worker.is_reading:
            worker.is_reading = True
            self._effects.append(fx.ReadBoard(worker=worker.key))

    def _announce(self, worker: Patient, look_at: float) -> None:
        worker.look_at = look_at
        self._effects.append(fx.AnnounceLook(worker=worker.key, look_at=look_at))

    def _pulse_after(self, now: float) -> float:
        """Return the next pulse. All workers have the same, so that one wake-up serves all."""
        pulse_s = self._policy.pulse_s
        pulse_at = (math.floor(now / pulse_s) + 1) * pulse_s
        return pulse_at if now < pulse_at <= now + pulse_s else now + pulse_s

    def _settle(self, worker: Patient, now: float) -> None:
        """Look as early as the limits want it. A case has its own pace."""
        first = worker.limits.next()
        if worker.case is None and first is not None:
            if first > now:
                if first < worker.look_at:
                    self._announce(worker, first)
            elif not worker.is_reading:
                self._look(worker, now)
        self._due.set(worker.key, worker.next())

    # Hangs.

    def _judge(self, worker: Patient, now: float) -> None:
        """Go on with a worker whose board was just read."""
        case = worker.case
        if case is not None and case.stage is not Stage.CONFIRMED:
            return
        expired = worker.limits.expired(now)
        if expired:
            # One process at a time, for each has stacks and signals of its own.
            pid = expired[0].pid if case is None else case.pid
            expired = [armed for armed in expired if armed.pid == pid]
        if not expired:
            worker.case = None
        elif worker.snapshot.is_debugged:
            self._withdraw(worker, expired, "a Python debugger waits for input", now)
        elif case is None:
            timeout_s = self._policy.evidence_timeout_s
            worker.case = Case(deadline=now + timeout_s + EVIDENCE_LATE_S, expired=tuple(expired))
            self._effects.append(fx.TakeEvidence(worker=worker.key, timeout_s=timeout_s, pid=pid))
        else:
            self._decide(worker, expired, case.evidence, now)

    def _on_evidence(self, worker: Patient, evidence: Evidence, now: float) -> None:
        """Look once more: meanwhile the worker may have gone on by itself."""
        case = worker.case
        if case is None or case.stage is not Stage.EXAMINED:
            return  # late: the case went on without
        if not evidence.is_alive:
            worker.case = None
            self._on_dead(worker, case)
            return
        if evidence.is_stopped and not evidence.is_traced:
            # It was let run for a moment, to write its stacks; what else it wrote then is no
            # sign of life.
            self._decide(worker, list(case.expired), evidence, now)
            return
        case.stage, case.evidence, case.deadline = Stage.CONFIRMED, evidence, None
        self._read(worker)

    def _on_dead(self, worker: Patient, case: Case) -> None:
        """Forget the limits of a process that has gone."""
        if not case.pid:
            worker.void()
        for armed in case.expired:
            worker.forget(armed)

    def _decide(
        self, worker: Patient, expired: list[Armed], evidence: Evidence, now: float
    ) -> None:
        """All that is over is handled together; the first with a valid signal decides."""
        if evidence.is_traced:
            self._withdraw(worker, expired, "a debugger holds the process", now)
            return
        worker.case = None
        decider = next((armed for armed in expired if armed.is_deadly), None)
        for armed in expired:
            if armed is decider or not armed.is_deadly:
                self._report(worker, armed, evidence, is_ending=armed is decider, now=now)
            if not armed.is_deadly:
                worker.forget(armed)
        if decider is None:
            return
        if decider.pid:
            # Nothing of it is judged twice: it ends, or has been told what it asked for.
            for armed in expired:
                worker.forget(armed)
            signum = SIGKILL if decider.signal is None else decider.signal
            self._effects.append(fx.Signal(worker=worker.key, signum=signum, pid=decider.pid))
            return
        for armed in expired:
            worker.limits.handle(armed)
        deadly = tuple(armed for armed in expired if armed.is_deadly)
        if decider.signal is None:
            self._doom(worker, deadly, is_stopped=evidence.is_stopped, now=now)
            return
        self._send(worker, decider.signal, deadly)
        for armed in deadly:
            if armed.kind not in (HangKind.TIMER, HangKind.SECTION):
                # Nobody would acquire these again, so they wait for what the signal does.
                worker.limits.postpone(armed, now + self._policy.kill_grace_s)

    def _doom(
        self, worker: Patient, deadly: tuple[Armed, ...], *, is_stopped: bool, now: float
    ) -> None:
        """End a worker; one that is stopped would not even notice SIGTERM."""
        worker.case = Case(stage=Stage.DOOMED)
        if not is_stopped:
            graces = [armed.grace_s for armed in deadly if armed.grace_s is not None]
            worker.case.deadline = now + min([self._policy.kill_grace_s, *graces])
        self._send(worker, SIGKILL if is_stopped else SIGTERM, deadly)

    def _send(self, worker: Patient, signum: int, deadly: tuple[Armed, ...]) -> None:
        worker.attempts.sent(deadly)
        self._effects.append(fx.Signal(worker=worker.key, signum=signum))

    def _on_signal_failed(self, worker: Patient, reason: str, now: float) -> None:
        """Try again a little later: if nothing got through, with a verdict of its own."""
        attempts = worker.attempts
        if not attempts.expired:
            return
        if attempts.failures == 0:
            self._tell(worker, "signal failed", f"{reason}; it is sent again")
        retry_at = now + attempts.failed()
        case = worker.case
        if case is not None and case.is_delivered:
            case.deadline = retry_at
            return
        if case is not None and case.stage is Stage.DOOMED:
            worker.case = None
        for armed in attempts.expired:
            worker.limits.postpone(armed, retry_at)

    def _withdraw(self, worker: Patient, expired: list[Armed], why: str, now: float) -> None:
        worker.case = None
        for armed in expired:
            worker.limits.postpone(armed, now + armed.limit_s)
        self._tell(worker, "hang not judged", f"{why}; the limits count anew from now")

    def _report(
        self, worker: Patient, armed: Armed, evidence: Evidence, *, is_ending: bool, now: float
    ) -> None:
        hang = Hang(
            kind=armed.kind,
            scope=armed.scope,
            limit_s=armed.limit_s,
            elapsed_s=now - armed.since,
            standing=worker.standing(),
            noticed_at=now,
            evidence=evidence,
            purpose=armed.purpose,
        )
        if is_ending:
            worker.signalled(armed, hang)
        self._effects.append(
            fx.Report(
                worker=worker.key,
                hang=hang,
                is_ending=is_ending,
                signal=armed.signal,
                pid=armed.pid,
            )
        )

    def _tell(self, worker: Patient, what: str, why: str) -> None:
        self._effects.append(fx.Tell(worker=worker.key, what=what, why=why))
