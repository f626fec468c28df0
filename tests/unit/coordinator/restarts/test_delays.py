"""How long a run waits before a restart, what ends the wait, and which restarts count."""

from typing import Any

import pytest

from drumbeat.coordinator.core.effects import Steered
from drumbeat.coordinator.core.events import RestartAsked, StopAsked
from drumbeat.coordinator.core.inprocess.records import IterationBegan, IterationInterrupted
from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.run.notice import NoticeEnded
from drumbeat.coordinator.core.run.records import RoundEnd, RoundEnded, RoundStarted
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from tests.support.inprocess.runs import enter_all
from tests.support.operator import ask
from tests.support.status import status_of
from tests.support.world import START, Story, a_running_story


def a_restarting_story(size: int = 2, agents_max: int | None = None, **fields: Any) -> Story:
    given = {"restarts_max": 100, "restart_delay_max_s": 60.0, "is_lively": True}
    return a_running_story(size, agents_max, **(given | fields))


def fail_at_once(story: Story, step: int | None = None, name: str = "a") -> None:
    """Let a round fail at a step, as soon as it runs."""
    if step is not None:
        story.beat(name, workers=(WorkerProgress(local_rank=0, step=step),))
    story.fail(name)


def waits(story: Story, number: int, step: int | None = None) -> list[float]:
    """Let so many rounds fail one after the other; return how long each restart waited."""
    found = []
    for _ in range(number):
        fail_at_once(story, step)
        failed_at = story.now
        while story.state().phase is Phase.GATHERING:
            story.advance(0.5)
        found.append(story.records(RoundStarted)[-1].at_s - failed_at)
    return found


def test_the_first_restart_is_immediate_and_the_next_ones_wait_twice_as_long_each() -> None:
    assert waits(a_restarting_story(), 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_longest_wait_of_0_never_waits() -> None:
    assert waits(a_restarting_story(restart_delay_max_s=0.0), 4) == [0, 0, 0, 0]


def test_a_new_farthest_step_begins_the_waits_anew_and_one_that_was_made_does_not() -> None:
    story = a_restarting_story()
    assert waits(story, 3, step=5) == [0, 1, 2]
    assert waits(story, 2, step=6) == [0, 1]
    assert waits(story, 1, step=4) == [2]
    assert story.state().restarts.farthest == 6


def test_a_step_counts_although_a_worker_has_begun_again_since() -> None:
    """As after a restart in process, from a checkpoint."""
    story = a_restarting_story()
    assert waits(story, 2, step=5) == [0, 1]
    story.beat("a", workers=(WorkerProgress(local_rank=0, step=9),))
    story.beat("a", workers=(WorkerProgress(local_rank=0, step=2),))
    assert waits(story, 1) == [0]


@pytest.mark.parametrize(("moved_s", "waited"), [(29.0, [2.0]), (30.0, [0.0])])
def test_collectives_that_moved_for_a_while_are_progress(
    moved_s: float, waited: list[float]
) -> None:
    story = a_restarting_story()
    assert waits(story, 2) == [0, 1]
    story.agents["b"].more = {"collectives_moved_s": moved_s}
    story.beat("b")
    assert waits(story, 1) == waited


def test_a_checkpoint_that_all_saved_is_progress_once() -> None:
    story = a_restarting_story()
    assert waits(story, 3) == [0, 1, 2]
    story.state().apply(NoticeEnded(notice_id=1, reason="all have saved", is_saved=True))
    assert waits(story, 2) == [0, 1]


def test_a_round_that_lost_an_agent_is_not_delayed() -> None:
    story = a_restarting_story(2, 3, agents_min=2)
    assert waits(story, 3) == [0, 1, 2]
    story.join("c")
    story.advance(60)
    assert story.ranks() == ["a", "b", "c"]
    story.leave("c")
    last = story.records(RoundEnded)[-1]
    assert (last.cause, story.state().phase) == (RoundEnd.AGENT_LOST, Phase.RUNNING)
    assert story.records(RoundStarted)[-1].at_s == last.at_s
    assert waits(story, 1) == [4], "what came between was no progress"


def test_agents_that_come_and_go_neither_end_nor_lengthen_the_wait() -> None:
    story = a_restarting_story(2, 3, agents_min=2)
    waits(story, 3)
    fail_at_once(story)
    failed_at = story.now
    story.join("c")
    story.leave("b")
    story.advance(3.9)
    assert story.state().phase is Phase.GATHERING
    story.advance(0.2)
    assert (story.ranks(), story.records(RoundStarted)[-1].at_s) == (["a", "c"], failed_at + 4)


def test_the_join_timeout_counts_from_the_end_of_the_wait() -> None:
    story = a_restarting_story(restart_delay_max_s=60.0, join_timeout_s=5.0)
    waits(story, 6)
    fail_at_once(story)
    story.leave("b")
    story.advance(32 + 4.5)
    assert story.state().phase is Phase.GATHERING
    story.advance(1)
    assert story.verdict("a").cause is VerdictCause.AGENTS_MISSING


def test_status_and_agents_are_told_how_long_it_waits() -> None:
    story = a_restarting_story()
    waits(story, 3)
    fail_at_once(story)
    story.advance(1.5)
    status = status_of(story.run().state, story.run(), now=story.now)
    why = "round 3 failed: a worker on a"
    assert status.reason == f"restart 4 of 100 in 2.5 s: {why}"
    standby = story.standby("b")
    assert (standby.reason, standby.time_left_s) == (f"waiting before restart 4 of 100: {why}", 4)
    assert story.records(RoundEnded)[-1].reason == f"{why}; restart 4 of 100 in 4 s"


def test_a_stop_ends_the_wait_at_once() -> None:
    story = a_restarting_story()
    waits(story, 4)
    fail_at_once(story)
    ask(story, StopAsked, reason="enough")
    assert story.verdict("a").cause is VerdictCause.STOPPED


def test_an_operator_can_skip_the_wait() -> None:
    story = a_restarting_story()
    waits(story, 4)
    fail_at_once(story)
    used = story.state().restarts_used
    said = ask(story, RestartAsked)
    assert isinstance(said, Steered)
    assert (said.is_new, "waits no longer" in said.outcome) == (True, True)
    assert (story.state().phase, story.state().restarts_used) == (Phase.RUNNING, used)
    assert story.records(RoundStarted)[-1].at_s == story.now


def test_a_coordinator_that_restarts_waits_until_the_same_instant() -> None:
    story = a_restarting_story()
    waits(story, 4)
    fail_at_once(story)
    failed_at = story.now
    story.advance(3)
    story.restart()
    for name in "ab":
        story.back(name)
    story.live()
    story.advance(4.9)
    assert story.state().phase is Phase.GATHERING
    story.advance(0.2)
    assert story.records(RoundStarted)[-1].at_s == failed_at + 8


def test_a_wait_while_the_coordinator_was_away_is_not_waited_for_again() -> None:
    story = a_restarting_story()
    waits(story, 4)
    fail_at_once(story)
    story.now += 100
    story.restart()
    for name in "ab":
        story.back(name)
    story.live()
    assert story.state().phase is Phase.RUNNING


def test_a_window_counts_the_latest_restarts_only() -> None:
    story = a_restarting_story(restarts_max=2, restart_delay_max_s=0.0, restart_window_s=10.0)
    waits(story, 1)
    story.advance(6)
    waits(story, 1)
    assert story.state().restarts_used == 2
    story.advance(5)
    waits(story, 1)
    state = story.state()
    assert (state.phase, state.restart_count, state.restarts_used) == (Phase.RUNNING, 3, 2)
    fail_at_once(story)
    assert story.state().phase is not Phase.RUNNING
    assert story.state().reason.endswith("all 2 restarts of the last 10 s are used")


def test_a_restart_that_is_given_back_is_given_back_to_the_window() -> None:
    story = a_restarting_story(3, 3, restarts_max=2, restart_window_s=1000.0, agents_min=2)
    story.silence("c")
    story.advance(1.2)
    fail_at_once(story)
    assert story.state().restarts_used == 1
    story.advance(10)
    assert story.state().restarts_used == 0


def test_a_failure_that_a_lost_host_explains_does_not_delay_the_next_one() -> None:
    story = a_restarting_story(3, 3, agents_min=2)
    waits(story, 4)
    story.silence("c")
    story.advance(1.2)
    fail_at_once(story)
    failed_at = story.now
    story.advance(7.0)
    assert story.ranks() == ["a", "b"]
    assert story.records(RoundStarted)[-1].at_s < failed_at + 8
    assert waits(story, 1) == [8], "as if that failure had not been"


# In process.


def iterate(story: Story, step: int | None = None) -> float:
    """Let an iteration fail in a, and all enter the next one; return how long that waited."""
    if step is not None:
        story.beat("a", workers=(WorkerProgress(local_rank=0, step=step),))
    story.interrupt("a")
    began = len(story.records(IterationBegan))
    enter_all(story)
    failed_at = story.now
    while len(story.records(IterationBegan)) == began and story.state().phase is Phase.RUNNING:
        story.advance(0.5)
    return story.now - failed_at


def test_iterations_without_progress_wait_like_rounds() -> None:
    story = a_restarting_story()
    enter_all(story)
    assert [iterate(story) for _ in range(4)] == [0, 1, 2, 4]
    assert iterate(story, step=7) == 0
    assert iterate(story) == 1
    assert len(story.records(IterationInterrupted)) == 6
    assert not story.records(RoundEnded)


def test_iterations_without_a_new_step_end_the_run_at_its_limit() -> None:
    story = a_restarting_story(no_progress_limit=2)
    enter_all(story)
    assert iterate(story, step=7) == 0
    assert iterate(story) == 1
    story.interrupt("a")
    story.advance(60)
    verdict = story.verdict("a")
    assert verdict.cause is VerdictCause.NO_PROGRESS
    why = "no progress past step 7 in 2 restarts: each time an exception at step 7"
    assert why in verdict.reason


def test_the_time_at_which_it_waits_is_on_the_clock_of_the_journal() -> None:
    story = a_restarting_story()
    waits(story, 1)
    fail_at_once(story)
    (*_, last) = story.records(RoundEnded)
    assert (story.now, last.attempt.until_s) == (START, START + 1)
