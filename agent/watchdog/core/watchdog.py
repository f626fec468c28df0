"""Pure. The watchdog of one host: notices workers that hang, and ends them.

It looks at each worker's board at an instant that the board announces: that of the
next limit, but at least once per pulse. What it announced it keeps, even if the reason
is gone: a worker relies on it and does not kick. An instant is therefore only moved
closer, or set anew at a look, and that is followed by reading the board.

A verdict never rests on an old reading: what is over by that only leads to a look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from agent.watchdog.core import model as msg
from agent.watchdog.core.model import WatchdogPolicy, WorkerKey
from agent.watchdog.core.worker import Armed, Investigation, Stage, Worker
from agent.watchdog.hang import Evidence, Hang, HangKind

SIGKILL, SIGTERM = 9, 15

EVIDENCE_LATE_S = 5.0  # later it is not waited for: reading about a process may block on it


class WatchdogCore:
    """The core of a watchdog. Not thread-safe; one owner calls it."""

    def __init__(self, policy: WatchdogPolicy) -> None:
        self.workers: dict[WorkerKey, Worker] = {}
        """Those that are watched, for others to read."""
        self._policy = policy
        self._learned: Mapping[str, float] = {}
        self._awake_at = -math.inf
        self._effects: list[msg.Effect] = []

    def handle(self, event: msg.Event, *, now: float) -> list[msg.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        self._notice_stall(now)
        match event:
            case msg.WorkerStarted(worker=key):
                if key not in self.workers:
                    worker = self.workers[key] = Worker(key, self._policy, now=now)
                    worker.learn(self._learned)
                    self._settle(worker, now, first=now)
            case msg.WorkerGone():
                self.workers.pop(event.worker, None)
            case msg.LimitsLearned():
                self._learned = dict(event.limits)
                for worker in self.workers.values():
                    worker.learn(self._learned)
                    self._settle(worker, now)
            case msg.DeadlineReached():
                pass  # what is due is done after every event
            case _:
                if (known := self.workers.get(event.worker)) is not None:
                    self._on_news(known, event, now)
        due = [worker for worker in self.workers.values() if worker.next() <= now]
        for worker in sorted(due, key=Worker.next):
            self._on_due(worker, now)
        self._awake_at = now
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if no worker is watched."""
        return min(map(Worker.next, self.workers.values()), default=None)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        for worker in self.workers.values():
            assert self._awake_at < worker.next() <= self._awake_at + self._policy.pulse_s
            if worker.investigation is None and not worker.is_reading:
                due = [armed.due for armed in worker.limits()]
                assert not due or worker.look_at <= min(due), "a limit that is not looked at"

    def _on_news(self, worker: Worker, event: msg.News, now: float) -> None:
        first = None
        match event:
            case msg.BoardRead():
                worker.is_reading = False
                worker.read(event.snapshot)
                self._judge(worker, now)
            case msg.TimerAcquired():
                first = worker.acquire(event, now=now)
            case msg.TimerReleased():
                worker.release(event.scope)
                return  # what was announced for it is kept
            case msg.HeartbeatReceived():
                worker.heartbeat(event.step, now=now)
            case msg.EvidenceTaken():
                self._on_evidence(worker, event.evidence, now)
        self._settle(worker, now, first)

    def _notice_stall(self, now: float) -> None:
        """Give all workers the time during which this process or its host stood still."""
        due = self.next_deadline()
        if due is None or now - due <= self._policy.stall_s:
            return
        for worker in self.workers.values():
            worker.extend(self._awake_at, due, now=now)
        if now - due >= self._policy.pulse_s:  # shorter ones are of no interest
            why = f"the watchdog stood still for {now - due:.1f} s; all limits are longer"
            self._effects.append(msg.Warn(worker=None, event="watchdog stalled", reason=why))

    def _on_due(self, worker: Worker, now: float) -> None:
        found = worker.investigation
        if found is not None and found.due <= now:
            found.due = math.inf
            if found.stage is Stage.EXAMINED:
                late = f"none came within {self._policy.evidence_timeout_s + EVIDENCE_LATE_S:g} s"
                self._on_evidence(worker, Evidence(notes=late), now)
            else:
                self._effects.append(msg.Signal(worker=worker.key, signum=SIGKILL))
        if worker.look_at <= now:
            self._look(worker, now)
        self._settle(worker, now)

    def _look(self, worker: Worker, now: float) -> None:
        """Announce the next look, then read: who writes in between sees what was announced.

        All workers have the same pulse, so that one wake-up serves all.
        """
        pulse_s = self._policy.pulse_s
        pulse_at = (math.floor(now / pulse_s) + 1) * pulse_s
        self._announce(worker, pulse_at if now < pulse_at <= now + pulse_s else now + pulse_s)
        self._read(worker)

    def _announce(self, worker: Worker, look_at: float) -> None:
        worker.look_at = look_at
        self._effects.append(msg.AnnounceLook(worker=worker.key, look_at=look_at))

    def _read(self, worker: Worker) -> None:
        if not worker.is_reading:
            worker.is_reading = True
            self._effects.append(msg.ReadBoard(worker=worker.key))

    def _settle(self, worker: Worker, now: float, first: float | None = None) -> None:
        """Look as early as the limits want it, of which ``first`` is new if it is given."""
        if worker.key not in self.workers or worker.investigation is not None:
            return  # just dropped, or it has its own pace
        if first is None:
            first = min((armed.due for armed in worker.limits()), default=math.inf)
        if first <= now:
            if not worker.is_reading:
                self._look(worker, now)
        elif first < worker.look_at:
            self._announce(worker, first)

    def _judge(self, worker: Worker, now: float) -> None:
        found = worker.investigation
        if found is not None and found.stage is not Stage.CONFIRMED:
            return
        if expired := worker.expired(now):
            # One process at a time, for each has stacks and signals of its own.
            pid = (expired if found is None else found.expired)[0].pid
            expired = [armed for armed in expired if armed.pid == pid]
        if not expired:
            worker.investigation = None
        elif worker.snapshot.is_debugged:
            self._withdraw(worker, expired, "a Python debugger waits for input", now)
        elif found is not None:
            self._decide(worker, expired, found.evidence, now)
        else:
            timeout_s = self._policy.evidence_timeout_s
            worker.investigation = Investigation(
                Stage.EXAMINED, now + timeout_s + EVIDENCE_LATE_S, tuple(expired)
            )
            self._effects.append(msg.TakeEvidence(worker=worker.key, timeout_s=timeout_s, pid=pid))

    def _on_evidence(self, worker: Worker, evidence: Evidence, now: float) -> None:
        """Look once more: meanwhile the worker may have gone on by itself."""
        found = worker.investigation
        if found is None or found.stage is not Stage.EXAMINED:
            return  # late: it was decided without
        if not evidence.is_alive:
            worker.investigation = None
            for armed in found.expired:
                worker.release(armed.slot.name, armed)
            if not found.expired[0].pid:
                del self.workers[worker.key]  # before the news of its end
        elif evidence.is_stopped and not evidence.is_traced:
            # It was let run for a moment, to write its stacks; what else it wrote then is no
            # sign of life.
            self._decide(worker, list(found.expired), evidence, now)
        else:
            found.stage, found.evidence, found.due = Stage.CONFIRMED, evidence, math.inf
            self._read(worker)

    def _decide(self, worker: Worker, expired: list[Armed], evidence: Evidence, now: float) -> None:
        """All that is over is handled together; the first with a valid signal decides."""
        if evidence.is_traced:
            self._withdraw(worker, expired, "a debugger holds the process", now)
            return
        worker.investigation = None
        deadly = [armed for armed in expired if armed.is_deadly]
        for armed in expired:
            if armed in deadly[:1] or not armed.is_deadly:
                self._report(worker, armed, evidence, now)
            # A process below the worker is judged once only: it ends, or has got the signal
            # that it asked for.
            if armed.pid or not armed.is_deadly:
                worker.release(armed.slot.name, armed)
            armed.due = math.inf
        if not deadly:
            return
        signum, pid, grace_s = deadly[0].slot.signal, deadly[0].pid, self._policy.kill_grace_s
        if signum is None:  # of the worker itself: who names another process names a signal
            graces = (armed.slot.grace_s for armed in deadly if armed.slot.grace_s is not None)
            signum, grace_s = SIGTERM, min(grace_s, *graces, math.inf)
            if evidence.is_stopped:  # it would not even notice SIGTERM
                signum, grace_s = SIGKILL, math.inf
            worker.investigation = Investigation(Stage.KILLING, now + grace_s)
        else:
            for armed in deadly:
                if armed.kind not in (HangKind.TIMER, HangKind.SECTION):
                    # The worker never acquires these again, so they wait for what the signal does.
                    armed.due = now + grace_s
        self._effects.append(msg.Signal(worker=worker.key, signum=signum, pid=pid))

    def _withdraw(self, worker: Worker, expired: list[Armed], why: str, now: float) -> None:
        worker.investigation = None
        for armed in expired:
            armed.due = now + armed.limit_s
        why += "; the limits count anew from now"
        self._effects.append(msg.Warn(worker=worker.key, event="hang not judged", reason=why))

    def _report(self, worker: Worker, armed: Armed, evidence: Evidence, now: float) -> None:
        hang = Hang(
            kind=armed.kind,
            scope=armed.slot.name,
            limit_s=armed.limit_s,
            elapsed_s=now - armed.slot.since,
            standing=worker.standing(),
            noticed_at=now,
            evidence=evidence,
            purpose=armed.slot.purpose,
        )
        pid, signal, is_ending = armed.pid, armed.slot.signal, armed.is_deadly
        self._effects.append(
            msg.Report(worker=worker.key, pid=pid, hang=hang, is_ending=is_ending, signal=signal)
        )
