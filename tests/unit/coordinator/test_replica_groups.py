"""A job of several replica groups: which runs may belong to it."""

from __future__ import annotations

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import RunSpec
from drumbeat.coordinator.errors import InvalidRequest, SpecMismatch
from drumbeat.coordinator.wire.session import SPEC
from drumbeat.model import ReplicaGroup
from tests.support.world import Story, a_spec, a_story


def a_group_spec(index: int, count: int = 3, groups_min: int = 1, **fields: Any) -> RunSpec:
    """Return the spec of a group of the job "ft"."""
    group = ReplicaGroup(job="ft", index=index, count=count, groups_min=groups_min)
    return a_spec(1, replica_group=group, restarts_max=1, **fields)


def join(story: Story, run_id: str, spec: RunSpec, *, name: str = "") -> Exception | None:
    """Let an agent, of the run's name by default, open its session; return why it was refused."""
    effects = story.join(name or run_id, run_id=run_id, spec=spec)
    return next((each.error for each in effects if isinstance(each, fx.Reject)), None)


def test_a_group_is_in_the_protocol_as_in_the_core() -> None:
    for spec in (a_group_spec(2, 4, 3), a_spec(1)):
        assert SPEC.read(SPEC.write(spec)) == spec


@pytest.mark.parametrize(
    ("run_id", "fields", "field"),
    [
        ("ft.0", {"index": 0, "count": 0}, "count"),
        ("ft.4", {"index": 4, "count": 4}, "index"),
        ("ft.0", {"index": 0, "groups_min": 0}, "groups_min"),
        ("ft.0", {"index": 0, "groups_min": 5}, "groups_min"),
        ("ft.1", {"index": 0}, "job"),
        ("ft", {"index": 0}, "job"),
    ],
)
def test_an_impossible_group_is_refused(run_id: str, fields: dict[str, int], field: str) -> None:
    group = ReplicaGroup(job="ft", **({"count": 4} | fields))
    error = join(a_story(1), run_id, a_spec(1, replica_group=group))
    assert isinstance(error, InvalidRequest)
    assert error.field == f"spec.replica_group.{field}"


def test_a_plain_run_and_a_group_with_one_id_are_not_mixed() -> None:
    story = a_story(1)
    assert join(story, "ft.0", a_group_spec(0)) is None
    error = join(story, "ft.0", a_spec(1, restarts_max=1), name="plain")
    assert isinstance(error, SpecMismatch)
    assert "--replica-group: the run has '0/3 with --min-groups 1', not 'none'" in str(error)


def test_no_run_has_the_id_of_a_job_that_lives() -> None:
    story = a_story(1)
    assert join(story, "ft.0", a_group_spec(0)) is None
    error = join(story, "ft", a_spec(1))
    assert isinstance(error, InvalidRequest)
    assert error.field == "run_id"
    story.obey("ft.0")
    story.succeed("ft.0")
    assert join(story, "ft", a_spec(1)) is None
    error = join(story, "ft.1", a_group_spec(1))
    assert isinstance(error, InvalidRequest)
    assert error.field == "spec.replica_group.job"


def test_all_groups_of_a_job_have_the_same_number_of_groups() -> None:
    story = a_story(1)
    assert join(story, "ft.0", a_group_spec(0)) is None
    error = join(story, "ft.1", a_group_spec(1, count=4, groups_min=2))
    assert isinstance(error, SpecMismatch)
    said = str(error)
    assert "--replica-group (number of groups): the run has 3, not 4" in said
    assert "--min-groups: the run has 1, not 2" in said
    story.break_session("ft.0")
    assert join(story, "ft.1", a_group_spec(1, count=4)) is None, "no agent of the other is there"
