"""Pure. This host's part in the iterations of a round; what is repeated or late changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import WorkerExited
from drumbeat.agent.core.inprocess.worker import Fault, Worker, shortened
from drumbeat.agent.core.model import NO_ITERATION, NO_ROUND, InprocessReport, WorkerStep
from drumbeat.agent.failures.exit_status import describe_exit
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)

SIGTERM, SIGKILL = 15, 9

WONDER_S = 2.0

# It waits for an iteration, or soon will.
_WAITING = (InprocessStep.ENTERED, InprocessStep.INTERRUPTED)

TRACEBACKS_TOLD_MAX = 4
"""Workers of one host whose tracebacks are shown with one restart; they may all fail at once."""


class HostIterations:
    """The in-process part of one round on this host. Not thread-safe; one owner calls it.

    The owner calls ``settle`` after every event. ``report`` is as of then.
    ``has_failed``: a worker's end was excused, but fell outside of an iteration.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._size, self._shutdown_timeout_s = config.nproc_per_node, config.shutdown_timeout
        self._latest: InprocessDirective | None = None
        self.begin_round(NO_ROUND)

    def begin_round(self, round_id: int) -> None:
        """Forget everything but a directive of this very round, which may be ahead of us."""
        self._round_id = round_id
        self.workers = [Worker(local_rank=rank) for rank in range(self._size)]
        self._has_started = self._is_stopping = self.has_failed = False
        self._dismissed_until: float | None = None
        self._notices = RestartNotices(round_id)
        # The iterations that all, that any of the workers are in, and the latest complete one.
        self._low = self._top = self._completed = NO_ITERATION
        # What went wrong, by iteration and worker, in the order in which it did.
        self._broken: dict[tuple[int, int], Interruption] = {}
        self.report: InprocessReport | None = None
        self._follow()

    def started(self, pids: Mapping[int, int]) -> None:
        """Note that all workers of the round run."""
        self._has_started = True
        for worker in self.workers:
            worker.pid = pids.get(worker.local_rank, 0)

    def stopping(self) -> None:
        """Note that all workers are being stopped: they are told nothing more."""
        self._is_stopping = True
        for worker in self.workers:
            worker.kill_at = None

    def dismiss(self, reason: str, *, now: float) -> list[fx.Effect] | None:
        """Tell workers that wait for an iteration to end by themselves, now that none follows.

        ``None``: all are to be stopped now, because one does something else or their time is up.
        """
        alive, effects = [w for w in self.workers if not w.is_gone], list[fx.Effect]()
        if self._dismissed_until is None:
            waiting = [w for w in alive if w.left is None and w.phase in _WAITING]
            ending = [w for w in alive if w.has_exited or (w.fault and w.has_said_so)]
            if not self.is_on or len(waiting) + len(ending) < len(alive):
                return None
            self._dismissed_until = now + self._shutdown_timeout_s
            effects += [worker.dismiss(self._round_id, reason, at=now) for worker in waiting]
        return effects if alive and now < self._dismissed_until else None

    def directed(self, directive: InprocessDirective, *, now: float) -> list[fx.Effect]:
        """Take the coordinator's directive; a repeated or older one changes nothing."""
        if self._latest is not None and directive.order <= self._latest.order:
            return []
        self._latest = directive
        if directive.round_id != self._round_id:
            return []
        iteration = directive.iteration
        if isinstance(directive.kind, IterationComplete) and iteration > self._completed:
            # Of a worker that has left an iteration which was complete, as we hear only now.
            left = [w for w in self.workers if w.left is not None and not w.has_exited]
            self.has_failed |= any(w.iteration == iteration and w.seat is not None for w in left)
        self._follow()
        if isinstance(directive.kind, IterationBegin):
            return self._notices.began(iteration, now=now)
        if isinstance(directive.kind, IterationInterrupt):
            self._notices.interrupted(directive.kind.reason, now=now)
        return []

    def step_taken(self, step: WorkerStep, *, now: float) -> Fault | None:
        """Take a worker's step; return what is to be written down at once."""
        worker = self.workers[step.worker.local_rank]
        is_ours = step.worker.round_id == self._round_id and worker.left is None
        if not is_ours or not self._is_running:
            return None
        iteration, why = step.iteration, step.interruption
        is_current = iteration == worker.iteration
        is_open = is_current and iteration > self._completed
        match step.kind:
            case "entered":
                return self._enter(worker, step, now)
            case "completed":
                # A spare may still say so after all have completed.
                if is_current and worker.phase is InprocessStep.RUNNING:
                    worker.phase = InprocessStep.COMPLETED
            case "interrupted" if is_open and (why is None or why.kind.is_survived):
                return self._interrupted(worker, why, now)
            case kind if why is not None and (is_open or kind == "terminated"):
                self._terminated(worker, why, iteration, now)
        return None

    def exited(self, event: WorkerExited) -> Fault | None:
        """Note the end of a worker that was alive; ``None``: no matter of in-process restart."""
        worker = self.workers[event.local_rank]
        if (fault := worker.gone()) is not None:
            return fault
        hang = event.hang
        if worker.has_exited and self._is_engaged and not event.is_stopped and event.exit_code:
            # It has failed after all, at what it did after the function.
            return self._leave(worker, worker.interruption_by(event), at=event.ended_at)
        # One that has ended well after its last iteration has done all it wanted to.
        is_good = event.exit_code == 0 and not event.is_faulty
        is_well = is_good and NO_ITERATION < worker.iteration <= self._completed
        is_by_itself = not event.is_stopped or event.is_faulty
        if is_by_itself and worker.left is None and self._is_engaged and not is_well:
            at = event.failed_at
            stacks = hang.evidence.stacks if hang is not None else ""
            self._notices.failed(worker.local_rank, stacks, now=at)
            return self._leave(worker, worker.interruption_by(event), at=at)
        ending = f"it ended outside of an iteration: {describe_exit(event.exit_code)}"
        worker.left = worker.left or worker.interruption(InterruptionKind.TERMINATED, ending)
        return None

    @property
    def is_on(self) -> bool:
        """Whether an iteration is entered or under way: the end of a worker fails nothing."""
        return self._is_running and self._is_engaged

    @property
    def deadline(self) -> float | None:
        """When to call ``settle`` again if nothing happens."""
        instants = [worker.kill_at for worker in self.workers]
        if not self._is_stopping and not all(worker.is_gone for worker in self.workers):
            instants.append(self._dismissed_until)
        if self._is_running:
            instants += [self._notices.tell_at, self._notices.wait_at]
        return min((instant for instant in instants if instant is not None), default=None)

    def settle(self, *, now: float) -> list[fx.Effect]:
        """Return what is to be done, and bring ``report`` up to date. Linear in workers."""
        effects: list[fx.Effect] = []
        if self._is_running:
            if (directive := self._directive) is not None:
                for worker in self.workers:
                    effects += self._settle(worker, directive, now)
            effects += self._notices.review(self._waiting_for(), now=now)
        for worker in self.workers:
            if worker.kill_at is not None and now >= worker.kill_at:
                worker.kill_at = None
                effects.append(self._end(worker, SIGKILL))
        self._update_report()
        return effects

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        for worker in self.workers:
            assert worker.fault is None or (worker.left and not worker.is_gone), "no record due"
            assert worker.kill_at is None or worker.fault, "a worker in good standing is killed"
            assert worker.iteration <= self._top, "an iteration above the top"
            assert worker.phase is not InprocessStep.RUNNING or worker.seat, "runs without a seat"
        assert self.report is None or self.report.iteration <= self._top

    @property
    def _is_running(self) -> bool:
        return self._has_started and not self._is_stopping and self._dismissed_until is None

    @property
    def _is_engaged(self) -> bool:
        return self._has_started and self._top > self._completed

    def _enter(self, worker: Worker, step: WorkerStep, now: float) -> Fault | None:
        if step.iteration <= worker.iteration:
            return None
        worker.iteration, worker.phase = step.iteration, InprocessStep.ENTERED
        worker.spec, worker.group, worker.seat = step.spec, step.group, None
        self._top = max(self._top, step.iteration)
        beside = (w for w in self.workers if w.left is None and w.iteration == step.iteration)
        if (other := next((w for w in beside if w.spec != worker.spec), None)) is None:
            return None
        message = (
            "the settings of its in-process restart differ from those of local rank "
            f"{other.local_rank}; all workers must be given the same"
        )
        why = worker.interruption(InterruptionKind.TERMINATED, message)
        return replace(self._leave(worker, why, at=now), is_fatal=True)

    def _interrupted(self, worker: Worker, why: Interruption | None, now: float) -> Fault | None:
        worker.phase = InprocessStep.INTERRUPTED
        key = (worker.iteration, worker.local_rank)
        if why is None or key in self._broken:
            return None
        self._broken[key] = shortened(why)
        self._notices.failed(worker.local_rank, why.traceback, now=now)
        return worker.fault_by(why, worker.iteration, at=now)

    def _terminated(self, worker: Worker, why: Interruption, iteration: int, now: float) -> None:
        iteration = max(iteration, worker.iteration)
        if iteration <= self._completed:
            return  # outside of an iteration: its end counts, as that of any process
        self._top = max(self._top, iteration)
        if why.kind.is_survived:
            why = replace(why, kind=InterruptionKind.TERMINATED)
        fault, worker.has_said_so = self._leave(worker, why, at=now), True
        if not worker.has_exited:
            worker.fault = fault
            self._notices.failed(worker.local_rank, why.traceback, now=now)

    def _leave(self, worker: Worker, why: Interruption, *, at: float) -> Fault:
        is_inside = worker.iteration > self._completed
        fault = worker.fault_by(why, worker.iteration if is_inside else self._top, at=at)
        if is_inside and worker.has_begun and not worker.has_exited:
            self._broken.setdefault((worker.iteration, worker.local_rank), shortened(why))
        return fault

    @property
    def _directive(self) -> InprocessDirective | None:
        latest = self._latest
        return latest if latest is not None and latest.round_id == self._round_id else None

    def _follow(self) -> None:
        if (directive := self._directive) is not None:
            self._top = max(self._top, directive.iteration)
            if isinstance(directive.kind, IterationComplete):
                self._completed = directive.iteration

    def _settle(self, worker: Worker, directive: InprocessDirective, now: float) -> list[fx.Effect]:
        if worker.left is not None:
            # An iteration that counts on a worker that has left can't go on.
            has_done_it = worker.has_exited and worker.iteration == directive.iteration
            if not has_done_it and worker.seat_in(directive) is not None:
                self._broken.setdefault((directive.iteration, worker.local_rank), worker.left)
            return []
        if not worker.is_left_behind(directive):
            order = worker.obey(directive)
            return [] if order is None else [order]
        worker.kill_at = now + self._shutdown_timeout_s
        why = f"local rank {worker.local_rank}: {worker.discard(directive.iteration, at=now)}"
        tell = fx.Tell(what="worker given up", why=why, round_id=self._round_id)
        return [tell, self._end(worker, SIGTERM)]

    def _end(self, worker: Worker, signum: int) -> fx.SignalWorkers:
        return fx.SignalWorkers(
            round_id=self._round_id, local_rank=worker.local_rank, signum=signum, is_for_group=True
        )

    def _update_report(self) -> None:
        if self._top == NO_ITERATION:
            return
        present = [worker for worker in self.workers if worker.left is None]
        if present:
            low = min(worker.iteration for worker in present)
        elif self._low == NO_ITERATION:
            low = self._top
        else:  # those that were behind are gone
            low = max(worker.iteration for worker in self.workers)
        low = self._low = max(self._low, low)
        step = self._step(present)
        self._broken = {key: why for key, why in self._broken.items() if key[0] >= low - 1}
        # They need not be waited for in what this host is at.
        if step is InprocessStep.RUNNING:
            ahead = [w for w in present if w.phase is InprocessStep.COMPLETED and not w.is_spare]
        else:
            ahead = [
                w for w in present if (w.phase, w.iteration) == (InprocessStep.ENTERED, low + 1)
            ]
        entered = present if step is InprocessStep.ENTERED else ahead
        is_entry = bool(entered) and step is not InprocessStep.RUNNING
        groups = tuple(worker.group for worker in self.workers) if is_entry else ()
        self.report = InprocessReport(
            iteration=max(low, 0),
            step=step,
            terminated=tuple(w.left for w in self.workers if w.left is not None),
            interruptions=self._interruptions_in(low),
            spec=entered[0].spec if is_entry else None,
            groups=groups if any(groups) else (),
            ahead=tuple(worker.local_rank for worker in ahead),
            before=self._interruptions_in(low - 1) if step is InprocessStep.ENTERED else (),
        )

    def _interruptions_in(self, iteration: int) -> tuple[Interruption, ...]:
        return tuple(why for key, why in self._broken.items() if key[0] == iteration)

    def _waiting_for(self) -> str:
        """Return what workers of this host wait for to begin an iteration, empty if none does."""
        present = [worker for worker in self.workers if worker.left is None]
        if not any(worker.phase is InprocessStep.ENTERED for worker in present):
            return ""
        iteration = max(worker.iteration for worker in present)
        late = [str(worker.local_rank) for worker in present if worker.iteration < iteration]
        if not late:
            return f"iteration {iteration} has yet to begin, all of this host have entered it"
        ranks = f"local rank{'s' * (len(late) > 1)} {', '.join(late)}"
        why = "" if self._low != NO_ITERATION else ", which never called the function"
        return f"iteration {iteration} waits for {ranks}{why}"

    def _step(self, present: list[Worker]) -> InprocessStep:
        """Return the least that any of those that take part has reached."""
        low = self._low
        if low in (NO_ITERATION, self._completed):
            return InprocessStep.OUTSIDE if low == NO_ITERATION else InprocessStep.COMPLETED
        is_broken = any(iteration == low for iteration, _ in self._broken)
        if not present and not is_broken:
            last = [worker for worker in self.workers if worker.iteration == low]
            is_done = bool(last) and all(worker.has_exited for worker in last)
            return InprocessStep.COMPLETED if is_done else InprocessStep.INTERRUPTED
        phases = {worker.phase for worker in present if not worker.is_spare}
        has_passed = any(worker.iteration > low for worker in present)
        is_cut = any(worker.phase is InprocessStep.INTERRUPTED for worker in present)
        if not present or is_broken or has_passed or is_cut:
            return InprocessStep.INTERRUPTED
        if InprocessStep.ENTERED in phases:
            return InprocessStep.ENTERED
        return InprocessStep.RUNNING if InprocessStep.RUNNING in phases else InprocessStep.COMPLETED


class RestartNotices:
    """What the console says of a restart in process: one line, once it has worked.

    Or one of the interruption at ``tell_at``, if what follows takes long enough to wonder; and what
    an iteration waits for at ``wait_at``, at growing intervals.
    """

    def __init__(self, round_id: int) -> None:
        self._round_id = round_id
        self.tell_at: float | None = None
        self.wait_at: float | None = None
        self._waits_since = 0.0
        self._since: float | None = None
        self._why = ""
        self._tracebacks: dict[int, str] = {}

    def failed(self, local_rank: int, traceback: str, *, now: float) -> None:
        """Note what a worker of this host did to the iteration."""
        self._since = now if self._since is None else self._since
        if traceback and len(self._tracebacks) < TRACEBACKS_TOLD_MAX:
            self._tracebacks.setdefault(local_rank, traceback)

    def interrupted(self, why: str, *, now: float) -> None:
        """Note that it was interrupted everywhere, and why."""
        self._since = now if self._since is None else self._since
        self._why, self.tell_at = why, now + WONDER_S

    def review(self, waiting_for: str, *, now: float) -> list[fx.Effect]:
        """Tell what takes long: what follows an interruption, or what workers here wait for."""
        effects: list[fx.Effect] = []
        if self.tell_at is not None and now >= self.tell_at:
            effects.append(self._tell("iteration interrupted", self._why))
        if not waiting_for:
            self.wait_at = None
        elif self.wait_at is None:
            self._waits_since, self.wait_at = now, now + WONDER_S
        elif now >= self.wait_at:
            waited_s = now - self._waits_since
            self.wait_at, why = now + waited_s, f"{waiting_for}, {waited_s:.0f} s so far"
            effects.append(fx.Tell(what="iteration waiting", why=why, round_id=self._round_id))
        return effects

    def began(self, iteration: int, *, now: float) -> list[fx.Effect]:
        """Tell that the function runs again, if it was interrupted before."""
        if self._since is None:
            return []
        took = f"iteration {iteration} began {now - self._since:.2f} s later"
        self._since = None
        why = f"{self._why}; {took}" if self._why else took
        return [self._tell("restarted in process", why)]

    def _tell(self, what: str, why: str) -> fx.Tell:
        tracebacks = sorted(self._tracebacks.items())
        details = "\n".join(f"local rank {rank}:\n{text.rstrip()}" for rank, text in tracebacks)
        self.tell_at, self._why, self._tracebacks = None, "", {}
        return fx.Tell(what=what, why=why, round_id=self._round_id, details=details)
