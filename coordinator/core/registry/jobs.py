"""Pure. Jobs of several replica groups, each of which is a run."""

from __future__ import annotations

from collections.abc import Iterable

from drumbeat.coordinator import errors
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.model import ReplicaGroup


def groups_of(job: str, runs: Iterable[IsolatedRun]) -> dict[int, IsolatedRun]:
    """Return those of these runs that are groups of a job, by index. Linear."""
    groups = {}
    for run in runs:
        group = run.state.spec.replica_group
        if group is not None and group.job == job:
            groups[group.index] = run
    return dict(sorted(groups.items()))


def group_error(
    run_id: str, group: ReplicaGroup | None, latest: Iterable[IsolatedRun]
) -> errors.CoordinatorError | None:
    """Return why no such run can begin beside the ``latest`` run of each id. Linear."""
    living = [run for run in latest if run.state.phase is not Phase.ENDED]
    if group is None:
        allowed = "the id of no job with replica groups that lives"
        is_taken = bool(groups_of(run_id, living))
        return errors.InvalidRequest("run_id", run_id, allowed) if is_taken else None
    most, names = group.count - 1, [run.state.run_id for run in living]
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
    for run in groups_of(group.job, living).values():
        ours = run.state.spec.replica_group
        found = tuple(
            errors.Difference(f"replica_group.{name}", getattr(group, name), getattr(ours, name))
            for name in ("count", "groups_min")
            if getattr(group, name) != getattr(ours, name)
        )
        # A group that all agents have left has no say: its next agents begin it anew.
        if found and run.members.connected:
            return errors.SpecMismatch(group.job, found)
    return None
