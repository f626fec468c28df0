"""Pure. The status of an agent for users of its host, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.command.table import short, table
from drumbeat.text.format import printable

HEADS = ("RUN", "AGENT", "PID", "AGE", "STATE", "ROUND", "RANK", "WORKER", "ITS AGE", "COORDINATOR")


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """One worker that has not ended; ``started_at`` is this host's monotonic clock."""

    rank: int
    local_rank: int
    pid: int
    started_at: float


class AgentStatus(Struct, frozen=True, kw_only=True):
    """One agent; ``coordinator`` is None if it is within the agent's own process."""

    run_id: str
    name: str
    pid: int
    began_at: float
    coordinator: str | None
    is_connected: bool
    state: str
    reason: str
    round_id: int | None
    group_rank: int | None
    workers: tuple[WorkerStatus, ...]


class Leftover(Struct, frozen=True, kw_only=True):
    """A private directory of a process that ended without removing it; of an agent, its status."""

    directory: str
    status: AgentStatus | None
    has_records: bool  # failure records that the coordinator has not acknowledged


def status_of(config: AgentConfig, core: AgentCore, facts: AgentFacts) -> AgentStatus:
    """Return what an agent shows now."""
    assignment, latest = core.workers.assignment, facts.latest
    workers: tuple[WorkerStatus, ...] = ()
    if assignment is not None and latest is not None and not latest.is_over:
        first, at = assignment.rank_first, latest.started_at
        workers = tuple(
            WorkerStatus(rank=first + rank, local_rank=rank, pid=pid, started_at=at)
            for rank, pid in sorted(latest.pids.items())
            if rank not in latest.exits
        )
    return AgentStatus(
        run_id=config.run_id,
        name=facts.name,
        pid=facts.pid,
        began_at=facts.began_at,
        coordinator=config.coordinator and core.link.search.address,
        is_connected=core.link.is_open,
        state=core.workers.state,
        reason=core.desired.reason,
        round_id=assignment.round_id if assignment else None,
        group_rank=assignment.group_rank if assignment else None,
        workers=workers,
    )


def as_table(agents: Iterable[AgentStatus], leftovers: Iterable[Leftover], *, now: float) -> str:
    """Return a line for each worker, or agent without any; then what dead agents left."""
    rows = [row for agent in agents for row in _rows(agent, now)]
    lines = [table(HEADS, rows) if rows else "no agent of this user runs on this host"]
    for left in leftovers:
        whose = "a process that died"
        if left.status is not None:
            whose = f"the agent of run {left.status.run_id} with pid {left.status.pid}, which died"
        records = "; it holds failure records for the next agent" if left.has_records else ""
        lines.append(printable(f"left by {whose}: {left.directory}{records}"))
    return "\n".join(lines)


def as_json(
    host: str, agents: Iterable[AgentStatus], leftovers: Iterable[Leftover], *, now: float
) -> str:
    """Return the same as JSON, with the names of docs/operating.md."""
    document = {
        "host": host,
        "agents": [_as_dict(agent, now) for agent in agents],
        "leftovers": [
            {
                "directory": left.directory,
                "run_id": left.status.run_id if left.status else None,
                "pid": left.status.pid if left.status else None,
                "has_failure_records": left.has_records,
            }
            for left in leftovers
        ],
    }
    return json.dumps(document, indent=2)


def _rows(agent: AgentStatus, now: float) -> list[tuple[str, ...]]:
    state = agent.state if agent.is_connected else f"{agent.state} (disconnected)"
    round_id = "" if agent.round_id is None else str(agent.round_id)
    age = short(round(max(0.0, now - agent.began_at)))
    whose = (agent.run_id, agent.name, str(agent.pid), age, state, round_id)
    coordinator = agent.coordinator or "standalone"
    return [
        (*whose, str(worker.rank), str(worker.pid), short(round(max(0.0, now - worker.started_at))),
         coordinator)
        for worker in agent.workers
    ] or [(*whose, "", "", "", coordinator)]  # fmt: skip


def _as_dict(agent: AgentStatus, now: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(agent)
    fields["state"] = agent.state.lower()
    fields["age_s"] = round(max(0.0, now - fields.pop("began_at")), 3)
    for worker in fields["workers"]:
        worker["age_s"] = round(max(0.0, now - worker.pop("started_at")), 3)
    return fields
