"""Jobs with replica groups in worlds by seed; and a check that the checks can fail."""

import os
from collections.abc import Callable, Iterable

import pytest

from drumbeat.coordinator.core.registry import jobs, registry
from drumbeat.coordinator.core.run.state import RunState
from tests.simulation.groups import GroupsWorld

SEEDS = int(os.environ.get("DRUMBEAT_SEEDS", "100"))
SEEDS_PER_TEST = 20
MISTAKE_SEEDS_MAX = 200


def live(seed: int) -> GroupsWorld:
    """Live one world; a failure names its seed."""
    world = GroupsWorld(seed)
    try:
        world.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_job_ends_wrongly_and_no_group_waits_for_ever(first: int) -> None:
    worlds = [live(seed) for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS))]
    if len(worlds) == SEEDS_PER_TEST:
        for what in ("waits_seen", "closed", "succeeded"):
            assert sum(getattr(world, what) for world in worlds) > 10, what


def _forgets_to_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registry, "why_lost", lambda _groups: "")


def _counts_what_is_over(patch: pytest.MonkeyPatch) -> None:
    """Failures of an earlier life of the job are counted."""

    def groups_of(job: str, states: Iterable[RunState]) -> dict[int, RunState]:
        found = {}
        for state in sorted(states, key=lambda state: state.created_at):
            if state.spec.replica_group is not None and state.spec.replica_group.job == job:
                found[state.spec.replica_group.index] = state
        return found

    patch.setattr(registry, "groups_of", groups_of)


def _counts_success_as_failure(patch: pytest.MonkeyPatch) -> None:
    def why_lost(groups: dict[int, RunState]) -> str:
        group = jobs.newest(groups) if groups else None
        ended = sum(state.verdict is not None for state in groups.values())
        return "" if group is None or group.count - ended >= group.groups_min else "too few"

    patch.setattr(registry, "why_lost", why_lost)


@pytest.mark.parametrize(
    "mistake", [_forgets_to_look, _counts_what_is_over, _counts_success_as_failure]
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        list(map(live, range(MISTAKE_SEEDS_MAX)))
