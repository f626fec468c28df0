"""Pure. The metrics of an agent, from how it is and what has happened to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drumbeat.agent.host.memory.growth import NO_MEMORY
from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.agent.telemetry.metrics import declared
from drumbeat.agent.telemetry.status import AgentStatus
from drumbeat.command.metrics import Sample
from drumbeat.model import GroupState, HostMemory

_COUNTED = {
    "sessions_lost": (declared.SESSIONS_LOST, ("",)),
    "rounds": (declared.ROUNDS, ("",)),
    "restarts": (declared.RESTARTS, declared.RESTARTS_BY),
    "workers_ended": (declared.ENDED, declared.STATUSES),
    "hangs": (declared.HANGS_FOUND, declared.HANGS),
}
"""The metric of each count of ``AgentFacts``, with all values of its label."""


class AgentSnapshot(NamedTuple):
    """How an agent is at one moment, and its counts since its start."""

    status: AgentStatus
    role: str
    workers_wanted: int
    counts: Mapping[tuple[str, str], int]
    spooled: int
    standings: tuple[WorkerProgress, ...]
    memory: HostMemory = NO_MEMORY


def samples_of(look: AgentSnapshot, *, epoch_s: float) -> Iterator[Sample]:
    """Yield everything there is to tell; instants of a look ``+ epoch_s`` are since 1970."""
    status, memory = look.status, look.memory
    yield declared.INFO, (status.run_id, status.name, look.role), 1.0
    yield declared.CONNECTED, (), float(status.is_connected)
    yield declared.SPOOLED, (), float(look.spooled)
    for state in GroupState:
        yield declared.STATE, (state.lower(),), float(status.state == state)
    yield declared.WORKERS, (), float(len(status.workers))
    yield declared.WORKERS_MAX, (), float(look.workers_wanted)
    if status.round_id is not None:
        yield declared.ROUND, (), float(status.round_id)
    for name, (metric, values) in _COUNTED.items():
        for value in values:
            labels = (value,) if value else ()
            yield metric, labels, float(look.counts.get((name, value), 0))
    for worker in look.standings:
        rank = (str(worker.local_rank),)
        if worker.step is not None:
            yield declared.STEP, rank, float(worker.step)
        if worker.step_time_s is not None:
            yield declared.STEP_TIME, rank, round(worker.step_time_s, 6)
        if worker.heartbeat_at is not None:
            yield declared.HEARTBEAT, rank, round(worker.heartbeat_at + epoch_s, 3)
    for used in memory.workers:
        yield declared.WORKER_MEMORY, (str(used.local_rank),), float(used.resident_bytes)
    if memory.limit_bytes:
        yield declared.MEMORY_USED, (), float(memory.used_bytes)
        yield declared.MEMORY_LIMIT, (), float(memory.limit_bytes)
