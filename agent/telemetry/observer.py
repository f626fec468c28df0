"""Pure. What an agent's doings mean for telemetry: events and metrics, and nothing else.

An observer sees every event of the core with the effects that answered it. It
decides nothing: without it the agent does exactly the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from signal import Signals

from agent.core import effects as fx
from agent.core import events as ev
from agent.core.agent import EXIT_SIGNAL, EXIT_SUCCESS
from agent.core.inprocess.model import Begin, InprocessDirective, Interrupt
from agent.core.model import Assignment, DesiredState, Exit, Failure, Standby
from agent.settings.config import AgentConfig
from agent.telemetry.api import WorkerGroup, WorkerState, worker_group, worker_spec
from agent.telemetry.items import Event, EventSource, Item, Metric, Value

RENDEZVOUS_DURATION = "rendezvous.duration.ms"
RESTARTED_IN_PROCESS = "drumbeat.agent.inprocess.RESTARTED"
START_DURATION = "start.duration.ms"
STOP_DURATION = "stop.duration.ms"
RUN_DURATION = "run.duration.ms"

# Names of events.
LIMIT_EXPIRED = "drumbeat.watchdog.expired"
WORKER_SIGNALLED = "drumbeat.watchdog.signalled"


class Status(StrEnum):
    """How a worker, or the agent, ended."""

    SUCCEEDED = "SUCCEEDED"
    """It exited with 0 by itself."""
    FAILED = "FAILED"
    """It ended badly by itself, or could not be started."""
    TERMINATED = "TERMINATED"
    """The agent stopped it, or never started it because another failed to start."""


@dataclass(slots=True, kw_only=True)
class _Round:
    """One round of this host, as it is seen so far."""

    assignment: Assignment
    group: WorkerGroup
    exits: dict[int, ev.WorkerExited] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_since: float | None = None
    is_told: bool = False

    def status(self, local_rank: int) -> Status:
        failure, ending = self.failures.get(local_rank), self.exits.get(local_rank)
        if failure is not None and not failure.is_stopped_by_agent:
            return Status.FAILED
        if ending is not None and ending.exit_code == 0 and not ending.is_stopped:
            return Status.SUCCEEDED
        return Status.TERMINATED

    def has_succeeded(self) -> bool:
        return all(self.status(w.local_rank) is Status.SUCCEEDED for w in self.group.workers)

    def state(self) -> WorkerState:
        """Return what became of this host's workers, as a unit."""
        found = {self.status(worker.local_rank) for worker in self.group.workers}
        if Status.FAILED in found:
            return WorkerState.FAILED
        return WorkerState.STOPPED if Status.TERMINATED in found else WorkerState.SUCCEEDED


@dataclass(slots=True, kw_only=True)
class _Interrupted:
    """The latest interruption: its round and iteration, and whether a restart followed."""

    key: tuple[int, int]
    reason: str
    at: float
    is_over: bool = False


class Observer:
    """Turns what an agent's core sees and does into events and metrics.

    ``epoch_s`` is what to add to the monotonic clock to get seconds since 1970.
    """

    def __init__(self, config: AgentConfig, *, host: str, epoch_s: float, now: float) -> None:
        self._config = config
        self._host = host
        self._epoch_s = epoch_s
        self._started_at = now
        self._spec = worker_spec(config)
        self._attempt = 0
        self._round: _Round | None = None
        self._restart_count = 0
        self._reason = ""  # of the run's verdict
        self._interrupted: _Interrupted | None = None
        self._restarts_in_process = 0
        # Since when this host has no round to run, and since when it has the latest one.
        self._idle_since: float | None = now
        self._is_awaiting_round = True  # and not the end of the run
        self._assigned_round: int | None = None
        self._assigned_at = now
        self._items: list[Item] = []

    def saw(
        self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float
    ) -> list[Item]:
        """Take in an event (``None``: the start) with its effects; return what is to be told.

        ``now`` is the instant the core was given.
        """
        if event is not None:
            self._on_event(event, now)
        for effect in effects:
            if isinstance(effect, fx.WriteFailure):
                self._on_failure(effect.failure, now)
        # Only now: a round ends with all its failures known, and before the next one starts.
        self._end_round_if_over(event, now)
        for effect in effects:
            self._on_effect(effect, now)
        done, self._items = self._items, []
        return done

    # What happened.

    def _on_event(self, event: ev.Event, now: float) -> None:
        current = self._round
        match event:
            case ev.DirectiveReceived(attempt=attempt, state=desired):
                if attempt == self._attempt:
                    self._on_desired(desired, now)
            case ev.SessionLost(attempt=attempt, is_stale=True):
                if attempt == self._attempt:
                    self._note_idle(now)
                    self._is_awaiting_round = True
            case ev.InprocessDirected(attempt=attempt, directive=directive):
                if attempt == self._attempt:
                    self._on_directive(directive, now)
            case ev.WorkersStarted() | ev.WorkerStartFailed() | ev.WorkerExited():
                if current is not None and event.round_id == current.assignment.round_id:
                    self._on_worker(current, event, now)
            case ev.LimitExpired() | ev.WorkerSignalled():
                if current is not None and event.worker.round_id == current.assignment.round_id:
                    self._tell_watchdog(current, event, now)
            case _:
                pass

    def _on_worker(
        self,
        current: _Round,
        event: ev.WorkersStarted | ev.WorkerStartFailed | ev.WorkerExited,
        now: float,
    ) -> None:
        round_id, since = event.round_id, self._assigned_at
        match event:
            case ev.WorkersStarted():
                current.group = current.group.with_ids(event.pids)
                self._put_of_workers("healthy", 1, now)
                self._put_result(START_DURATION, round_id, since, now)
            case ev.WorkerStartFailed():
                self._put_result(START_DURATION, round_id, since, now, is_success=False)
            case ev.WorkerExited():
                current.exits.setdefault(event.local_rank, event)

    def _on_desired(self, desired: DesiredState, now: float) -> None:
        match desired:
            case Standby():
                self._note_idle(now)
                self._is_awaiting_round = True
            case Assignment() as assignment if assignment.round_id != self._assigned_round:
                idle_since = now if self._idle_since is None else self._idle_since
                self._idle_since, self._is_awaiting_round = None, False
                self._assigned_round, self._assigned_at = assignment.round_id, now
                self._restart_count = assignment.restart_count
                self._put_result(RENDEZVOUS_DURATION, assignment.round_id, idle_since, now)
                self._put_of_workers("remaining_restarts", self._remaining_restarts(), now)
            case Exit(reason=reason):
                self._reason = reason
            case _:
                pass

    def _on_directive(self, directive: InprocessDirective, now: float) -> None:
        """Follow restarts in process, of which a repeated directive makes no new one."""
        key = directive.round_id, directive.iteration
        match directive.kind:
            case Interrupt(reason=reason):
                if self._interrupted is None or self._interrupted.key < key:
                    self._interrupted = _Interrupted(key=key, reason=reason, at=now)
            case Begin():
                before = self._interrupted
                if before is not None and not before.is_over and key > before.key:
                    before.is_over = True
                    if key[0] == before.key[0]:
                        self._restarts_in_process += 1
                        self._tell_restart(directive.iteration, before, now)

    def _on_failure(self, failure: Failure, now: float) -> None:
        if self._round is None or failure.round_id != self._round.assignment.round_id:
            return
        if failure.is_survived:
            return  # the worker may still succeed
        self._round.failures.setdefault(failure.local_rank, failure)
        if failure.round_id == self._assigned_round and failure.interruption is None:
            self._note_idle(now)

    def _on_effect(self, effect: fx.Effect, now: float) -> None:
        match effect:
            case fx.OpenSession(attempt=attempt):
                self._attempt = attempt
            case fx.StartWorkers(assignment=assignment):
                group = worker_group(self._config, assignment)
                self._round = _Round(assignment=assignment, group=group)
            case fx.StopWorkers(round_id=round_id):
                current = self._round
                if current is not None and current.assignment.round_id == round_id:
                    current.stopped_since = now
            case fx.Finish():
                self._tell_end(effect, now)
            case _:
                pass

    def _note_idle(self, now: float) -> None:
        if self._idle_since is None:
            self._idle_since = now

    def _end_round_if_over(self, event: ev.Event | None, now: float) -> None:
        current = self._round
        if current is None:
            return
        is_gone = isinstance(event, ev.SupervisorDied) or (
            isinstance(event, ev.WorkersStopped) and event.round_id == current.assignment.round_id
        )
        if not current.is_told and (is_gone or current.has_succeeded()):
            current.is_told = True
            for worker in current.group.workers:
                self._tell_worker(current, worker.local_rank, now)
            self._put_of_workers(current.state().lower(), 1, now)
        if is_gone:
            self._round = None
            if current.stopped_since is not None:
                round_id = current.assignment.round_id
                is_clean = isinstance(event, ev.WorkersStopped) and not event.stuck_pids
                since = current.stopped_since
                self._put_result(STOP_DURATION, round_id, since, now, is_success=is_clean)

    # What is told of it.

    def _tell_worker(self, current: _Round, local_rank: int, now: float) -> None:
        worker, assignment = current.group.workers[local_rank], current.assignment
        failure, ending = current.failures.get(local_rank), current.exits.get(local_rank)
        status = current.status(local_rank)
        is_failed = failure is not None and status is Status.FAILED
        metadata: dict[str, Value] = {
            **self._metadata(status, now),
            "round_id": assignment.round_id,
            "restarts": assignment.restart_count,
            "group_rank": assignment.group_rank,
            "group_world_size": assignment.group_world_size,
            "global_rank": worker.global_rank,
            "local_rank": worker.local_rank,
            "role_rank": worker.role_rank,
            "role_world_size": worker.role_world_size,
            "world_size": worker.world_size,
            "pid": ending.pid if ending is not None else worker.id,
            "exit_code": _exit_code(failure, ending),
            "raw_error": _raw_error(failure) if is_failed and failure is not None else None,
        }
        self._tell(EventSource.WORKER, status, metadata, now)

    def _tell_watchdog(
        self, current: _Round, event: ev.LimitExpired | ev.WorkerSignalled, now: float
    ) -> None:
        """Tell of a limit that is over, or of a signal for it."""
        assignment, worker = current.assignment, current.group.workers[event.worker.local_rank]
        metadata: dict[str, Value] = {
            **self._metadata("RUNNING", now),
            "round_id": assignment.round_id,
            "restarts": assignment.restart_count,
            "group_rank": assignment.group_rank,
            "global_rank": worker.global_rank,
            "local_rank": worker.local_rank,
            "pid": event.pid or worker.id,
        }
        name = WORKER_SIGNALLED
        if isinstance(event, ev.LimitExpired):
            name, hang = LIMIT_EXPIRED, event.hang
            metadata |= {"kind": hang.kind, "scope": hang.scope, "signal": event.signal}
            metadata |= {"limit": hang.limit_s, "elapsed": round(hang.elapsed_s, 3)}
        else:
            metadata["signal"] = event.signum
        # Of the agent, as in torch: a worker's own events say how it has ended.
        self._put_event(name, EventSource.AGENT, metadata, now)

    def _tell_restart(self, iteration: int, before: _Interrupted, now: float) -> None:
        metadata: dict[str, Value] = {
            **self._whose(),
            "state": "RESTARTED",
            "round_id": before.key[0],
            "iteration": iteration,
            "duration_ms": round((now - before.at) * 1000, 3),
            "reason": before.reason,
        }
        name, timestamp = RESTARTED_IN_PROCESS, self._timestamp(now)
        event = Event(name=name, source=EventSource.AGENT, timestamp=timestamp, metadata=metadata)
        self._items.append(event)

    def _tell_end(self, finish: fx.Finish, now: float) -> None:
        """Tell how the agent ends, and how the run did if it has a verdict."""
        is_success = finish.exit_code == EXIT_SUCCESS
        round_id, since = self._assigned_round, self._idle_since
        if self._is_awaiting_round and since is not None and not is_success:
            self._put_result(RENDEZVOUS_DURATION, round_id, since, now, is_success=False)
        self._put_result(RUN_DURATION, round_id, self._started_at, now, is_success=is_success)
        if finish.error is None and finish.exit_code < EXIT_SIGNAL:
            self._put_outcome(is_success=is_success, now=now)
        status = Status.SUCCEEDED if is_success else Status.FAILED
        why = self._reason
        if finish.error is not None:
            why = str(finish.error)
        elif finish.exit_code > EXIT_SIGNAL:
            why = _ending(EXIT_SIGNAL - finish.exit_code)
        metadata: dict[str, Value] = {
            **self._metadata(status, now),
            "round_id": self._assigned_round,
            "restarts": self._restart_count,
            "exit_code": finish.exit_code,
            "raw_error": None if is_success else _error_json(why, ""),
        }
        self._tell(EventSource.AGENT, status, metadata, now)

    def _put_outcome(self, *, is_success: bool, now: float) -> None:
        has_retried = self._restart_count > 0 or self._restarts_in_process > 0
        counters = {
            "run_total": True,
            "run_success_with_retries": is_success and has_retried,
            "run_success_no_retries": is_success and not has_retried,
            "run_failed_with_retries": not is_success and has_retried,
            "run_failed_no_retries": not is_success and not has_retried,
        }
        for name, is_so in counters.items():
            self._put_of_workers(name, int(is_so), now)
        self._put_of_workers("remaining_restarts", self._remaining_restarts(), now)
        value = flakiness(
            self._remaining_restarts(), self._config.restarts_max, is_failed=not is_success
        )
        self._put_of_workers("flakiness", value, now)

    def _remaining_restarts(self) -> int:
        return max(0, self._config.restarts_max - self._restart_count)

    def _metadata(self, state: str, now: float) -> dict[str, Value]:
        return {
            **self._whose(),
            "state": state,
            "entry_point": self._spec.get_entrypoint_name(),
            "total_run_time": round(now - self._started_at, 3),
        }

    def _whose(self) -> dict[str, Value]:
        config = self._config
        return {"run_id": config.run_id, "hostname": self._host, "role": config.role}

    def _tell(
        self, source: EventSource, status: Status, metadata: dict[str, Value], now: float
    ) -> None:
        self._put_event(f"drumbeat.{source.lower()}.status.{status}", source, metadata, now)

    def _put_event(
        self, name: str, source: EventSource, metadata: dict[str, Value], now: float
    ) -> None:
        timestamp = self._timestamp(now)
        self._items.append(Event(name=name, source=source, timestamp=timestamp, metadata=metadata))

    def _put_of_workers(self, name: str, value: float, now: float) -> None:
        self._put(f"workers.{self._config.role}.{name}", value, self._assigned_round, now)

    def _put_result(
        self, name: str, round_id: int | None, since: float, now: float, *, is_success: bool = True
    ) -> None:
        """Put how long something took, and whether it worked, as torch's ``prof`` does."""
        result = "success" if is_success else "failure"
        self._put(f"{name.removesuffix('.duration.ms')}.{result}", 1, round_id, now)
        self._put(name, round((now - since) * 1000, 3), round_id, now)

    def _put(self, name: str, value: float, round_id: int | None, now: float) -> None:
        metadata = {**self._whose(), "round_id": round_id}
        self._items.append(
            Metric(name=name, value=value, timestamp=self._timestamp(now), metadata=metadata)
        )

    def _timestamp(self, now: float) -> int:
        return round((now + self._epoch_s) * 1000)


def flakiness(remaining: int, restarts_max: int, *, is_failed: bool) -> int:
    """Return how much of the restart budget a run has used, in percent; 100 if it failed.

    A run that succeeded at once has 0. With restarts used it rises, and stays
    below 100, because the last attempt was not wasted.
    """
    if is_failed:
        return 100
    return int(100 - 100 * (remaining + 1) / (restarts_max + 1))


def _exit_code(failure: Failure | None, ending: ev.WorkerExited | None) -> int | None:
    if failure is not None:
        return failure.exit_code
    return ending.exit_code if ending is not None else None


def _raw_error(failure: Failure) -> str:
    return _error_json(failure.message or _ending(failure.exit_code), failure.traceback)


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    known = {int(signum): signum.name for signum in Signals}
    return f"ended by {known.get(-exit_code, f'signal {-exit_code}')}"


def _error_json(message: str, traceback: str) -> str:
    """Return an error in the form of a worker's error file."""
    extra = {"py_callstack": traceback} if traceback else {}
    return json.dumps({"message": {"message": message, "extraInfo": extra}})
