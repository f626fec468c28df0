"""A round that hangs: all ranks are looked at, the hang is judged, and agents end their workers."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import EvidenceTaken
from drumbeat.coordinator.core.failures.hang_evidence import RankEvidence, SeenRanks
from drumbeat.coordinator.core.model import (
    Exit,
    ExpiredLimit,
    Hang,
    HangDiagnosis,
    Verdict,
    VerdictCause,
)
from drumbeat.coordinator.core.run.records import HangJudged, HangOver
from drumbeat.coordinator.observe.goodput.stretches import Cause, Stretch
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.failure import EXIT_BYTES_MAX
from drumbeat.coordinator.wire.session import desired_message
from drumbeat.model import GroupState, HangKind
from drumbeat.text.durations import SECOND
from tests.support.hangs import ALL_REDUCE, LOADER, a_limit, a_stack, judged, seen
from tests.support.world import Story, a_running_story

TIMER = a_limit(kind=HangKind.TIMER, scope="save", is_held=False)


def exceed(story: Story, name: str, *limits: ExpiredLimit) -> list[fx.Effect]:
    """Let an agent say from now on which limits its workers exceed."""
    return story.beat(name, more={"expired": limits})


def questions(effects: list[fx.Effect]) -> list[fx.TakeEvidence]:
    return [each for each in effects if isinstance(each, fx.TakeEvidence)]


def released(story: Story, effects: list[fx.Effect]) -> dict[str, int]:
    """Return up to which number each agent may end the workers that it holds."""
    told = [each for each in effects if isinstance(each, fx.EndHeld)]
    return {story.sessions[each.session_id]: each.number for each in told}


def looks(story: Story, **stacks: str) -> list[RankEvidence]:
    """Return what is seen of each agent's only worker: that it waits, unless given otherwise."""
    found = []
    for name, agent in story.agents.items():
        seat = story.state().seats.get(agent.identity.incarnation)
        if seat is not None:
            found.append(replace(seen(seat.rank_first, stacks.get(name, ALL_REDUCE)), seat=seat))
    return found


def answer(story: Story, question: fx.TakeEvidence, **stacks: str) -> list[fx.Effect]:
    return answer_seen(story, question, SeenRanks.of(looks(story, **stacks)))


def answer_seen(story: Story, question: fx.TakeEvidence, evidence: SeenRanks) -> list[fx.Effect]:
    return story.handle(
        EvidenceTaken(
            run_id=question.run_id,
            round_id=question.round_id,
            question=question.question,
            seen=evidence,
        )
    )


def a_hanging_story(size: int = 3, **fields: Any) -> tuple[Story, fx.TakeEvidence]:
    """Return a story in which a worker of "a" is held, and the question for evidence."""
    story = a_running_story(size, **fields)
    (question,) = questions(exceed(story, "a", a_limit()))
    return story, question


def a_reported_hang(size: int = 2, of: str = "a") -> Story:
    """Return a story in which an agent's worker exceeds a timer, and "b" is judged the cause."""
    story = a_running_story(size)
    (question,) = questions(exceed(story, of, TIMER))
    answer(story, question, b=LOADER)
    return story


def failures(story: Story) -> list[str]:
    """Return the decisions that count as failures."""
    return [entry.decision for entry in story.state().history if entry.is_failure]


def hang_of(story: Story) -> HangDiagnosis:
    hang = story.state().hang
    assert hang is not None, "no hang was judged"
    return hang


def test_evidence_is_asked_for_once() -> None:
    story, question = a_hanging_story()
    assert (question.run_id, question.round_id, question.may_signal) == ("run", 0, True)
    more = exceed(story, "a", a_limit(elapsed_s=31.0))
    more += exceed(story, "b", a_limit())
    more += story.advance(3.0)
    assert questions(more) == []
    more = answer(story, question, b=LOADER) + story.advance(10.0)
    assert questions(more) == []


def test_workers_that_are_only_reported_get_no_signal() -> None:
    story = a_running_story(2)
    (question,) = questions(exceed(story, "a", a_limit(is_held=False)))
    assert not question.may_signal


def test_agents_may_end_the_workers_that_they_hold_once_the_hang_is_judged() -> None:
    story, question = a_hanging_story()
    effects = story.advance(2.0)
    assert released(story, effects) == {}
    effects = answer(story, question, b=LOADER)
    assert released(story, effects) == {"a": 1}
    assert "hang found" in [each.decision for each in effects if isinstance(each, fx.Decided)]
    assert [cause.agent for cause in hang_of(story).causes] == ["b"]


def test_an_agent_that_still_holds_a_worker_is_told_again() -> None:
    story, question = a_hanging_story()
    answer(story, question)
    assert released(story, story.advance(1.0)) == {"a": 1}
    story.break_session("a")
    assert released(story, story.back("a")) == {"a": 1}
    exceed(story, "a")
    assert released(story, story.advance(3.0)) == {}


def test_limits_that_expire_while_evidence_is_taken_are_judged_together() -> None:
    story, question = a_hanging_story()
    exceed(story, "b", a_limit(number=4))
    assert released(story, answer(story, question, c=LOADER)) == {"a": 1, "b": 4}
    assert len(story.records(HangJudged)) == 1


def test_a_limit_that_expires_while_workers_are_ended_is_not_asked_about() -> None:
    story, question = a_hanging_story()
    answer(story, question, c=LOADER)
    effects = exceed(story, "b", a_limit(number=9))
    assert (questions(effects), released(story, effects)) == ([], {"b": 9})


def test_a_limit_that_is_to_end_workers_is_judged_though_the_hang_was_reported() -> None:
    story = a_running_story(2)
    (question,) = questions(exceed(story, "a", a_limit(is_held=False)))
    answer(story, question, b=LOADER)
    (second,) = questions(exceed(story, "a", a_limit(is_held=False), a_limit(number=2)))
    assert second.question != question.question
    assert released(story, answer(story, second, b=LOADER)) == {"a": 2}
    assert hang_of(story).is_held


def test_an_agent_lost_while_evidence_is_taken_is_forgotten() -> None:
    story, question = a_hanging_story(3, agents_max=3, agents_min=2, restarts_max=3)
    story.leave("a")
    answer(story, question)
    assert story.records(HangJudged) == []
    assert released(story, story.advance(1.0)) == {}


@pytest.mark.parametrize("fields", [{"question": 99}, {"round_id": 7}, {"question": 0}])
def test_an_answer_to_another_question_is_ignored(fields: dict[str, int]) -> None:
    story, question = a_hanging_story()
    answer(story, replace(question, **fields))
    assert story.records(HangJudged) == []
    answer(story, question)
    assert len(story.records(HangJudged)) == 1
    answer(story, question)
    assert len(story.records(HangJudged)) == 1


def test_an_answer_about_the_round_before_is_ignored() -> None:
    story, question = a_hanging_story(2, restarts_max=1)
    exceed(story, "a")
    story.fail("b")
    story.obey_all()
    assert story.state().round_id == 1
    (second,) = questions(exceed(story, "a", a_limit()))
    answer(story, question)
    assert story.records(HangJudged) == []
    answer(story, second)
    assert hang_of(story).round_id == 1


def test_workers_that_went_on_before_they_were_looked_at_did_not_hang() -> None:
    story, question = a_hanging_story()
    exceed(story, "a")
    answer(story, question)
    assert story.records(HangJudged) == []
    assert len(questions(exceed(story, "a", a_limit(number=2)))) == 1


def test_an_answer_that_is_empty_releases_the_workers_too() -> None:
    story, question = a_hanging_story()
    event = EvidenceTaken(
        run_id=question.run_id, round_id=0, question=question.question, seen=SeenRanks()
    )
    assert released(story, story.handle(event)) == {"a": 1}
    assert hang_of(story).causes == ()


# A hang that is only reported.


def at(step: int | None, age_s: float = 0.0) -> tuple[WorkerProgress, ...]:
    return (WorkerProgress(local_rank=0, step=step, heartbeat_age_s=age_s),)


def train(story: Story, seconds: int, first: int = 0) -> None:
    """Let all agents make a step a second, and say so."""
    for step in range(first, first + seconds):
        story.advance(1.0)
        for name in story.agents:
            story.beat(name, GroupState.RUNNING, workers=at(step))
            story.agents[name].workers = ()


def parts(story: Story) -> dict[str, float]:
    run = story.run()
    found = account(run.state.observed, run.members.observer, now=story.now)
    found.check_invariants()
    return {part.lower(): time.run / SECOND for part, time in found.parts.items() if time.run}


def test_a_reported_hang_is_time_that_hangs_from_the_last_heartbeat_on_until_it_is_over() -> None:
    story = a_running_story(2)
    train(story, 10)
    story.advance(30.0)
    limit = a_limit(is_held=False, elapsed_s=30.0)
    (question,) = questions(exceed(story, "a", limit))
    answer(story, question, b=LOADER)
    assert parts(story) == {"starting": 1.0, "training": 9.0, "hanging": 30.0}
    assert story.state().stretch() is Stretch.HUNG
    story.advance(12.0)
    assert parts(story) == {"starting": 1.0, "training": 9.0, "hanging": 42.0}
    assert story.state().current_hang is not None

    story.agents["a"].more = {}
    story.agents["b"].workers = at(10)
    story.beat("b")
    story.beat("a", workers=at(10))
    assert [record.round_id for record in story.records(HangOver)] == [0]
    assert story.state().current_hang is None
    train(story, 8, first=11)
    assert parts(story) == {"starting": 1.0, "training": 9.0 + 8.0, "hanging": 42.0}
    assert failures(story) == []


def test_the_time_of_a_reported_hang_is_charged_to_the_host_that_causes_it() -> None:
    story = a_running_story(2)
    train(story, 10)
    story.advance(30.0)
    (question,) = questions(exceed(story, "a", a_limit(is_held=False)))
    answer(story, question, b=LOADER)
    story.advance(10.0)
    run = story.run()
    ledger = account(run.state.observed, run.members.observer, now=story.now)
    assert ledger.causes[Cause.HANG].run == 40 * SECOND
    assert list(ledger.hosts_lost) == ["b"]


def test_a_hang_is_not_over_while_any_limit_is_exceeded() -> None:
    story = a_running_story(2)
    (question,) = questions(
        exceed(story, "a", a_limit(is_held=False), a_limit(number=2, is_held=False))
    )
    answer(story, question)
    exceed(story, "a", a_limit(number=2, is_held=False))
    story.advance(5.0)
    assert story.records(HangOver) == []


def test_a_progress_limit_is_left_with_a_heartbeat_alone() -> None:
    """A worker that ended exceeds nothing any more, and has not gone on."""
    story = a_running_story(2)
    train(story, 3)
    story.advance(30.0)
    (question,) = questions(exceed(story, "a", a_limit(is_held=False)))
    answer(story, question)
    exceed(story, "a")
    story.advance(1.0)
    assert story.records(HangOver) == []
    story.beat("a", workers=at(None))  # without a step nothing else of it is news
    story.agents["a"].workers = ()
    story.advance(1.0)  # with the next beat of any agent, though it says nothing new
    assert len(story.records(HangOver)) == 1


def test_a_second_hang_of_a_round_is_found() -> None:
    story = a_reported_hang()
    exceed(story, "a")
    (second,) = questions(exceed(story, "a", replace(TIMER, number=2)))
    answer(story, second, a=LOADER)
    assert [record.hang.causes[0].agent for record in story.records(HangJudged)] == ["b", "a"]


def test_many_agents_cost_as_little_as_few_while_evidence_is_taken() -> None:
    """What a beat costs does not grow with those that exceed limits: the lists are not walked."""
    story, question = a_hanging_story(2)
    hangs = story.run()._run._phase._hangs  # type: ignore[attr-defined]
    exceed(story, "b", a_limit())
    assert hangs.effects() == []
    assert hangs._untold == set()
    answer(story, question)
    assert hangs._news == set()


# A coordinator that starts anew in the middle.


def test_a_restart_while_evidence_is_taken_asks_again() -> None:
    story, question = a_hanging_story()
    story.restart()
    (again,) = questions([effect for name in "abc" for effect in story.back(name)])
    answer(story, replace(question, question=question.question + 5))
    assert released(story, answer(story, again, b=LOADER)) == {"a": 1}


def test_a_restart_after_the_hang_was_judged_releases_the_workers_without_asking() -> None:
    story, question = a_hanging_story()
    answer(story, question, b=LOADER)
    before = hang_of(story)
    story.restart()
    assert hang_of(story) == before
    effects = [effect for name in "abc" for effect in story.back(name)]
    assert (questions(effects), released(story, effects)) == ([], {"a": 1})


def test_a_restart_does_not_take_a_reported_hang_for_over_before_all_agents_were_heard() -> None:
    story = a_reported_hang(3, of="c")
    story.restart()
    story.back("a")
    story.back("b")
    story.advance(2.0)
    assert story.records(HangOver) == []
    assert questions(story.back("c")) == [], "it is judged already"
    exceed(story, "c")
    assert len(story.records(HangOver)) == 1


def test_a_reported_hang_that_ended_while_the_coordinator_was_away_is_over() -> None:
    story = a_reported_hang()
    story.restart()
    story.agents["a"].more = {}
    story.back("a")
    story.back("b")
    assert len(story.records(HangOver)) == 1


# The report.

HUNG = Hang(kind=HangKind.PROGRESS, limit_s=20.0, elapsed_s=31.0, stacks=ALL_REDUCE)


def end(story: Story, *names: str) -> Any:
    """Let these agents' workers fail; return the verdict."""
    for name in names:
        story.fail(name)
    story.agents["a"].more = {}
    story.is_lively = True
    story.live()
    story.advance(60.0)
    return next(
        agent.desired.state.verdict
        for agent in story.agents.values()
        if agent.desired is not None and isinstance(agent.desired.state, Exit)
    )


def test_the_cause_of_the_hang_is_the_root_cause_though_another_rank_was_ended_for_it() -> None:
    story, question = a_hanging_story()
    answer(story, question, b=LOADER)
    story.record("a", hang=HUNG, signal_name="SIGTERM")
    story.record("b", is_stopped_by_agent=True, signal_name="SIGTERM")
    verdict = end(story, "a")
    (cause,) = verdict.report.root_causes
    assert (cause.host, cause.hang.stacks) == ("b", LOADER)
    assert [victim.host for victim in verdict.report.victims] == ["a"]
    assert verdict.report.hang.causes[0].agent == "b"
    assert verdict.reason.startswith("round 0 hung: rank 1 on b is in __getitem__ (data.py:9)")


def test_a_cause_that_was_ended_for_its_own_limit_keeps_its_record() -> None:
    story, question = a_hanging_story()
    answer(story, question, a=LOADER)
    story.record("a", hang=replace(HUNG, stacks=LOADER), signal_name="SIGTERM", message="own")
    (cause,) = end(story, "a").report.root_causes
    assert (cause.host, cause.message, cause.hang.elapsed_s) == ("a", "own", 31.0)


@pytest.mark.parametrize("has_other_record", [True, False])
def test_a_cause_without_a_record_is_named_all_the_same(*, has_other_record: bool) -> None:
    story, question = a_hanging_story()
    answer(story, question, b=LOADER)
    if has_other_record:
        story.record("a", hang=HUNG, signal_name="SIGTERM")
    report = end(story, "a").report
    (cause,) = report.root_causes
    assert (cause.host, cause.worker.rank, cause.hang.stacks) == ("b", 1, LOADER)
    assert cause.message == (
        "it was in __getitem__ (data.py:9) while other ranks exceeded a limit: "
        "no further heartbeat within 20 s"
    )
    assert report.victims_count == 2


def test_if_the_evidence_does_not_tell_there_is_no_root_cause() -> None:
    story, question = a_hanging_story()
    answer(story, question)
    story.record("a", hang=HUNG, signal_name="SIGTERM")
    verdict = end(story, "a")
    assert verdict.report.root_causes == ()
    assert "cannot tell which rank causes the hang" in verdict.report.hang.summary
    assert "cannot tell which rank causes the hang" in verdict.reason
    assert "rank 0" not in verdict.reason


def test_a_crash_before_the_hang_was_judged_stays_the_root_cause() -> None:
    story, question = a_hanging_story()
    story.advance(1.0)
    story.record("c", message="segmentation fault", age_s=0.5)
    answer(story, question, b=LOADER)
    verdict = end(story, "c")
    (cause,) = verdict.report.root_causes
    assert (cause.host, cause.hang) == ("c", None)
    assert verdict.report.hang is None
    assert "hung" not in verdict.reason


def test_a_crash_after_the_hang_was_judged_is_a_consequence() -> None:
    story, question = a_hanging_story()
    answer(story, question, b=LOADER)
    story.advance(1.0)
    story.record("c", message="connection reset by peer")
    verdict = end(story, "c")
    assert [cause.host for cause in verdict.report.root_causes] == ["b"]


def test_a_hang_that_was_over_explains_no_later_failure() -> None:
    story = a_reported_hang()
    exceed(story, "a")
    story.advance(5.0)
    story.record("a", message="boom")
    verdict = end(story, "a")
    assert ([c.host for c in verdict.report.root_causes], verdict.report.hang) == (["a"], None)


def test_the_time_of_a_hang_that_ended_the_round_is_charged_to_its_cause() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, 10)
    story.advance(30.0)
    (question,) = questions(exceed(story, "a", a_limit()))
    answer(story, question, b=LOADER)
    story.advance(2.0)
    story.record("a", hang=HUNG)
    story.agents["a"].more = {}
    story.fail("a")
    assert parts(story) == {"starting": 1.0, "training": 9.0, "hanging": 32.0}
    run = story.run()
    ledger = account(run.state.observed, run.members.observer, now=story.now)
    assert list(ledger.hosts_lost) == ["b"]
    assert ledger.failures == 1
    assert failures(story) == ["round ended"], "the hang itself is not counted"


def test_a_report_with_the_stacks_of_many_groups_fits_into_an_exit() -> None:
    deep = [("/home/u/very/long/name/of/a/file.py", 1, "f" * 90)] * 60
    ranks = [seen(r, a_stack(("/home/u/x.py", r, "f"), *deep)) for r in range(8)]
    found = judged(*ranks, *(seen(r) for r in range(8, 20)), expired=tuple(range(8)))
    assert (len(found.groups), min(len(g.stack) for g in found.groups[:7])) == (8, 4_000)
    story, question = a_hanging_story()
    answer(story, question)
    verdict: Verdict = end(story, "a")
    assert verdict.report is not None
    verdict = replace(verdict, report=replace(verdict.report, hang=found), reason=found.summary)
    message = desired_message(fx.Direct(session_id="s", state=Exit(verdict=verdict))).exit
    assert message.ByteSize() <= EXIT_BYTES_MAX
    assert message.is_report_cut
    assert message.verdict.report.hang.summary == found.summary
    assert len(message.verdict.report.hang.groups) == 8
    assert min(len(g.stack) for g in message.verdict.report.hang.groups) > 50
    assert verdict.cause is VerdictCause.WORKER_FAILED


def test_a_host_that_is_lost_before_the_evidence_is_there_is_the_cause() -> None:
    """Its silence is what the other ranks wait for: no rank of theirs is blamed."""
    story, question = a_hanging_story(3)
    story.break_session("c")
    story.advance(2.0)
    hang = hang_of(story)
    assert hang is not None
    assert [cause.agent for cause in hang.causes] == ["c"]
    assert hang.causes[0].place == "on a host that was lost"
    answer(story, question, b=LOADER)
    assert hang_of(story) == hang, "the evidence is of a round that is over"


# The limit on collectives: it is one of all ranks.

COLLECTIVE = a_limit(kind=HangKind.COLLECTIVE, scope="", limit_s=60.0, elapsed_s=60.0)


def answer_moved(
    story: Story, question: fx.TakeEvidence, *moved_ages_s: float | None
) -> list[fx.Effect]:
    """Answer that process groups of the ranks moved so long ago."""
    ranks = zip(looks(story, b=LOADER), moved_ages_s, strict=True)
    evidence = SeenRanks.of(replace(rank, moved_age_s=age_s) for rank, age_s in ranks)
    return answer_seen(story, question, evidence)


def a_waiting_story() -> tuple[Story, fx.TakeEvidence]:
    """Return a story in which the worker of "a" waits in a collective, and the question."""
    story = a_running_story(3)
    (question,) = questions(exceed(story, "a", COLLECTIVE))
    return story, question


def test_workers_that_wait_in_a_collective_get_no_signal_for_their_stacks() -> None:
    _, question = a_waiting_story()
    assert not question.may_signal


def test_a_run_of_which_no_process_group_moves_hangs() -> None:
    story, question = a_waiting_story()
    effects = answer_moved(story, question, 61.0, 70.0, None)
    assert released(story, effects) == {"a": 1}
    assert [rank.agent for rank in hang_of(story).causes] == ["b"]
    assert "no process group moved within 60 s" in hang_of(story).summary


def test_a_run_in_which_some_rank_moves_is_left_alone_and_asked_again_later() -> None:
    story, question = a_waiting_story()
    effects = answer_moved(story, question, 61.0, 20.0, 61.0)
    assert released(story, effects) == {}
    assert story.state().hang is None
    more = story.advance(30.0) + exceed(story, "a", COLLECTIVE)
    assert (questions(more), released(story, more)) == ([], {})
    more = story.advance(11.0) + exceed(story, "a", COLLECTIVE)
    (again,) = questions(more)
    assert released(story, answer_moved(story, again, 102.0, 61.0, 102.0)) == {"a": 1}


def test_without_any_evidence_nothing_is_ended() -> None:
    story, question = a_waiting_story()
    assert released(story, answer_seen(story, question, SeenRanks())) == {}
    assert story.state().hang is None


def test_another_limit_beside_it_is_judged_as_ever() -> None:
    story = a_running_story(3)
    (question,) = questions(exceed(story, "a", COLLECTIVE, a_limit(number=2)))
    effects = answer_moved(story, question, 1.0, 1.0, 1.0)
    assert released(story, effects) == {"a": 2}
