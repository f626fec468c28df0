"""A command that can't be started: who may end the run with it."""

from drumbeat.coordinator.core.run.records import RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.model import GroupState
from tests.support.world import a_running_story


def test_a_late_agent_that_can_not_start_ends_no_run_that_trains() -> None:
    story = a_running_story(1, 2, agents_min=1, restarts_max=1)
    story.join("late")
    story.obey("late")
    assert story.state().round_id == 1
    story.beat("late", GroupState.FAILED, workers_alive=0, is_start_impossible=True)
    assert [record.cause for record in story.records(RoundEnded)] == [
        RoundEnd.AGENT_JOINED,
        RoundEnd.WORKER_FAILED,
    ]
    assert story.state().phase is not Phase.ENDING


def test_an_agent_of_the_first_round_still_ends_it_later() -> None:
    """Goal: no budget is burnt. Method: another agent's failure was quicker in the first round."""
    story = a_running_story(2, restarts_max=5)
    story.fail("a")
    for name in ("a", "b"):
        story.obey(name)
    assert story.state().round_id == 1
    story.beat("b", GroupState.FAILED, workers_alive=0, is_start_impossible=True)
    assert story.state().phase is Phase.ENDING
