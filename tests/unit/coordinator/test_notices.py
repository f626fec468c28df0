"""A notice before change: given, one step chosen that nobody has passed, waited for, over."""

from __future__ import annotations

from coordinator.core import effects as fx
from coordinator.core.phases.notices import REPORTS_WAIT_S
from coordinator.core.progress.notice import Leaving, NoticeEnded, NoticeReport, StepChosen
from coordinator.core.run.records import RoundEnd, RoundEnded
from tests.support.world import Story, a_running_story

GOING = Leaving(reason="got SIGTERM, its host will go away", time_left_s=20.0)


def a_preempted_story(size: int = 3) -> Story:
    """Return a run of which agent b will go away."""
    story = a_running_story(size, agents_min=size - 1, agents_max=size)
    story.beat("b", more={"leaving": GOING})
    return story


def report(story: Story, name: str, **fields: object) -> list[fx.Effect]:
    """Let a host say what its workers say of the notice as it is now."""
    notice = story.state().notice
    assert notice is not None
    known = {"notice_id": notice.notice_id, "chosen": notice.chosen, **fields}
    return story.beat(name, more={"notice": NoticeReport(**known)})  # type: ignore[arg-type]


def choose(story: Story, *asked: int) -> int:
    """Let hosts a, b, c … say where they are; return the step that is chosen."""
    for name, step in zip("abc", asked, strict=False):
        report(story, name, asked=step, step_time_s=0.05)
    notice = story.state().notice
    assert notice is not None
    assert notice.chosen is not None
    return notice.chosen


def why_over(story: Story) -> str:
    return str(story.records(NoticeEnded)[-1].reason)


def test_all_hosts_are_told_of_one_that_goes_away() -> None:
    story = a_preempted_story()
    told = {story.sessions[each.session_id]: each for each in story.of(fx.TellNotice)}
    assert told.keys() == {"a", "b", "c"}
    (notice,) = {each.notice for each in told.values()}
    assert (notice.notice_id, notice.kind, notice.chosen) == (1, "PREEMPTION", None)
    assert notice.reason == "b got SIGTERM, its host will go away"
    assert {each.time_left_s for each in told.values()} == {20.0}
    assert story.beat("b", more={"leaving": GOING}) == [], "said again, it changes nothing"


def test_the_step_is_after_the_latest_of_any_rank_with_a_margin() -> None:
    story = a_preempted_story()
    report(story, "a", asked=10, step_time_s=0.05)
    report(story, "b", asked=12, step_time_s=0.05)
    assert story.records(StepChosen) == [], "c has not said where it is"
    report(story, "c", asked=11, step_time_s=0.1)
    (chosen,) = story.records(StepChosen)
    assert chosen.step == 12 + 1 + 2, "two steps of 50 ms while the choice is under way"
    assert {each.notice.chosen for each in story.of(fx.TellNotice)} == {chosen.step}


def test_a_host_that_says_nothing_is_not_waited_for_long() -> None:
    story = a_preempted_story()
    report(story, "a", asked=10)
    story.advance(REPORTS_WAIT_S)
    assert [each.step for each in story.records(StepChosen)] == [12]


def test_a_rank_that_had_passed_the_step_has_a_later_one_chosen() -> None:
    story = a_preempted_story()
    first = choose(story, 10, 10, 10)
    report(story, "a", asked=first - 1)
    report(story, "c", asked=first + 4, is_missed=True, step_time_s=0.05)
    assert [each.step for each in story.records(StepChosen)] == [first, first + 4 + 1 + 4]
    report(story, "a", asked=first, is_missed=False)
    assert len(story.records(StepChosen)) == 2


def test_what_is_said_of_an_earlier_choice_counts_no_more() -> None:
    story = a_preempted_story()
    first = choose(story, 10, 10, 10)
    report(story, "c", asked=first, is_missed=True)
    for name in "abc":
        said = NoticeReport(notice_id=1, chosen=first, is_saved=True)
        story.beat(name, more={"notice": said})
    assert story.state().notice is not None


def test_once_all_have_saved_it_is_over_and_the_host_may_leave() -> None:
    story = a_preempted_story()
    step = choose(story, 10, 10, 10)
    for name in "ab":
        report(story, name, asked=step, is_saved=True)
    assert story.state().notice is not None
    report(story, "c", asked=step, is_saved=True)
    assert why_over(story) == f"all have saved, at step {step} or right after"
    assert {each.is_over for each in story.of(fx.TellNotice)} == {True}
    story.beat("b", more={"leaving": GOING})
    assert [each.is_over for each in story.of(fx.TellNotice)] == [True], "perhaps it was not told"
    story.leave("b")
    (ended,) = story.records(RoundEnded)
    assert ended.cause is RoundEnd.AGENT_LOST
    assert story.state().restarts_used == 0


def test_ranks_that_never_ask_are_not_waited_for() -> None:
    story = a_preempted_story()
    report(story, "a")
    report(story, "b", asked=5)
    report(story, "c")
    step = story.records(StepChosen)[-1].step
    for name in "abc":
        report(story, name, asked=step if name == "b" else None, is_saved=True)
    assert story.state().notice is None


def test_if_nobody_asks_it_is_over_at_once() -> None:
    story = a_preempted_story()
    for name in "abc":
        report(story, name)
    assert why_over(story) == "training does not ask when to save"


def test_who_does_not_save_holds_the_others_up_for_the_time_of_the_notice_only() -> None:
    story = a_preempted_story()
    step = choose(story, 10, 10, 10)
    report(story, "a", asked=step, is_saved=True)
    story.advance(19)
    assert story.state().notice is not None
    story.advance(1)
    assert why_over(story) == f"its time is up: 2 hosts did not save at step {step}"


def test_a_coordinator_that_comes_back_goes_on_with_it() -> None:
    story = a_preempted_story()
    step = choose(story, 10, 10, 10)
    story.restart()
    for name in "abc":
        story.back(name)
        assert [each.notice.chosen for each in story.of(fx.TellNotice)] == [step]
    for name in "abc":
        report(story, name, asked=step, is_saved=True)
    assert story.state().notice is None
    assert [each.step for each in story.records(StepChosen)] == [step]


def test_a_round_that_ends_takes_its_notice_along_and_ids_are_not_used_again() -> None:
    story = a_preempted_story()
    story.leave("c")
    assert story.state().notice is None
    story.obey_all()
    story.beat("b", more={"leaving": GOING})
    notice = story.state().notice
    assert notice is not None
    assert notice.notice_id == 2


def test_there_is_an_end_to_steps() -> None:
    story = a_preempted_story()
    for name in "abc":
        report(story, name, asked=2**63)
    assert why_over(story) == "there is no step after 9223372036854775808"
