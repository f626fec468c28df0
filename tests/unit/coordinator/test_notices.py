"""A notice before change: given, one step chosen that nobody has passed, waited for, over."""

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.phases.notices import ANSWERS_WAIT_S, PROPOSAL_MAX_S, UNANSWERED_MAX
from drumbeat.coordinator.core.run.notice import Leaving, NoticeEnded, StepChosen, StepProposed
from drumbeat.coordinator.core.run.records import RoundEnd, RoundEnded
from drumbeat.model import NoticeReport
from tests.support.world import START, Story, a_running_story

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
    steps = {"chosen": notice.chosen, "proposed": notice.proposed}
    known = {"notice_id": notice.notice_id, **steps, **fields}
    return story.beat(name, more={"notice": NoticeReport(**known)})  # type: ignore[arg-type]


def propose(story: Story, *asked: int) -> int:
    """Let hosts a, b, c … say where they are; return the step that is proposed."""
    for name, step in zip("abc", asked, strict=False):
        report(story, name, asked=step, step_time_s=0.05)
    notice = story.state().notice
    assert notice is not None
    assert notice.proposed is not None
    return notice.proposed


def choose(story: Story, *asked: int) -> int:
    """Let all say where they are, and then that they will stop; return the step that is chosen."""
    propose(story, *asked)
    for name in "abc"[: len(asked)]:
        report(story, name, is_ready=True)
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
    assert story.records(StepProposed) == [], "c has not said where it is"
    report(story, "c", asked=11, step_time_s=0.1)
    (proposed,) = story.records(StepProposed)
    assert proposed.step == 12 + 1 + 2, "two steps of 50 ms while the proposal is under way"
    assert {each.notice.proposed for each in story.of(fx.TellNotice)} == {proposed.step}


def test_a_step_is_chosen_once_every_host_will_stop_at_it() -> None:
    story = a_preempted_story()
    step = propose(story, 10, 10, 10)
    report(story, "a", is_ready=True)
    report(story, "b", is_ready=True)
    report(story, "a", proposed=step + 1, is_ready=True)
    assert story.records(StepChosen) == [], "c has not answered"
    report(story, "c", is_ready=True)
    assert [each.step for each in story.records(StepChosen)] == [step]
    assert {each.notice.chosen for each in story.of(fx.TellNotice)} == {step}


def test_if_a_host_does_not_say_where_it_is_no_rank_saves() -> None:
    story = a_preempted_story()
    report(story, "a", asked=10)
    report(story, "b", asked=10)
    story.advance(ANSWERS_WAIT_S)
    assert story.records(StepProposed) == []
    assert why_over(story) == "no rank saves: c did not say within 5 s where training is"


def test_a_step_that_a_host_does_not_answer_about_is_given_up_for_all() -> None:
    story = a_preempted_story()
    first = propose(story, 10, 10, 10)
    report(story, "a", is_ready=True)
    story.advance(ANSWERS_WAIT_S)
    first_again, second = story.records(StepProposed)
    assert first_again.step == first < second.step
    for name in "bc":
        report(story, name, proposed=first, is_ready=True)
    assert story.records(StepChosen) == [], "it is given up"
    for name in "abc":
        report(story, name, is_ready=True)
    assert [each.step for each in story.records(StepChosen)] == [second.step]


def test_after_three_steps_without_an_answer_no_rank_saves() -> None:
    story = a_running_story(3)
    story.beat("b", more={"leaving": replace(GOING, time_left_s=60.0)})
    propose(story, 10, 10, 10)
    story.advance(UNANSWERED_MAX * ANSWERS_WAIT_S)
    steps = [each.step for each in story.records(StepProposed)]
    assert len(steps) == UNANSWERED_MAX
    why = f"no rank saves: a, b, c did not answer in time about step {steps[-1]}"
    assert why_over(story) == why


def test_a_step_is_not_chosen_long_after_ranks_may_have_stopped_at_it() -> None:
    story = a_preempted_story()
    first = propose(story, 10, 10, 10)
    report(story, "a", is_ready=True)
    report(story, "b", is_ready=True)
    while story.now < START + PROPOSAL_MAX_S:
        story.break_session("c")
        story.back("c")
        story.advance(ANSWERS_WAIT_S - 1)
    report(story, "c", proposed=first, is_ready=True)
    assert story.records(StepChosen) == []
    assert story.records(StepProposed)[-1].step > first


def test_a_coordinator_that_comes_back_gives_up_a_step_that_was_only_proposed() -> None:
    """Ranks may have stopped at it for as long as they do."""
    story = a_preempted_story()
    first = propose(story, 10, 10, 10)
    for name in "ab":
        report(story, name, is_ready=True)
    story.restart()
    for name in "abc":
        story.back(name)
    for name in "abc":
        report(story, name, asked=10, proposed=first, is_ready=True)
    assert story.records(StepChosen) == []
    assert story.records(StepProposed)[-1].step > first


def test_where_training_has_ended_no_step_is_chosen() -> None:
    """Its ranks may have passed any step, and did not save there."""
    story = a_preempted_story()
    propose(story, 10, 10, 10)
    story.succeed("c")
    assert why_over(story) == "no rank saves: training has ended on c"


def test_training_that_ends_before_the_step_it_is_ready_for_is_in_nobodys_way() -> None:
    story = a_preempted_story()
    step = propose(story, 10, 10, 10)
    report(story, "c", is_ready=True)
    story.succeed("c")
    for name in "ab":
        report(story, name, is_ready=True)
    assert [each.step for each in story.records(StepChosen)] == [step]


def test_the_next_notice_tells_of_a_step_that_was_chosen_before() -> None:
    """A rank that has not come to it yet saves there as the others did."""
    story = a_preempted_story()
    step = choose(story, 10, 10, 10)
    story.advance(20)
    assert story.state().notice is None
    story.beat("c", more={"leaving": GOING})
    assert {each.notice.chosen_before for each in story.of(fx.TellNotice)} == {step}


def test_a_coordinator_that_comes_back_repeats_that_a_notice_is_over() -> None:
    story = a_preempted_story()
    for name in "abc":
        report(story, name)
    story.restart()
    story.back("a")
    assert [each.is_over for each in story.of(fx.TellNotice)] == [True]


def test_a_rank_that_had_passed_the_step_has_a_later_one_chosen() -> None:
    story = a_preempted_story()
    first = propose(story, 10, 10, 10)
    report(story, "a", asked=first - 1, is_ready=True)
    report(story, "c", asked=first + 4, is_missed=True, step_time_s=0.05)
    assert [each.step for each in story.records(StepProposed)] == [first, first + 4 + 1 + 4]
    report(story, "a", asked=first, is_missed=False)
    assert len(story.records(StepProposed)) == 2


def test_a_rank_that_did_not_save_at_the_chosen_step_has_a_later_one_proposed() -> None:
    """It stopped there for as long as it may, and no word came."""
    story = a_preempted_story()
    first = choose(story, 10, 10, 10)
    report(story, "c", asked=first + 4, is_missed=True)
    assert story.records(StepProposed)[-1].step > first + 4
    for name in "abc":
        report(story, name, is_ready=True)
    assert len(story.records(StepChosen)) == 2


def test_what_is_said_of_an_earlier_choice_counts_no_more() -> None:
    story = a_preempted_story()
    first = choose(story, 10, 10, 10)
    report(story, "c", asked=first, is_missed=True)
    for name in "abc":
        report(story, name, is_ready=True)
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
    assert story.state().has_saved, "which is progress, see restarts/test_delays.py"
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
    for name in "abc":
        report(story, name, asked=5 if name == "b" else None, is_ready=True)
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
