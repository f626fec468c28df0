"""Runs of a launcher that counts restarts itself: nothing is charged, and it says when it ends."""

from drumbeat.coordinator.core.membership.admission import differences
from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.model import GroupState
from tests.support.world import Story, a_running_story, a_spec


def a_story() -> Story:
    return a_running_story(2, restarts_max=0, launcher="torchrun")


def test_no_restart_is_charged_however_many_there_are() -> None:
    story = a_story()
    for round_id in range(5):
        story.fail("ab"[round_id % 2])
        state = story.state()
        assert (state.round_id, state.restarts_used) == (round_id + 1, 0)
        assert state.round is not None
        assert state.round.reason.endswith("torchrun restarts its workers")
        for name in "ab":
            story.obey(name)


def test_the_launcher_ends_the_run_when_it_restarts_no_more() -> None:
    story = a_story()
    story.beat("b", GroupState.FAILED, workers_alive=0, is_start_impossible=True)
    story.beat("a", GroupState.STOPPING, workers_alive=0)
    state = story.state()
    assert state.phase is Phase.ENDED
    assert state.verdict is not None
    assert state.verdict.cause is VerdictCause.WORKER_FAILED
    assert "torchrun does not restart its workers" in state.verdict.reason


def test_agents_and_a_launcher_do_not_mix_in_a_run() -> None:
    (difference,) = differences(theirs=a_spec(2), ours=a_story().spec)
    assert (difference.field, difference.theirs, difference.ours) == ("launcher", "", "torchrun")
