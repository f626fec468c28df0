"""A job of several replica groups: which runs belong to it, and when it ends."""

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    CheckpointAsked,
    DrainAsked,
    ForgetAsked,
    RestartAsked,
    StopAsked,
)
from drumbeat.coordinator.core.model import RunSpec, VerdictCause
from drumbeat.coordinator.core.run.records import RunEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import (
    InvalidRequest,
    RunClosed,
    SpecMismatch,
    UnknownRun,
    WrongPhase,
)
from drumbeat.coordinator.wire.session import SPEC
from drumbeat.model import ReplicaGroup, exit_code_of
from tests.support.operator import ask
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


def a_job(count: int, groups_min: int = 1, **fields: Any) -> Story:
    """Return a story of a job whose groups train, an agent each; its clock has moved on."""
    story = a_story(1, **fields)
    for index in range(count):
        assert join(story, f"ft.{index}", a_group_spec(index, count, groups_min)) is None
        story.advance(1.0)
    story.obey_all()
    return story


def fail_for_good(story: Story, run_id: str) -> None:
    """Let a worker of a group fail until no restart is left."""
    for _ in range(2):
        story.fail(run_id)
        story.obey(run_id)
        story.advance(2.0)
        story.obey(run_id)
    assert story.state(run_id).verdict is not None


def phases(story: Story) -> list[Phase]:
    return [state.phase for state in story.registry.groups_of("ft").values()]


def test_a_failure_restarts_its_group_alone() -> None:
    story = a_job(3)
    story.fail("ft.1")
    story.obey_all()
    story.advance(5.0)
    story.obey_all()
    rounds = [story.state(f"ft.{index}").round_id for index in range(3)]
    assert rounds == [0, 1, 0]


def test_by_default_a_job_goes_on_as_long_as_one_group_can() -> None:
    story = a_job(3)
    fail_for_good(story, "ft.1")
    fail_for_good(story, "ft.2")
    assert phases(story) == [Phase.RUNNING, Phase.ENDED, Phase.ENDED]


def test_a_job_ends_once_fewer_groups_than_its_minimum_can_go_on() -> None:
    story = a_job(4, 3)
    fail_for_good(story, "ft.1")
    assert phases(story) == [Phase.RUNNING, Phase.ENDED, Phase.RUNNING, Phase.RUNNING]
    fail_for_good(story, "ft.3")
    assert set(phases(story)) == {Phase.ENDED}
    verdict = story.verdict("ft.0")
    assert verdict.cause is VerdictCause.GROUPS_MISSING
    assert exit_code_of(verdict.cause) == 1
    said = "2 of 4 replica groups of ft ended without success (ft.1 and ft.3); --min-groups is 3"
    assert verdict.reason.startswith(said)
    assert story.verdict("ft.3").cause is VerdictCause.WORKER_FAILED


def test_a_group_that_succeeded_counts_and_waits_for_nothing() -> None:
    story = a_job(3, 2)
    story.succeed("ft.0")
    assert story.verdict("ft.0").is_success
    fail_for_good(story, "ft.1")
    assert phases(story) == [Phase.ENDED, Phase.ENDED, Phase.RUNNING]
    fail_for_good(story, "ft.2")
    assert [s.verdict and s.verdict.cause for s in story.registry.groups_of("ft").values()] == [
        VerdictCause.SUCCEEDED,
        VerdictCause.WORKER_FAILED,
        VerdictCause.WORKER_FAILED,
    ]


def test_a_group_that_is_started_again_counts_again() -> None:
    story = a_job(3, 2)
    fail_for_good(story, "ft.1")
    story.advance(1.0)
    assert join(story, "ft.1", a_group_spec(1, 3, 2), name="again") is not None, "it began before"
    story.join("again", run_id="ft.1", spec=a_group_spec(1, 3, 2), began_at=story.now)
    fail_for_good(story, "ft.2")
    assert story.state("ft.0").phase is Phase.RUNNING


def test_failures_of_an_earlier_life_of_the_job_do_not_count() -> None:
    story = a_job(3, 2)
    fail_for_good(story, "ft.1")
    fail_for_good(story, "ft.2")
    story.advance(1.0)
    for index in range(3):
        story.join(
            f"b{index}", run_id=f"ft.{index}", spec=a_group_spec(index, 3, 2), began_at=story.now
        )
    assert phases(story) == [Phase.RUNNING] * 3


def test_a_group_that_comes_too_late_for_a_job_that_failed_is_refused() -> None:
    story = a_story(1)
    began_at = story.now
    story.advance(1.0)
    join(story, "ft.0", a_group_spec(0, 3, 3))
    story.obey("ft.0")
    fail_for_good(story, "ft.0")
    (refused,) = story.join("late", run_id="ft.1", spec=a_group_spec(1, 3, 3), began_at=began_at)
    assert isinstance(refused, fx.Reject)
    assert isinstance(refused.error, RunClosed)
    assert "1 of 3 replica groups of ft ended without success (ft.0)" in str(refused.error)
    story.advance(1.0)
    story.join("new", run_id="ft.1", spec=a_group_spec(1, 3, 3), began_at=story.now)
    assert story.state("ft.1").phase is Phase.RUNNING


def test_a_coordinator_that_restarts_ends_what_it_had_not_ended() -> None:
    story = a_job(2, 2)
    fail_for_good(story, "ft.1")
    assert phases(story) == [Phase.ENDED] * 2
    # It was killed between two writes: the other group's end is not in the journal.
    story.journal = [
        (key, record)
        for key, record in story.journal
        if key != "ft.0" or not isinstance(record, RunEnded)
    ]
    story.restart()
    story.back("ft.0")
    assert story.verdict("ft.0").cause is VerdictCause.GROUPS_MISSING


def test_what_is_asked_of_a_job_is_asked_of_its_groups() -> None:
    story = a_job(3)
    story.succeed("ft.2")
    told = ask(story, RestartAsked, run_id="ft")
    assert told == fx.Steered(
        outcome="2 replica groups: its next round starts; no restart is charged"
    )
    story.obey_all()
    story.obey_all()
    assert [story.state(f"ft.{index}").round_id for index in range(3)] == [1, 1, 0]
    assert isinstance(ask(story, CheckpointAsked, run_id="ft"), fx.Steered)
    assert isinstance(ask(story, StopAsked, run_id="ft.0", reason="enough"), fx.Steered)
    story.obey_all()
    assert phases(story) == [Phase.ENDED, Phase.RUNNING, Phase.ENDED]
    assert isinstance(ask(story, StopAsked, run_id="ft"), fx.Steered)
    story.obey_all()
    assert story.verdict("ft.1").cause is VerdictCause.STOPPED
    told = ask(story, RestartAsked, run_id="ft")
    assert isinstance(told, WrongPhase)
    for name in ("ft.0", "ft.1", "ft.2"):
        story.break_session(name)
    for is_new in (True, False):
        told = ask(story, ForgetAsked, run_id="ft", call_id="f")
        assert isinstance(told, fx.Steered)
        assert told.is_new is is_new
        assert not story.registry.runs
    assert isinstance(ask(story, StopAsked, run_id="ft"), UnknownRun)


def test_a_job_that_is_stopped_is_not_lost() -> None:
    story = a_job(3, 3)
    ask(story, StopAsked, run_id="ft")
    for index in range(3):
        story.obey(f"ft.{index}")
        story.advance(1.0)
    causes = {
        state.verdict and state.verdict.cause for state in story.registry.groups_of("ft").values()
    }
    assert causes == {VerdictCause.STOPPED}
    assert story.reset_limits("ft") == 0


def test_a_host_is_drained_from_the_groups_of_a_job() -> None:
    story = a_job(2)
    told = ask(story, DrainAsked, run_id="ft", name="ft.1")
    assert isinstance(told, fx.Steered)
    assert "ft.1: 1 agent left" in told.outcome
    assert {drain.run_id for drain in story.registry.drains.active} == {"ft.0", "ft.1"}
