"""Pure. Facts of an agent, written as events and metrics of ``docs/telemetry.md``."""

import json
from collections.abc import Iterator
from typing import Any

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import EXIT_SIGNAL, EXIT_SUCCESS
from drumbeat.agent.failures.exit_status import describe_ending
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry import Event, EventSource, Item, Metric
from drumbeat.agent.telemetry.facts import (
    AgentFacts,
    Fact,
    RestartedInProcess,
    RoundFacts,
    StageEnded,
)

_Metadata = dict[str, Any]


class Observer:
    """Makes events and metrics of facts; ``now + epoch_s`` is since 1970."""

    def __init__(
        self, config: AgentConfig, facts: AgentFacts, *, host: str, epoch_s: float
    ) -> None:
        self._config, self._facts, self._epoch_s, self._now = config, facts, epoch_s, 0.0
        self._whose: _Metadata = {"run_id": config.run_id, "hostname": host, "role": config.role}
        self._entry_point = config.program.target.rpartition("/")[2]

    def items(self, fact: Fact, *, now: float) -> Iterator[Item]:
        """Yield what there is to tell of a fact, in order."""
        self._now = now
        match fact:
            case StageEnded():
                if (fact.stage, fact.is_success) == ("start", True):
                    yield self._of_workers("healthy", 1)
                word = "success" if fact.is_success else "failure"
                yield self._metric(f"{fact.stage}.{word}", 1, fact.round_id)
                yield self._duration(fact.stage, fact.took_s, fact.round_id)
                if (fact.stage, fact.is_success) == ("rendezvous", True):
                    yield self._of_workers("remaining_restarts", self._remaining)
            case RoundFacts():
                local_ranks = range(self._config.nproc_per_node)
                yield from (self._worker_ended(fact, local_rank) for local_rank in local_ranks)
                statuses = {fact.status_of(local_rank) for local_rank in local_ranks}
                is_success = statuses == {"SUCCEEDED"}
                status = "succeeded" if is_success else "stopped"
                yield self._of_workers("failed" if "FAILED" in statuses else status, 1)
            case RestartedInProcess():
                metadata = self._whose | fact._asdict() | {"state": "RESTARTED"}
                metadata["duration_ms"] = _ms(metadata.pop("took_s"))
                yield self._event("agent.inprocess.RESTARTED", metadata)
            case ev.LimitExpired() | ev.WorkerSignalled():
                yield self._limit_acted(fact)
            case fx.Finish():
                yield from self._agent_ended(fact)

    @property
    def _remaining(self) -> int:
        remaining = self._facts.remaining
        return self._config.max_restarts if remaining is None else remaining

    def _worker_ended(self, of: RoundFacts, local_rank: int) -> Event:
        status = of.status_of(local_rank)
        failure, ending = of.failures.get(local_rank), of.exits.get(local_rank)
        metadata = self._of_worker(of, local_rank, status)
        if ending is not None:
            metadata["pid"] = ending.pid
        how = failure or ending
        metadata |= {"exit_code": how.exit_code if how else None, "raw_error": None}
        if failure is not None and status == "FAILED":
            message = failure.message or describe_ending(failure.exit_code)
            metadata["raw_error"] = _error_json(message, failure.traceback)
        return self._event(f"worker.status.{status}", metadata, EventSource.WORKER)

    def _limit_acted(self, event: ev.LimitExpired | ev.WorkerSignalled) -> Event:
        # What the watchdog does is the agent's, as in torch: a worker's say how it has ended.
        assert self._facts.latest is not None, "it is of that round"
        metadata = self._of_worker(self._facts.latest, event.worker.local_rank, "RUNNING")
        metadata["pid"] = event.pid or metadata["pid"]
        if isinstance(event, ev.WorkerSignalled):
            return self._event("watchdog.signalled", metadata | {"signal": event.signum})
        hang = event.hang
        metadata |= {"kind": hang.kind, "scope": hang.scope, "signal": event.signal}
        metadata |= {"limit": hang.limit_s, "elapsed": round(hang.elapsed_s, 3)}
        return self._event("watchdog.expired", metadata | {"aftermath": event.aftermath or None})

    def _agent_ended(self, finish: fx.Finish) -> Iterator[Item]:
        """Tell how the agent ends, and how the run did if it has a verdict."""
        facts, is_success = self._facts, finish.exit_code == EXIT_SUCCESS
        round_id = facts.assigned_round
        yield self._metric(f"run.{'success' if is_success else 'failure'}", 1, round_id)
        yield self._duration("run", self._now - facts.started_at, round_id)
        why = facts.verdict.reason if facts.verdict is not None else ""
        if finish.error is not None:
            why = str(finish.error)
        elif finish.exit_code > EXIT_SIGNAL:
            why = describe_ending(finish.exit_code)
        else:
            has_retried = facts.restart_count > 0 or facts.counts["restarts", "in_process"] > 0
            yield self._of_workers("run_total", 1)
            for ending, is_so in (("success", is_success), ("failed", not is_success)):
                yield self._of_workers(f"run_{ending}_with_retries", int(is_so and has_retried))
                yield self._of_workers(f"run_{ending}_no_retries", int(is_so and not has_retried))
            yield self._of_workers("remaining_restarts", self._remaining)
            restarts_max = self._config.max_restarts
            percent = flakiness(self._remaining, restarts_max, is_failed=not is_success)
            yield self._of_workers("flakiness", percent)
        status = "SUCCEEDED" if is_success else "FAILED"
        yield self._event(
            f"agent.status.{status}",
            self._metadata(status, round_id, facts.restart_count)
            | {
                "exit_code": finish.exit_code,
                "raw_error": None if is_success else _error_json(why, ""),
            },
        )

    def _metadata(self, state: str, round_id: int | None, restarts: int) -> _Metadata:
        return {
            **self._whose,
            "state": state,
            "entry_point": self._entry_point,
            "total_run_time": round(self._now - self._facts.started_at, 3),
            "round_id": round_id,
            "restarts": restarts,
        }

    def _of_worker(self, of: RoundFacts, local_rank: int, state: str) -> _Metadata:
        seat = of.assignment
        return self._metadata(state, seat.round_id, seat.restart_count) | {
            "group_rank": seat.group_rank,
            "group_world_size": seat.group_world_size,
            "pid": of.pids.get(local_rank),
            "local_rank": local_rank,
            "global_rank": seat.rank_first + local_rank,
            "role_rank": seat.role_rank_first + local_rank,
            "world_size": seat.world_size,
            "role_world_size": seat.role_world_size,
        }

    def _event(
        self, name: str, metadata: _Metadata, source: EventSource = EventSource.AGENT
    ) -> Event:
        at = round((self._now + self._epoch_s) * 1000)
        return Event(name=f"drumbeat.{name}", source=source, timestamp=at, metadata=metadata)

    def _of_workers(self, name: str, value: float) -> Metric:
        name = f"workers.{self._config.role}.{name}"
        return self._metric(name, value, self._facts.assigned_round)

    def _duration(self, name: str, took_s: float, round_id: int | None) -> Metric:
        return self._metric(f"{name}.duration.ms", _ms(took_s), round_id)

    def _metric(self, name: str, value: float, round_id: int | None) -> Metric:
        at = round((self._now + self._epoch_s) * 1000)
        metadata = {**self._whose, "round_id": round_id}
        return Metric(name=name, value=value, timestamp=at, metadata=metadata)


def flakiness(remaining: int, restarts_max: int, *, is_failed: bool) -> int:
    """Return how much of the restart budget a run has used, in percent; 100 only if it failed."""
    return 100 if is_failed else int(100 - 100 * (remaining + 1) / (restarts_max + 1))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _error_json(message: str, traceback: str) -> str:
    """Return an error in the form of a worker's error file."""
    extra = {"py_callstack": traceback} if traceback else {}
    return json.dumps({"message": {"message": message, "extraInfo": extra}})
