"""Shell. Hosts over all runs: one of them as a message, and those that may be to blame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.ledger import NONE
from drumbeat.coordinator.wire.control import drain_message
from drumbeat.coordinator.wire.run_status import (
    AnyRun,
    agent_message,
    failure_groups,
    run_message,
)
from drumbeat.text.durations import SECOND
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration

RUNS_MAX, AGENTS_MAX = 100, 64  # of a host, and of each of its runs
IN_TROUBLE_MAX = 20


def host_message(
    name: str,
    runs: Iterable[tuple[RunState, AnyRun | None]],
    drains: Iterable[KeptDrain],
    *,
    now: float,
) -> pb.GetHostResponse | None:
    """Write what is known of a host; ``None``: nothing is. Linear in the agents of all runs."""
    response = pb.GetHostResponse(name=name)
    rows = []
    for state, run in runs:
        agents = [i for i, who in state.members.items() if name in (who.host, who.name)]
        names = {name, *(state.members[i].name for i in agents)}
        lost = sum(state.observed.ledger.hosts_lost.get(who, NONE).run for who in names)
        groups = failure_groups(state, now=now, of=names)
        if agents or lost or groups:
            rows.append((state, run, agents, lost, groups))
    rows.sort(key=lambda row: (row[0].phase is Phase.ENDED, -(row[0].ended_at or 0.0)))
    for state, run, agents, lost, groups in rows[:RUNS_MAX]:
        response.runs.add(
            run=run_message(state, run, pb.VIEW_BASIC, now=now),
            agents=[agent_message(state, run, i, True, now) for i in agents[:AGENTS_MAX]],
            lost=duration(lost / SECOND),
            failure_groups=groups,
        )
    response.drains.extend(drain_message(drain, now=now) for drain in drains if drain.name == name)
    return response if rows or response.drains else None


def hosts_in_trouble(states: Iterable[RunState]) -> list[dict[str, Any]]:
    """Return names of agents that failed in several runs and may be to blame, the worst first."""
    runs: dict[str, set[str]] = {}
    for state in states:
        for group in state.observed.failures.groups:
            for name in group.suspects:
                runs.setdefault(name, set()).add(state.run_id)
    worst = sorted(runs.items(), key=lambda item: (-len(item[1]), item[0]))[:IN_TROUBLE_MAX]
    return [{"name": name, "runs": sorted(those)} for name, those in worst if len(those) > 1]
