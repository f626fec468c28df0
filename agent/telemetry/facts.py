"""Pure. What has happened to an agent: one account for its status, outcome, telemetry and metrics.

``AgentFacts`` follows events and effects; what it returns are facts, which others only write down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import NO_ROUND, DesiredState, Exit, Failure
from drumbeat.inprocess import InprocessDirective, IterationBegin, IterationInterrupt
from drumbeat.model import Assignment, Standby

# How a worker ended: by itself with 0 or badly, also if it could not be started; or by the agent,
# also if that did not start it because another could not be.
Status = Literal["SUCCEEDED", "FAILED", "TERMINATED"]


class RoundFacts(Struct):
    """This host's part of a round; workers by local rank, and no failures that they survived."""

    assignment: Assignment
    pids: Mapping[int, int] = field(default_factory=dict)
    started_at: float = 0.0
    exits: dict[int, ev.WorkerExited] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_since: float | None = None
    is_over: bool = False  # nothing of it is alive

    def status_of(self, local_rank: int) -> Status:
        """Return how a worker ended; as stopped if it has not."""
        failure, ending = self.failures.get(local_rank), self.exits.get(local_rank)
        if failure is not None and not failure.is_stopped_by_agent:
            return "FAILED"
        is_good = ending is not None and ending.exit_code == 0 and not ending.is_stopped
        return "SUCCEEDED" if is_good else "TERMINATED"

    def saw(self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Note an event, and what the core made of it."""
        round_id = self.assignment.round_id
        match event:
            case ev.WorkersStarted() if event.round_id == round_id:
                self.pids, self.started_at = event.pids, now
            case ev.WorkerExited() if event.round_id == round_id:
                self.exits.setdefault(event.local_rank, event)
            case ev.WorkersStopped(round_id=stopped):
                self.is_over = self.is_over or stopped == round_id
            case ev.SupervisorDied(has_lived=True):
                self.is_over = True
        for effect in effects:
            match effect:
                case fx.StopWorkers() if effect.round_id == round_id:
                    self.stopped_since = now
                case fx.WriteFailure(failure=Failure(is_survived=False) as failure) if (
                    failure.round_id == round_id
                ):
                    self.failures.setdefault(failure.local_rank, failure)


class StageEnded(NamedTuple):
    """The wait for a round, the start of its workers or their stop is over."""

    stage: Literal["rendezvous", "start", "stop"]
    round_id: int | None
    took_s: float
    is_success: bool = True


class RestartedInProcess(NamedTuple):
    """The workers of this host go on after an interruption."""

    round_id: int
    iteration: int
    reason: str
    took_s: float


# A round: all its workers have ended. An event: a limit of a worker of the latest round is over, or
# a signal was sent for that. An effect: the agent ends.
Fact = (
    StageEnded | RoundFacts | RestartedInProcess | ev.LimitExpired | ev.WorkerSignalled | fx.Finish
)


class AgentFacts(Struct):
    """One agent, from the first call of ``saw`` on. ``latest``: its latest round.

    ``remaining`` are restarts of the run, ``None`` before a round. ``assigned_round`` may be a
    round that has not begun here. ``is_awaiting_round``: a round, and not the end of the run.
    ``counts`` are of sessions, rounds, restarts, workers ended and hangs, by a label.
    """

    name: str
    pid: int
    began_at: float
    local_world_size: int = 1
    verdict: Exit | None = None
    latest: RoundFacts | None = None
    started_at: float = 0.0
    restart_count: int = 0
    remaining: int | None = None
    assigned_round: int | None = None
    is_awaiting_round: bool = True
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _assigned_at: float = 0.0
    _idle_since: float | None = 0.0  # without a round to run
    _attempt: int = 0
    _ended_round: int = NO_ROUND  # the latest whose workers' ends were told
    # Round and iteration of the latest interruption; its reason and instant until a restart.
    _interrupted_key: tuple[int, int] = (NO_ROUND, 0)
    _interrupted: tuple[str, float] | None = None

    def saw(
        self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float
    ) -> list[Fact]:
        """Take in an event (``None``: the start), and what the core made of it."""
        if event is None:
            self.started_at = self._assigned_at = self._idle_since = now
        latest = self.latest
        current = None if latest is None or latest.is_over else latest
        if latest is not None:
            latest.saw(event, effects, now=now)
        facts = [] if event is None else [*self._on_event(event, current, now)]
        if current is not None:
            facts += self._on_end(current, event, now)
        for effect in effects:
            match effect:
                case fx.OpenSession(attempt=attempt):
                    self._attempt = attempt
                case fx.StartRound(assignment=assignment):
                    self.latest = RoundFacts(assignment)
                case fx.WriteFailure(failure=Failure(interruption=None) as failure):
                    if failure.round_id == self.assigned_round:
                        self._become_idle(now)
                case fx.Finish(exit_code=code):
                    if code and self.is_awaiting_round and (since := self._idle_since) is not None:
                        took_s = now - since
                        facts.append(StageEnded("rendezvous", self.assigned_round, took_s, False))
                    facts.append(effect)
        return facts

    def _on_event(self, event: ev.Event, current: RoundFacts | None, now: float) -> Iterator[Fact]:
        round_id = None if current is None else current.assignment.round_id
        match event:
            case ev.SessionWelcomed():
                self.name = event.name or self.name
            case ev.SessionLost():
                self.counts["sessions_lost", ""] += 1
                self.verdict = event.verdict or self.verdict
                if event.is_stale and event.attempt == self._attempt:
                    self._become_idle(now, is_awaiting_round=True)
            case ev.DirectiveReceived(attempt=self._attempt, state=state):
                yield from self._on_desired(state, now)
            case ev.OrderReceived(attempt=self._attempt, order=InprocessDirective() as directive):
                yield from self._on_directive(directive, now)
            case ev.WorkersStarted() | ev.WorkerStartFailed() if event.round_id == round_id:
                is_success = isinstance(event, ev.WorkersStarted)
                yield StageEnded("start", round_id, now - self._assigned_at, is_success)
            case ev.LimitExpired() | ev.WorkerSignalled() if event.worker.round_id == round_id:
                if isinstance(event, ev.LimitExpired):
                    self.counts["hangs", event.hang.kind.lower()] += 1
                yield event

    def _on_desired(self, desired: DesiredState, now: float) -> Iterator[Fact]:
        match desired:
            case Exit():
                self.verdict = desired
            case Standby():
                self._become_idle(now, is_awaiting_round=True)
            case Assignment(round_id=round_id) if round_id != self.assigned_round:
                idle_since, self._idle_since = self._idle_since, None
                self.is_awaiting_round = False
                self.assigned_round, self._assigned_at = round_id, now
                self.restart_count = desired.restart_count
                self.remaining = max(0, desired.restarts_max - desired.restarts_used)
                if self.counts["rounds", ""]:
                    self.counts["restarts", "round"] += 1
                self.counts["rounds", ""] += 1
                took_s = 0.0 if idle_since is None else now - idle_since
                yield StageEnded("rendezvous", round_id, took_s)

    def _on_directive(self, directive: InprocessDirective, now: float) -> Iterator[Fact]:
        """Follow restarts in process, of which a repeated directive makes no new one."""
        key = (directive.round_id, directive.iteration)
        if key <= self._interrupted_key:
            return
        match directive.kind:
            case IterationInterrupt(reason=reason):
                self._interrupted_key, self._interrupted = key, (reason, now)
            case IterationBegin() if self._interrupted is not None:
                (reason, since), self._interrupted = self._interrupted, None
                if directive.round_id != self._interrupted_key[0]:
                    return
                self.counts["restarts", "in_process"] += 1
                yield RestartedInProcess(*key, reason, now - since)

    def _on_end(self, current: RoundFacts, event: ev.Event | None, now: float) -> Iterator[Fact]:
        """Tell once how the workers of a round ended: when all are gone, or have succeeded."""
        round_id = current.assignment.round_id
        statuses = [current.status_of(rank) for rank in range(self.local_world_size)]
        is_ended = current.is_over or {*statuses} == {"SUCCEEDED"}
        if is_ended and round_id != self._ended_round:
            self._ended_round = round_id
            self.counts.update(("workers_ended", status.lower()) for status in statuses)
            yield current
        if current.is_over and (since := current.stopped_since) is not None:
            is_clean = isinstance(event, ev.WorkersStopped) and not event.stuck_pids
            yield StageEnded("stop", round_id, now - since, is_clean)

    def _become_idle(self, now: float, *, is_awaiting_round: bool = False) -> None:
        self._idle_since = now if self._idle_since is None else self._idle_since
        self.is_awaiting_round = self.is_awaiting_round or is_awaiting_round
