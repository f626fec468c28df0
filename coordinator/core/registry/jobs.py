"""Pure. Jobs of several replica groups, each of which is a run.

A job lives from the beginning of its first group until no group is left; what ended before belongs
to an earlier life.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import ReplicaGroup
from drumbeat.text.format import count, listed


def group_of(state: RunState) -> ReplicaGroup:
    """Return which replica group a run is."""
    assert state.spec.replica_group is not None, f"{state.run_id} is no replica group"
    return state.spec.replica_group


def job_of(state: RunState | None) -> str:
    """Return the job that a run is a replica group of; empty: none, or there is no such run."""
    group = None if state is None else state.spec.replica_group
    return "" if group is None else group.job


def groups_of(job: str, states: Iterable[RunState]) -> dict[int, RunState]:
    """Return the groups of a job in its present or last life, the latest run of each. Linear."""
    runs = [
        state
        for state in states
        if state.spec.replica_group is not None and state.spec.replica_group.job == job
    ]
    groups: dict[int, RunState] = {}
    began_at = math.inf
    for state in sorted(runs, key=_ended_at, reverse=True):
        if groups and _ended_at(state) <= began_at:
            break
        began_at = min(began_at, state.created_at)
        groups.setdefault(group_of(state).index, state)
    return dict(sorted(groups.items()))


def all_jobs(states: Iterable[RunState]) -> dict[str, dict[int, RunState]]:
    """Return the groups of each job, by the id of the job. Linear."""
    by_job: dict[str, list[RunState]] = {}
    for state in states:
        if (group := state.spec.replica_group) is not None:
            by_job.setdefault(group.job, []).append(state)
    return {job: groups_of(job, runs) for job, runs in sorted(by_job.items())}


def newest(groups: Mapping[int, RunState]) -> ReplicaGroup:
    """Return the group that began last: after a change of settings it has the present ones."""
    return group_of(max(groups.values(), key=lambda state: state.created_at))


def _ended_at(state: RunState) -> float:
    return math.inf if state.ended_at is None else state.ended_at


def why_lost(groups: Mapping[int, RunState]) -> str:
    """Return why a job can't go on; empty: enough of its groups can, or have succeeded."""
    if not groups:
        return ""
    group = newest(groups)
    failed = [
        state.run_id
        for state in groups.values()
        if state.verdict is not None and not state.verdict.is_success
    ]
    if group.count - len(failed) >= group.groups_min:
        return ""
    which = f"{len(failed)} of {group.count} replica groups of {group.job}"
    return f"{which} ended without success ({listed(failed)}); --min-groups is {group.groups_min}"


def group_error(
    event: SessionOpened, runs: Iterable[IsolatedRun], now: float
) -> errors.CoordinatorError | None:
    """Return why no run can begin for an agent beside these runs: because of a job. Linear."""
    run_id, group = event.run_id, event.spec.replica_group
    by_key = {run.state.key: run for run in runs}
    states = [run.state for run in by_key.values()]
    living = [state for state in states if state.verdict is None]
    if group is None:
        allowed = "the id of no job with replica groups that lives"
        is_taken = bool(groups_of(run_id, living))
        return errors.InvalidRequest("run_id", run_id, allowed) if is_taken else None
    most, names = group.count - 1, [state.run_id for state in living]
    rules: list[tuple[str, object, bool, str]] = [
        ("count", group.count, group.count >= 1, "at least 1"),
        ("index", group.index, group.index <= most, f"0 to {most}"),
        ("groups_min", group.groups_min, 1 <= group.groups_min <= most + 1, f"1 to {most + 1}"),
        ("job", group.job, group.run_id == run_id, f"the run id {run_id} without .INDEX"),
        ("job", group.job, group.job not in names, "the id of no run that lives"),
    ]
    for name, value, is_possible, allowed in rules:
        if not is_possible:
            return errors.InvalidRequest(f"spec.replica_group.{name}", value, allowed)
    for state in groups_of(group.job, living).values():
        ours = group_of(state)
        mismatches = tuple(
            errors.Difference(f"replica_group.{name}", getattr(group, name), getattr(ours, name))
            for name in ("count", "groups_min")
            if getattr(group, name) != getattr(ours, name)
        )
        # A group that all agents have left has no say: its next agents begin it anew.
        if mismatches and by_key[state.key].members.connected:
            return errors.SpecMismatch(group.job, mismatches)
    ended = groups_of(group.job, states)
    if any(state.verdict is None for state in ended.values()) or not (why := why_lost(ended)):
        return None
    began_at = -math.inf if event.uptime_s is None else now - event.uptime_s
    is_late = began_at < max(map(_ended_at, ended.values()))
    return errors.RunClosed(group.job, f"it failed: {why}") if is_late else None


def together(answers: Mapping[str, fx.AnswerResult]) -> fx.AnswerResult:
    """Return one answer for what was asked of several groups, by the ids of their runs."""
    if all(isinstance(answer, int | None) for answer in answers.values()):  # limits forgotten
        return sum(answer for answer in answers.values() if isinstance(answer, int))
    done = [answer for answer in answers.values() if isinstance(answer, fx.Steered)]
    if not done:
        return next(iter(answers.values()))
    outcomes: dict[str, list[str]] = {}
    for run_id, answer in answers.items():
        outcome = answer.outcome if isinstance(answer, fx.Steered) else str(answer)
        outcomes.setdefault(outcome, []).append(run_id)
    parts = [f"{listed(run_ids)}: {outcome}" for outcome, run_ids in outcomes.items()]
    if len(parts) == 1:
        parts = [f"{count(len(answers), 'replica group')}: {next(iter(outcomes))}"]
    return fx.Steered(outcome="; ".join(parts), is_new=any(answer.is_new for answer in done))
