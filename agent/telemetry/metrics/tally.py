"""Pure. What metrics count of an agent, from its events and metrics of ``docs/telemetry.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import GroupState
from drumbeat.agent.runtime.status import AgentStatus
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry import Event, Item, Metric
from drumbeat.agent.telemetry.metrics import declared as the
from drumbeat.agent.watchdog.hang import Standing
from drumbeat.agent.workers.memory.growth import NO_MEMORY, HostMemory
from drumbeat.command.metrics import BUILD, Sample

_STATUS, _EXPIRED = "drumbeat.worker.status.", "drumbeat.watchdog.expired"
_RESTARTED = "drumbeat.agent.inprocess.RESTARTED"
_DURATION = ".duration.ms"


class Look(NamedTuple):
    """How an agent is at one moment, of which it is asked."""

    status: AgentStatus
    spooled: int
    standings: tuple[Standing, ...]
    memory: HostMemory = NO_MEMORY


class Tally:
    """Counts from the start of the agent."""

    def __init__(self, config: AgentConfig, *, version: str) -> None:
        self._config, self._version = config, version
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def saw(self, event: ev.Event | None, items: Iterable[Item]) -> Iterator[Sample]:
        """Take in what happened, and what telemetry says of it; yield what took how long."""
        if isinstance(event, ev.SessionLost):
            self._count(the.SESSIONS_LOST.name)
        for item in items:
            if isinstance(item, Metric):
                yield from self._measured(item)
            else:
                self._happened(item)

    def samples(self, look: Look, *, epoch_s: float) -> Iterator[Sample]:
        """Yield everything there is to tell; instants of a look ``+ epoch_s`` are since 1970."""
        config, status = self._config, look.status
        yield BUILD, (self._version, "agent"), 1.0
        yield the.INFO, (status.run_id, status.name, config.role), 1.0
        yield the.CONNECTED, (), float(status.is_connected)
        yield the.SPOOLED, (), float(look.spooled)
        for state in GroupState:
            yield the.STATE, (state.lower(),), float(status.state == state)
        yield the.WORKERS, (), float(len(status.workers))
        yield the.WORKERS_MAX, (), float(config.nproc_per_node)
        if status.round_id is not None:
            yield the.ROUND, (), float(status.round_id)
        yield from self._counted()
        for worker in look.standings:
            rank = (str(worker.local_rank),)
            if worker.step is not None:
                yield the.STEP, rank, float(worker.step)
            if worker.step_time_s is not None:
                yield the.STEP_TIME, rank, round(worker.step_time_s, 6)
            if worker.heartbeat_at is not None:
                yield the.HEARTBEAT, rank, round(worker.heartbeat_at + epoch_s, 3)
        for each in look.memory.workers:
            yield the.WORKER_MEMORY, (str(each.local_rank),), float(each.resident_bytes)
        if look.memory.limit_bytes:
            yield the.MEMORY_USED, (), float(look.memory.used_bytes)
            yield the.MEMORY_LIMIT, (), float(look.memory.limit_bytes)

    def _counted(self) -> Iterator[Sample]:
        counted = (
            (the.SESSIONS_LOST, ("",)),
            (the.ROUNDS, ("",)),
            (the.RESTARTS, the.RESTARTS_BY),
            (the.ENDED, the.STATUSES),
            (the.HANGS_FOUND, the.HANGS),
        )
        for metric, values in counted:
            for value in values:
                labels = (value,) if value else ()
                yield metric, labels, float(self._counts[metric.name, labels])

    def _count(self, name: str, *labels: str) -> None:
        self._counts[name, labels] += 1

    def _happened(self, event: Event) -> None:
        if event.name.startswith(_STATUS):
            self._count(the.ENDED.name, event.name.removeprefix(_STATUS).lower())
        elif event.name == _EXPIRED:
            self._count(the.HANGS_FOUND.name, str(event.metadata["kind"]).lower())
        elif event.name == _RESTARTED:
            self._count(the.RESTARTS.name, "in_process")

    def _measured(self, metric: Metric) -> Iterator[Sample]:
        stage = metric.name.removesuffix(_DURATION)
        if metric.name.endswith(_DURATION) and stage in the.STAGES:
            yield the.STAGE, (stage,), metric.value / 1000
        elif metric.name == "rendezvous.success":
            self._count(the.ROUNDS.name)
            if self._counts[the.ROUNDS.name, ()] > 1:
                self._count(the.RESTARTS.name, "round")
