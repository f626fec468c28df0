"""Pure. The watchdog of one host: notices workers that hang, and ends them.

It looks at each worker's board at an instant that the board announces: that of the
next limit, but at least once per pulse. What it announced it keeps, even if the reason
is gone: a worker relies on it and does not kick. An instant is therefore only moved
closer, or set anew at a look, and that is followed by reading the board.

A verdict never rests on an old reading: what is over by that only leads to a look. What is over
on a board just read is reported in any case. The worker is then asked for its stacks, which changes
nothing, and its board is read once more: one that has left its limit by itself is let live. One
that has not is killed, whatever follows; so it may be sent a signal first that gets its stacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.core.watchdog.model import WatchdogPolicy, WorkerKey
from drumbeat.agent.core.watchdog.worker import Armed, Investigation, Stage, Worker
from drumbeat.agent.model.hang import ASKED_SHARE, Hang, HangEvidence
from drumbeat.model import HangKind

SIGKILL, SIGTERM = 9, 15

EVIDENCE_LATE_S = 5.0  # later it is not waited for: reading about a process may block on it
_LEFT = "then the worker went on by itself; it is not killed"
_ENDED = "its process has ended by itself"
_STOPPED = "it has ended by itself, or is being stopped"
_FATAL = "then it wrote a line that a fatal pattern matches, and is ended for that"


class WatchdogCore:
    """The core of a watchdog. Not thread-safe; one owner calls it."""

    def __init__(self, policy: WatchdogPolicy) -> None:
        self.workers: dict[WorkerKey, Worker] = {}
        """Those that are watched, for others to read."""
        self._policy = policy
        self._learned: Mapping[str, float] = {}
        # The longest time of each local rank from its start to its first heartbeat, in any round.
        self._starts_s: dict[int, float] = {}
        self._has_judge = False
        self._reported = 0  # counts limits
        self._exceeding: set[WorkerKey] = set()  # workers that may exceed a limit still
        self._awake_at = -math.inf
        self._effects: list[msg.Effect] = []

    def handle(self, event: msg.Event, *, now: float) -> list[msg.Effect]:
        """Take one event in at ``now`` (monotonic seconds)."""
        self._notice_stall(now)
        match event:
            case msg.WorkerStarted():
                self._on_started(event, now)
            case msg.WorkerGone(worker=key):
                self._on_gone(key, now)
            case msg.LimitsLearned():
                self._learned = dict(event.limits)
                for worker in self.workers.values():
                    worker.learn(self._learned)
                    self._settle(worker, now)
            case msg.JudgeKnown(is_there=is_there):
                self._has_judge = is_there
            case msg.HeldReleased():
                self._on_released(event, now)
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

    def exceeded(self) -> tuple[msg.Exceeded, ...]:
        """Return the limits that workers exceed at present, as far as they were reported."""
        exceeded: list[msg.Exceeded] = []
        for key in sorted(self._exceeding):
            worker = self.workers.get(key)
            limits = list(worker.exceeded()) if worker is not None else []
            exceeded += limits
            if not limits:
                self._exceeding.discard(key)
        return tuple(exceeded)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        for worker in self.workers.values():
            assert self._awake_at < worker.next() <= self._awake_at + self._policy.pulse_s
            if worker.investigation is None and not worker.is_reading:
                due = [armed.due for armed in worker.limits()]
                assert not due or worker.look_at <= min(due), "a limit that is not looked at"

    def _on_started(self, event: msg.WorkerStarted, now: float) -> None:
        if (key := event.worker) not in self.workers:
            usual_s = None if event.is_preflight else self._starts_s.get(key.local_rank)
            policy = self._policy.of_preflight() if event.is_preflight else self._policy
            worker = Worker(key, policy, now=now, usual_start_s=usual_s)
            self.workers[key] = worker
            worker.learn(self._learned)
            self._settle(worker, now, first=now)

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
            case msg.CollectivesRead():
                worker.read_collectives(event, now=now)
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
            why = f"the watchdog stood still for {now - due:.1f} s; all limits are extended"
            self._effects.append(msg.Warn(worker=None, event="watchdog stalled", reason=why))

    def _on_due(self, worker: Worker, now: float) -> None:
        case = worker.investigation
        if case is not None and case.due <= now:
            case.due = math.inf
            if case.stage is Stage.HELD:
                self._end(worker, case.expired, case.evidence, now)
            elif case.stage is not Stage.KILLING:
                late = f"none came within {self._policy.evidence_timeout_s + EVIDENCE_LATE_S:g} s"
                self._on_evidence(worker, HangEvidence(notes=late), now)
            elif case.killed_at is None:
                self._kill(worker, SIGKILL, now)
            else:
                case.due = now + self._policy.unkilled_every_s
                after_s = now - case.killed_at
                self._effects.append(msg.TellUnkilled(worker=worker.key, after_s=after_s))
        if worker.look_at <= now:
            self._look(worker, now)
        if worker.ask_at <= now:
            worker.ask_collectives(now=now)
            self._effects.append(msg.ReadCollectives(worker=worker.key))
        self._settle(worker, now)

    def _look(self, worker: Worker, now: float) -> None:
        """Announce the next look, then read: a worker that writes in between sees the announcement.

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
        """Look as early as the limits require; ``first`` is the only new limit, if given."""
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
        case = worker.investigation
        if worker.snapshot.fatal_line is not None:
            self._end_for_line(worker, worker.snapshot.fatal_line, now)
            return
        if case is not None:
            if case.stage is not Stage.CONFIRMED:
                return
            left = [armed for armed in case.expired if worker.has_left(armed)]
            self._report_left(worker, left, _LEFT, now)
        if expired := worker.expired(now):
            # One process at a time, for each has stacks and signals of its own.
            pid = (expired if case is None else case.expired)[0].pid
            expired = [armed for armed in expired if armed.pid == pid]
        # It is killed in any case, so that a signal may have its stacks.
        may_signal = _is_killed(expired) and worker.snapshot.stack_signal > 0
        seen = HangEvidence() if case is None else case.evidence
        if not expired:
            worker.investigation = None
        elif worker.snapshot.is_debugged:
            self._withdraw(worker, expired, "a Python debugger waits for input", now)
        elif case is None:
            worker.investigation = Investigation(
                Stage.EXAMINED, expired=tuple(expired), standing=worker.standing()
            )
            self._take_evidence(worker, ASKED_SHARE if may_signal else 1.0, now)
        elif may_signal and not (seen.stacks or seen.is_stopped or seen.is_traced):
            case.stage, case.expired = Stage.CONDEMNED, tuple(expired)
            self._take_evidence(worker, 1 - ASKED_SHARE, now)
        else:
            self._decide(worker, expired, seen, now)

    def _take_evidence(self, worker: Worker, share: float, now: float) -> None:
        """Take it in this share of the time there is."""
        case = worker.investigation
        assert case is not None, "evidence of nothing"
        timeout_s = self._policy.evidence_timeout_s * share
        case.due = now + self._policy.evidence_timeout_s + EVIDENCE_LATE_S
        self._effects.append(
            msg.TakeEvidence(
                worker=worker.key,
                timeout_s=timeout_s,
                pid=case.expired[0].pid,
                is_by_signal=case.stage is Stage.CONDEMNED,
            )
        )

    def _on_evidence(self, worker: Worker, evidence: HangEvidence, now: float) -> None:
        """Look once more: meanwhile the worker may have gone on by itself."""
        case = worker.investigation
        if case is None or case.stage not in (Stage.EXAMINED, Stage.CONDEMNED):
            return  # late: it was decided without
        if case.stage is Stage.CONDEMNED:
            self._decide(worker, list(case.expired), evidence, now)
        elif not evidence.is_alive:
            if not case.expired[0].pid:  # else it may have ended long before its timer expired
                self._report_left(worker, case.expired, _ENDED, now)
            worker.investigation = None
            for armed in case.expired:
                worker.release(armed.slot.name, armed)
            if not case.expired[0].pid:
                del self.workers[worker.key]  # before the news of its end
        else:
            case.stage, case.evidence, case.due = Stage.CONFIRMED, evidence, math.inf
            self._read(worker)

    def _on_gone(self, key: WorkerKey, now: float) -> None:
        """Report what was found of a worker that is watched no more."""
        if (worker := self.workers.pop(key, None)) is None:
            return
        if worker.start_s is not None:
            longest_s = self._starts_s.get(key.local_rank, 0.0)
            self._starts_s[key.local_rank] = max(worker.start_s, longest_s)
        case = worker.investigation
        if case is not None and case.stage is Stage.CONDEMNED:
            self._decide(worker, list(case.expired), case.evidence, now)
        elif case is not None and case.stage not in (Stage.HELD, Stage.KILLING):
            self._report_left(worker, case.expired, _STOPPED, now)

    def _decide(
        self, worker: Worker, expired: list[Armed], evidence: HangEvidence, now: float
    ) -> None:
        """All that is over is handled together; the first with a valid signal decides."""
        if evidence.is_traced:
            self._withdraw(worker, expired, "a debugger holds the process", now)
            return
        worker.investigation = None
        deadly = [armed for armed in expired if armed.is_deadly]
        for armed in expired:
            if armed in deadly[:1] or not armed.is_deadly:
                self._report(worker, armed, _hang(worker, armed, evidence, now))
            # A process below the worker is judged once only: it ends, or has got the signal
            # that it asked for.
            if armed.pid or not armed.is_deadly:
                worker.release(armed.slot.name, armed)
            armed.due = math.inf
        if not deadly:
            return
        signum, pid, grace_s = deadly[0].slot.signal, deadly[0].pid, self._policy.kill_grace_s
        if _is_killed(deadly):
            if not self._has_judge or worker.key not in self.workers:
                self._end(worker, deadly, evidence, now)
                return
            worker.investigation = Investigation(
                Stage.HELD, now + self._policy.held_s, expired=tuple(deadly), evidence=evidence
            )
            return
        for armed in deadly:
            if armed.kind not in (HangKind.TIMER, HangKind.SECTION):
                # The worker never acquires these again, so they wait for what the signal does.
                armed.due = now + grace_s
        self._effects.append(msg.Signal(worker=worker.key, signum=signum or SIGTERM, pid=pid))

    def _end_for_line(self, worker: Worker, line: msg.FatalLine, now: float) -> None:
        """Kill a worker for what it wrote; evidence of other ranks is not waited for."""
        case = worker.investigation
        if case is not None and case.stage in (Stage.CONDEMNED, Stage.KILLING):
            return
        if case is not None and case.stage is not Stage.HELD:
            self._report_left(worker, case.expired, _FATAL, now)
        expired = case.expired if case is not None and case.stage is Stage.HELD else ()
        self._effects.append(msg.EndForLine(worker=worker.key, line=line))
        due = now + self._policy.kill_grace_s
        worker.investigation = Investigation(Stage.KILLING, due, expired=expired)
        self._kill(worker, SIGTERM, now)

    def _on_released(self, event: msg.HeldReleased, now: float) -> None:
        of_round = [
            worker for worker in self.workers.values() if worker.key.round_id == event.round_id
        ]
        for worker in of_round:
            case = worker.investigation
            if case is not None and case.stage is Stage.HELD:
                if all(armed.number <= event.number for armed in case.expired):
                    self._end(worker, case.expired, case.evidence, now)
            elif case is None:
                self._end_on_order(worker, event.number, now)

    def _end_on_order(self, worker: Worker, number: int, now: float) -> None:
        """Kill a worker for what the coordinator alone can judge."""
        for armed in worker.limits():
            if worker.is_ended_on_order(armed) and 0 < armed.number <= number:
                hang = _hang(worker, armed, HangEvidence(), now)
                self._effects.append(msg.Report(worker=worker.key, hang=hang, is_ending=True))
                self._end(worker, [armed], HangEvidence(), now)
                return

    def _end(
        self, worker: Worker, deadly: Sequence[Armed], evidence: HangEvidence, now: float
    ) -> None:
        """Kill a worker: with SIGKILL after its grace, at once if it could not notice SIGTERM."""
        graces = (armed.slot.grace_s for armed in deadly if armed.slot.grace_s is not None)
        grace_s = min(self._policy.kill_grace_s, *graces, math.inf)
        worker.investigation = Investigation(
            Stage.KILLING, now + grace_s, expired=tuple(deadly), evidence=evidence
        )
        signum = deadly[0].slot.signal or (SIGKILL if evidence.is_stopped else SIGTERM)
        self._kill(worker, signum, now)

    def _kill(self, worker: Worker, signum: int, now: float) -> None:
        """Send a signal. If it is SIGKILL, a worker that survives it is reported."""
        case = worker.investigation
        assert case is not None, "nothing to kill it for"
        if signum == SIGKILL:
            case.killed_at, case.due = now, now + self._policy.unkilled_every_s
        self._effects.append(msg.Signal(worker=worker.key, signum=signum))

    def _withdraw(self, worker: Worker, expired: list[Armed], why: str, now: float) -> None:
        worker.investigation = None
        # Also those that were over only while the debugger held the process.
        meanwhile = [armed for armed in worker.expired(now) if armed.pid == expired[0].pid]
        for armed in (*expired, *meanwhile):
            armed.due = now + armed.limit_s
        why += "; the limits count anew from now"
        self._effects.append(msg.Warn(worker=worker.key, event="hang not judged", reason=why))

    def _report_left(
        self, worker: Worker, left: Iterable[Armed], aftermath: str, now: float
    ) -> None:
        """Report limits that were over, without ending a worker."""
        case = worker.investigation
        assert case is not None, "nothing was over"
        for armed in left:
            hang = replace(_hang(worker, armed, case.evidence, now), standing=case.standing)
            self._report(worker, armed, hang, aftermath)

    def _report(self, worker: Worker, armed: Armed, hang: Hang, aftermath: str = "") -> None:
        if not aftermath:
            self._reported += 1
            armed.number = self._reported
            self._exceeding.add(worker.key)
        self._effects.append(
            msg.Report(
                worker=worker.key,
                pid=armed.pid,
                hang=hang,
                is_ending=armed.is_deadly and not aftermath,
                signal=armed.slot.signal,
                aftermath=aftermath,
            )
        )


def _hang(worker: Worker, armed: Armed, evidence: HangEvidence, now: float) -> Hang:
    return Hang(
        kind=armed.kind,
        scope=armed.slot.name,
        limit_s=armed.limit_s,
        elapsed_s=now - armed.slot.since,
        standing=worker.standing(),
        noticed_at=now,
        evidence=evidence,
        purpose=armed.slot.purpose,
    )


def _is_killed(expired: Sequence[Armed]) -> bool:
    """Whether a worker does not survive what is over: it can't handle the last signal for it."""
    deadly = next((armed for armed in expired if armed.is_deadly), None)
    return deadly is not None and not deadly.pid and deadly.slot.signal in (None, SIGKILL)
