"""Pure. What an agent's doings mean for telemetry: events and metrics. It decides nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import EXIT_SIGNAL, EXIT_SUCCESS
from drumbeat.agent.core.model import NO_ROUND, Assignment, DesiredState, Failure, Standby
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry import Event, EventSource, Item, Metric, Value
from drumbeat.agent.telemetry.api import WorkerState, worker_group, worker_spec
from drumbeat.agent.telemetry.facts import AgentFacts, RoundFacts
from drumbeat.agent.workers.failures.exit_status import describe_ending
from drumbeat.inprocess import InprocessDirective, IterationBegin, IterationInterrupt

_Metadata = dict[str, Value]

# How a worker ended: by itself with 0 or badly, also if it could not be started; or by the agent,
# also if that did not start it because another could not be.
Status = Literal["SUCCEEDED", "FAILED", "TERMINATED"]


class Observer:
    """Makes events and metrics of what a core sees and does; ``now + epoch_s`` is since 1970."""

    def __init__(
        self, config: AgentConfig, facts: AgentFacts, *, host: str, epoch_s: float, now: float
    ) -> None:
        self._config, self._facts = config, facts
        self._whose: _Metadata = {"run_id": config.run_id, "hostname": host, "role": config.role}
        self._epoch_s = epoch_s
        self._now = self._started_at = now
        self._entry_point = worker_spec(config).get_entrypoint_name()
        self._attempt = 0
        self._round_told = NO_ROUND  # the latest whose workers' ends were told
        self._restart_count, self._remaining = 0, config.max_restarts
        # Round and iteration of the latest interruption; its reason and instant until a restart.
        self._interrupted_key = (NO_ROUND, 0)
        self._interrupted: tuple[str, float] | None = None
        self._has_restarted_in_process = False
        # Since when this host has no round to run, and since when it has the latest one.
        self._idle_since: float | None = now
        self._is_awaiting_round = True  # and not the end of the run
        self._assigned_round: int | None = None
        self._assigned_at = now
        self._items: list[Item] = []

    def saw(
        self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float
    ) -> list[Item]:
        """Take in an event (``None``: the start) that facts know; return what follows from it."""
        self._now, self._items = now, []
        if event is not None:
            self._on_event(event)
        if self._facts.current is not None:
            self._end_if_over(self._facts.current, event)
        for effect in effects:
            self._on_effect(effect)
        return self._items

    # What happened.

    def _on_event(self, event: ev.Event) -> None:
        match event:
            case ev.DirectiveReceived(attempt=self._attempt, state=state):
                self._on_desired(state)
            case ev.SessionLost(attempt=self._attempt, is_stale=True):
                self._note_idle(is_awaiting_round=True)
            case ev.InprocessDirected(attempt=self._attempt, directive=directive):
                self._on_directive(directive)
            case ev.WorkersStarted() if self._current(event.round_id) is not None:
                self._put_of_workers("healthy", 1)
                self._put_result("start", event.round_id, self._assigned_at)
            case ev.WorkerStartFailed() if self._current(event.round_id) is not None:
                self._put_result("start", event.round_id, self._assigned_at, is_success=False)
            case ev.LimitExpired() | ev.WorkerSignalled() if (
                current := self._current(event.worker.round_id)
            ) is not None:
                self._put_watchdog(current, event)

    def _on_desired(self, desired: DesiredState) -> None:
        match desired:
            case Standby():
                self._note_idle(is_awaiting_round=True)
            case Assignment(round_id=round_id) if round_id != self._assigned_round:
                idle_since = self._now if self._idle_since is None else self._idle_since
                self._idle_since, self._is_awaiting_round = None, False
                self._assigned_round, self._assigned_at = round_id, self._now
                self._restart_count = desired.restart_count
                self._remaining = max(0, desired.restarts_max - desired.restarts_used)
                self._put_result("rendezvous", round_id, idle_since)
                self._put_of_workers("remaining_restarts", self._remaining)

    def _on_directive(self, directive: InprocessDirective) -> None:
        """Follow restarts in process, of which a repeated directive makes no new one."""
        key = (directive.round_id, directive.iteration)
        if key <= self._interrupted_key:
            return
        match directive.kind:
            case IterationInterrupt(reason=reason):
                self._interrupted_key, self._interrupted = key, (reason, self._now)
            case IterationBegin() if self._interrupted is not None:
                (reason, since), self._interrupted = self._interrupted, None
                if directive.round_id != self._interrupted_key[0]:
                    return
                self._has_restarted_in_process = True
                metadata: _Metadata = {"state": "RESTARTED", "round_id": directive.round_id}
                metadata |= {"iteration": directive.iteration, "reason": reason}
                metadata["duration_ms"] = round((self._now - since) * 1000, 3)
                self._put_event("agent.inprocess.RESTARTED", self._whose | metadata)

    def _on_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.OpenSession(attempt=attempt):
                self._attempt = attempt
            case fx.WriteFailure(failure=Failure(round_id=self._assigned_round, interruption=None)):
                self._note_idle(is_awaiting_round=False)
            case fx.Finish():
                self._put_end(effect)

    def _current(self, round_id: int) -> RoundFacts | None:
        current = self._facts.current
        return current if current is not None and current.assignment.round_id == round_id else None

    def _note_idle(self, *, is_awaiting_round: bool) -> None:
        self._idle_since = self._now if self._idle_since is None else self._idle_since
        self._is_awaiting_round = self._is_awaiting_round or is_awaiting_round

    def _end_if_over(self, current: RoundFacts, event: ev.Event | None) -> None:
        local_ranks = range(self._config.nproc_per_node)
        round_id = current.assignment.round_id
        found = {_status(current, local_rank) for local_rank in local_ranks}
        state = WorkerState.STOPPED if "TERMINATED" in found else WorkerState.SUCCEEDED
        state = WorkerState.FAILED if "FAILED" in found else state
        if round_id != self._round_told and (current.is_over or state is WorkerState.SUCCEEDED):
            self._round_told = round_id
            for local_rank in local_ranks:
                self._put_worker(current, local_rank)
            self._put_of_workers(state.lower(), 1)
        if current.is_over and current.stopped_since is not None:
            is_clean = isinstance(event, ev.WorkersStopped) and not event.stuck_pids
            self._put_result("stop", round_id, current.stopped_since, is_success=is_clean)

    # What follows from it.

    def _put_worker(self, current: RoundFacts, local_rank: int) -> None:
        status = _status(current, local_rank)
        failure, ending = current.failures.get(local_rank), current.exits.get(local_rank)
        metadata = self._of_worker(current, local_rank, status)
        if ending is not None:
            metadata["pid"] = ending.pid
        how = failure or ending
        metadata |= {"exit_code": how.exit_code if how else None, "raw_error": None}
        if failure is not None and status == "FAILED":
            message = failure.message or describe_ending(failure.exit_code)
            metadata["raw_error"] = _error_json(message, failure.traceback)
        self._put_event(f"worker.status.{status}", metadata)

    def _put_watchdog(
        self, current: RoundFacts, event: ev.LimitExpired | ev.WorkerSignalled
    ) -> None:
        metadata = self._of_worker(current, event.worker.local_rank, "RUNNING")
        metadata["pid"] = event.pid or metadata["pid"]
        if isinstance(event, ev.LimitExpired):
            name, hang = "expired", event.hang
            metadata |= {"kind": hang.kind, "scope": hang.scope, "signal": event.signal}
            metadata |= {"limit": hang.limit_s, "elapsed": round(hang.elapsed_s, 3)}
            metadata["aftermath"] = event.aftermath or None
        else:
            name, metadata["signal"] = "signalled", event.signum
        self._put_event(f"watchdog.{name}", metadata)

    def _put_end(self, finish: fx.Finish) -> None:
        """Say how the agent ends, and how the run did if it has a verdict."""
        is_success = finish.exit_code == EXIT_SUCCESS
        round_id, since = self._assigned_round, self._idle_since
        if self._is_awaiting_round and since is not None and not is_success:
            self._put_result("rendezvous", round_id, since, is_success=False)
        self._put_result("run", round_id, self._started_at, is_success=is_success)
        why = self._facts.verdict.reason if self._facts.verdict is not None else ""
        if finish.error is not None:
            why = str(finish.error)
        elif finish.exit_code > EXIT_SIGNAL:
            why = describe_ending(finish.exit_code)
        else:
            has_retried = self._restart_count > 0 or self._has_restarted_in_process
            self._put_of_workers("run_total", 1)
            for ending, is_so in (("success", is_success), ("failed", not is_success)):
                self._put_of_workers(f"run_{ending}_with_retries", int(is_so and has_retried))
                self._put_of_workers(f"run_{ending}_no_retries", int(is_so and not has_retried))
            self._put_of_workers("remaining_restarts", self._remaining)
            value = flakiness(self._remaining, self._config.max_restarts, is_failed=not is_success)
            self._put_of_workers("flakiness", value)
        status = "SUCCEEDED" if is_success else "FAILED"
        metadata = self._metadata(status, round_id, self._restart_count) | {
            "exit_code": finish.exit_code,
            "raw_error": None if is_success else _error_json(why, ""),
        }
        self._put_event(f"agent.status.{status}", metadata)

    def _metadata(self, state: str, round_id: int | None, restarts: int) -> _Metadata:
        return {
            **self._whose,
            "state": state,
            "entry_point": self._entry_point,
            "total_run_time": round(self._now - self._started_at, 3),
            "round_id": round_id,
            "restarts": restarts,
        }

    def _of_worker(self, current: RoundFacts, local_rank: int, state: str) -> _Metadata:
        assignment = current.assignment
        group = worker_group(self._config, assignment).with_ids(current.pids)
        worker = asdict(group.workers[local_rank])
        return {
            **self._metadata(state, assignment.round_id, assignment.restart_count),
            "group_rank": assignment.group_rank,
            "group_world_size": assignment.group_world_size,
            "pid": worker.pop("id"),
            **worker,
        }

    def _put_event(self, name: str, metadata: _Metadata) -> None:
        # What the watchdog does is the agent's, as in torch: a worker's say how it has ended.
        source = EventSource.WORKER if name.startswith("worker.") else EventSource.AGENT
        name, at = f"drumbeat.{name}", round((self._now + self._epoch_s) * 1000)
        self._items.append(Event(name=name, source=source, timestamp=at, metadata=metadata))

    def _put_of_workers(self, name: str, value: float) -> None:
        self._put(f"workers.{self._config.role}.{name}", value, self._assigned_round)

    def _put_result(
        self, name: str, round_id: int | None, since: float, *, is_success: bool = True
    ) -> None:
        """Put how long something took, and whether it worked, as torch's ``prof`` does."""
        self._put(f"{name}.{'success' if is_success else 'failure'}", 1, round_id)
        self._put(f"{name}.duration.ms", round((self._now - since) * 1000, 3), round_id)

    def _put(self, name: str, value: float, round_id: int | None) -> None:
        metadata = {**self._whose, "round_id": round_id}
        timestamp = round((self._now + self._epoch_s) * 1000)
        self._items.append(Metric(name=name, value=value, timestamp=timestamp, metadata=metadata))


def _status(current: RoundFacts, local_rank: int) -> Status:
    failure, ending = current.failures.get(local_rank), current.exits.get(local_rank)
    if failure is not None and not failure.is_stopped_by_agent:
        return "FAILED"
    if ending is not None and ending.exit_code == 0 and not ending.is_stopped:
        return "SUCCEEDED"
    return "TERMINATED"


def flakiness(remaining: int, restarts_max: int, *, is_failed: bool) -> int:
    """Return how much of the restart budget a run has used, in percent; 100 only if it failed."""
    return 100 if is_failed else int(100 - 100 * (remaining + 1) / (restarts_max + 1))


def _error_json(message: str, traceback: str) -> str:
    """Return an error in the form of a worker's error file."""
    extra = {"py_callstack": traceback} if traceback else {}
    return json.dumps({"message": {"message": message, "extraInfo": extra}})
