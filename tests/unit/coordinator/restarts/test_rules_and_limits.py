"""What follows from the root cause of a failure: by rules, and by the limit without progress."""

from collections.abc import Callable
from typing import Any

import pytest

from drumbeat.coordinator.core.model import Hang, VerdictCause
from drumbeat.coordinator.core.run.records import RoundEnded
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import HangKind, exit_code_of
from tests.support.world import Story, a_running_story

KILLED: dict[str, Any] = {"exit_code": -9, "signal_name": "SIGKILL"}


def a_ruled_story(*rules: str, **fields: Any) -> Story:
    given = {"restarts_max": 2, "free_restarts_max": 2, "is_lively": True}
    return a_running_story(2, restart_rules=rules, **(given | fields))


def fail(story: Story, name: str = "a", **record: Any) -> None:
    story.record(name, **({"exit_code": 1, "happened_at": story.now} | record))
    story.fail(name)


def test_a_rule_can_end_the_run_at_once() -> None:
    story = a_ruled_story("exit=7:restart", "exit=42:fail")
    fail(story, exit_code=42)
    verdict = story.verdict("a")
    assert (verdict.cause, verdict.restart_count) == (VerdictCause.FAILED_BY_RULE, 0)
    assert "restart rule 2 (exit=42:fail) ends the run" in verdict.reason


def test_the_first_rule_that_matches_counts() -> None:
    story = a_ruled_story("exit=40-49:restart", "exit=42:fail")
    fail(story, exit_code=42)
    assert (story.state().phase, story.state().restarts_used) == (Phase.RUNNING, 1)


def test_rules_look_at_the_root_cause_and_never_at_a_victim() -> None:
    story = a_ruled_story("signal=TERM:fail", "exit=42:fail")
    story.record("b", exit_code=-15, signal_name="SIGTERM", is_stopped_by_agent=True, age_s=5.0)
    fail(story, exit_code=1)
    assert story.state().phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("rule", "record"),
    [
        ("oom:fail", {**KILLED, "is_out_of_memory": True}),
        ("signal=KILL:fail", KILLED),
        ("error=boom:fail", {"matched_rules": (1,)}),
        ("hang:fail", {**KILLED, "hang": Hang(kind=HangKind.TIMER, limit_s=1, elapsed_s=1)}),
    ],
)
def test_each_condition_is_found_in_the_record(rule: str, record: dict[str, Any]) -> None:
    story = a_ruled_story(rule)
    fail(story, **record)
    assert story.verdict("a").cause is VerdictCause.FAILED_BY_RULE


def test_a_label_is_that_of_the_host_of_the_root_cause() -> None:
    story = a_ruled_story("host=rack=b7:fail")
    story.run().members.presences["b.1"].labels = {"rack": "b7"}
    fail(story, "a")
    assert story.state().phase is Phase.RUNNING
    fail(story, "b")
    assert story.verdict("b").cause is VerdictCause.FAILED_BY_RULE


def test_a_free_restart_is_not_charged_until_their_limit_is_reached() -> None:
    story = a_ruled_story("exit=7:restart-free")
    for _ in range(2):
        fail(story, exit_code=7)
    state = story.state()
    assert (state.restart_count, state.restarts_used, state.restarts.free) == (2, 0, 2)
    reasons = [record.reason for record in story.records(RoundEnded)]
    assert reasons[0].endswith("restart rule 1 (exit=7:restart-free); free restart 1 of 2")
    fail(story, exit_code=7)
    assert story.state().restarts_used == 1
    last = story.records(RoundEnded)[-1].reason
    assert last.endswith("all 2 free restarts are used; restart 1 of 2")


def test_a_host_that_cannot_be_excluded_costs_a_restart_and_that_is_said() -> None:
    story = a_ruled_story("oom:exclude")
    fail(story, **KILLED, is_out_of_memory=True)
    assert story.state().restarts_used == 1
    (ended,) = story.records(RoundEnded)
    assert "restart rule 1 (oom:exclude): the host could not be excluded" in ended.reason


def test_the_host_of_the_root_cause_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def exclude(_: Run, incarnation: str, reason: str, now: float) -> str:
        asked.append((incarnation, reason, now))
        return "host b is excluded for 1 h"

    monkeypatch.setattr(Run, "exclude", exclude)
    story = a_ruled_story("oom:exclude")
    fail(story, "b", **KILLED, is_out_of_memory=True)
    ((incarnation, reason, now),) = asked
    assert (incarnation, now) == ("b.1", story.now)
    assert reason.endswith("restart rule 1 (oom:exclude)")
    (ended,) = story.records(RoundEnded)
    assert "restart rule 1 (oom:exclude): host b is excluded for 1 h" in ended.reason
    assert story.state().restarts_used == 0


# Without progress.


def attempt(story: Story, step: int | None, **record: Any) -> None:
    if step is not None:
        story.beat("a", workers=(WorkerProgress(local_rank=0, step=step),))
    fail(story, **record)


def boom(line: int, host: str = "x") -> dict[str, Any]:
    return {
        "message": "ValueError: boom",
        "traceback": f'  File "/{host}/train.py", line {line}, in step\n    raise\n',
    }


def stuck(*attempts: Callable[[Story], None], limit: int = 2) -> str:
    story = a_running_story(2, restarts_max=50, no_progress_limit=limit, is_lively=True)
    for each in attempts:
        assert story.state().phase is Phase.RUNNING, story.state().reason
        each(story)
    verdict = story.state().verdict
    return "" if verdict is None else f"{verdict.cause}: {verdict.reason}"


def test_restarts_without_a_new_farthest_step_end_the_run_with_the_cause_they_share() -> None:
    said = stuck(
        lambda story: attempt(story, 5, **boom(3)),
        lambda story: attempt(story, 5, **boom(3, host="y")),
        lambda story: attempt(story, 5, **boom(3)),
    )
    assert said.startswith("NO_PROGRESS: round 2 failed: ")
    why = "no progress past step 5 in 2 restarts: each time ValueError at train.py:3 at step 5"
    assert why in said


@pytest.mark.parametrize("other", [(5, boom(4)), (4, boom(3)), (5, {"exit_code": 7})])
def test_causes_that_differ_are_not_named(other: tuple[int, dict[str, Any]]) -> None:
    step, record = other
    said = stuck(
        lambda story: attempt(story, 5, **boom(3)),
        lambda story: attempt(story, step, **record),
        lambda story: attempt(story, 5, **boom(3)),
    )
    assert "no progress past step 5 in 2 restarts" in said
    assert "each time" not in said


def test_the_same_cause_is_recognized_before_its_record_is_there() -> None:
    said = stuck(
        lambda story: attempt(story, 5, **boom(3)),
        lambda story: attempt(story, 5, message="ValueError: boom"),
        lambda story: attempt(story, 5, **boom(3)),
    )
    assert "each time ValueError at train.py:3 at step 5" in said


def test_a_new_farthest_step_begins_the_count_anew() -> None:
    steps = (5, 5, 6, 6)
    assert not stuck(*(lambda story, step=step: attempt(story, step) for step in steps))


def test_where_steps_are_unknown_nothing_counts() -> None:
    assert not stuck(*[lambda story: attempt(story, None)] * 10)


def test_a_restart_that_reaches_no_step_at_all_is_one_without_progress() -> None:
    said = stuck(lambda story: attempt(story, 5), *[lambda story: attempt(story, None)] * 2)
    assert said.startswith("NO_PROGRESS")


def test_what_ends_a_run_for_good_has_an_exit_code_of_its_own() -> None:
    codes = {cause: exit_code_of(cause) for cause in VerdictCause}
    for_good = {VerdictCause.FAILED_BY_RULE, VerdictCause.NO_PROGRESS}
    assert {cause for cause, code in codes.items() if code == 5} == for_good
    assert (codes[VerdictCause.SUCCEEDED], codes[VerdictCause.STOPPED]) == (0, 4)
    assert codes[VerdictCause.WORKER_FAILED] == exit_code_of("OF_A_LATER_VERSION") == 1
