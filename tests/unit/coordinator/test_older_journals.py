"""An older copy of the journal is restored: agents know later rounds, and all of them stay."""

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import RestartAsked
from drumbeat.coordinator.core.model import Exit
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.model import Assignment, GroupState, Standby
from tests.support.operator import ask
from tests.support.world import RUN, Story, a_running_story, a_story

NAMES = ("a", "b", "c")
GRACE = Policy(checkpoint_grace_s=20.0)


def fail_a_round(story: Story) -> None:
    story.fail("a")
    story.obey_all()
    story.obey_all()
    assert story.state().phase is Phase.RUNNING


def a_restored_story(backup_at: int, rounds: int = 6) -> Story:
    """Return a story in which a copy made in an earlier round was restored."""
    story = a_running_story(3, restarts_max=20)
    backup = list(story.journal)
    for round_id in range(1, rounds + 1):
        fail_a_round(story)
        if round_id == backup_at:
            backup = list(story.journal)
    assert {story.agents[name].round_id for name in NAMES} == {rounds}
    story.journal = backup
    story.restart()
    assert story.state().round_id == backup_at
    return story


@pytest.mark.parametrize("backup_at", [0, 2, 5])
@pytest.mark.parametrize("first", NAMES)
def test_agents_of_later_rounds_stay_and_begin_one_above_all_of_theirs(
    backup_at: int, first: str
) -> None:
    story = a_restored_story(backup_at)
    used = story.state().restarts_used
    for name in (first, *(name for name in NAMES if name != first)):
        effects = story.back(name)
        told = [effect.state for effect in effects if isinstance(effect, fx.Direct)]
        assert not any(isinstance(each, fx.Reject) for each in effects)
        for each in told:
            assert isinstance(each, Standby | Assignment), each
            assert isinstance(each, Standby) or each.round_id == 7
    story.obey_all()
    story.obey_all()
    assert story.state().round_id == 7
    assert {story.agents[name].round_id for name in NAMES} == {7}
    assert set(story.ranks()) == set(NAMES)
    assert story.state().restarts_used == used
    assert any("older copy" in entry.reason for entry in story.state().history)
    story.registry.check_invariants()


def test_agents_that_the_older_journal_does_not_know_stay_with_the_others() -> None:
    story = a_running_story(2, 3, restarts_max=20)
    backup = list(story.journal)
    story.join("c")
    story.advance(story.spec.last_call_s)
    story.obey_all()
    story.obey_all()
    fail_a_round(story)
    held = story.agents["c"].round_id
    assert held is not None
    story.journal = backup
    story.restart()
    for name in ("c", "a", "b"):
        assert not [each for each in story.back(name) if isinstance(each, fx.Reject)]
    story.obey_all()
    story.advance(story.spec.last_call_s)
    story.obey_all()
    assert set(story.ranks()) == {"a", "b", "c"}
    assert story.state().round_id == held + 1


def test_agents_of_a_later_run_of_an_id_are_not_told_that_the_earlier_one_ended() -> None:
    story = a_story(1, restarts_max=9)
    story.join("a", began_at=story.now)
    story.obey("a")
    story.succeed("a")
    story.obey("a")
    story.break_session("a")
    backup = list(story.journal)
    story.advance(1.0)
    story.join("b", began_at=story.now)
    story.obey("b")
    for _ in range(2):
        story.fail("b")
        story.obey_all()
        story.obey_all()
    held = story.agents["b"].round_id
    assert held == 2
    story.journal = backup
    story.restart()
    assert not [each for each in story.back("b") if isinstance(each, fx.Reject)]
    state = story.desired("b").state
    assert isinstance(state, Assignment)
    assert state.round_id == held + 1


def test_no_identity_is_used_again_after_a_run_was_forgotten() -> None:
    story = a_story(1)
    keys = []
    for _ in range(3):
        story.join("a", began_at=story.now)
        keys += list(story.registry.runs)
        story.obey("a")
        story.succeed("a")
        story.obey("a")
        story.break_session("a")
        forgotten = story.registry._forgotten(list(story.registry.runs))
        assert isinstance(forgotten[-1], fx.KeepForgets)
        known = forgotten[-1]
        story.journal.clear()
        story.restart()
        story.registry.forgets = known
        story.advance(1.0)
    assert len(set(keys)) == 3, keys
    assert keys[0] == RUN


def test_a_run_that_has_ended_is_not_entered_again_from_a_later_round() -> None:
    story = a_running_story(2, 2)
    for name in "ab":
        story.succeed(name)
    story.agents["a"].round_id = story.state().next_round_id
    known = len(story.journal)
    (told,) = [each for each in story.back("a") if isinstance(each, fx.Direct)]
    assert isinstance(told.state, Exit)
    assert len(story.journal) == known


def test_a_later_round_without_a_hello_ends_nothing_while_training_saves() -> None:
    story = a_running_story(2, 2, policy=GRACE)
    ask(story, RestartAsked)
    notice = story.state().notice
    assert notice is not None
    story.beat("a", GroupState.IDLE, round_id=1)
    assert story.state().notice == notice


def test_an_older_journal_ends_its_round_once_training_had_its_time_to_save() -> None:
    story = a_running_story(2, 2, policy=GRACE)
    ask(story, RestartAsked)
    story.agents["a"].round_id = 4
    story.back("a")
    assert story.state().notice is not None
    story.advance(20.0)
    story.obey_all()
    story.obey_all()
    assert story.state().round_id == 5
