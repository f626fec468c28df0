"""Where workers stand: the latest of each, of the present round only."""

from collections.abc import Iterable
from typing import Any

import pytest

from drumbeat.coordinator.api.documents import document_of
from drumbeat.coordinator.api.explanation import progress_line
from drumbeat.coordinator.core.run.notice import NoticeEnded, NoticeGiven, PendingNotice
from drumbeat.coordinator.observe.goodput.ledger import STEPS_REPEATED_MAX, Ledger
from drumbeat.coordinator.observe.goodput.stretches import Marks, ProgressNoted, Stretch
from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.steps.progress import PACE_WINDOW_S
from drumbeat.coordinator.observe.steps.worker_progress import Whereabouts, WorkerProgress
from drumbeat.coordinator.wire.run_status import overview_message, progress_message
from drumbeat.model import GroupState, NoticeKind
from drumbeat.pace import IDLE_S
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration
from tests.support.world import RUN, Story, a_running_story


def at(local_rank: int = 0, **fields: Any) -> WorkerProgress:
    return WorkerProgress(local_rank=local_rank, **fields)


def test_ages_grow_and_what_is_not_known_stays_so() -> None:
    worker = at(
        step=3,
        step_time_s=0.5,
        heartbeat_age_s=1.0,
        progress_age_s=0.5,
        scope="save",
        scope_age_s=2.0,
    )
    assert worker.aged(10.0) == at(
        step=3,
        step_time_s=0.5,
        heartbeat_age_s=11.0,
        progress_age_s=10.5,
        scope="save",
        scope_age_s=12.0,
    )


def test_the_latest_wins_and_its_age_counts_from_its_arrival() -> None:
    where = Whereabouts()
    where.take(0, [at(1, heartbeat_age_s=5.0), at(0, heartbeat_age_s=5.0)], now=10.0)
    where.take(0, [at(1, heartbeat_age_s=0.0)], now=12.0)
    assert where.in_round(0, now=13.0) == [at(0, heartbeat_age_s=8.0), at(1, heartbeat_age_s=1.0)]


def test_another_round_begins_with_nothing() -> None:
    where = Whereabouts()
    where.take(0, [at()], now=1.0)
    assert where.in_round(1, now=1.0) == []
    where.take(1, [], now=2.0)
    assert where.in_round(0, now=2.0) == where.in_round(1, now=2.0) == []


def test_no_more_is_kept_than_there_are_workers_however_often_they_speak() -> None:
    where = Whereabouts()
    for step in range(1000):
        where.take(0, [at(0, step=step), at(1, step=step)], now=float(step))
    assert [worker.step for worker in where.in_round(0, now=1000.0)] == [999, 999]


def test_beats_change_nothing_durable_and_a_new_round_forgets_them() -> None:
    story = a_running_story(2, restarts_max=1)
    journaled = len(story.journal)
    story.beat("a", workers=(at(step=5),))
    assert len(story.journal) == journaled
    presence = story.run(RUN).members.presences["a.1"]
    assert [worker.step for worker in presence.whereabouts.in_round(0, now=story.now)] == [5]
    story.fail("b")
    story.obey_all()
    assert presence.whereabouts.in_round(1, now=story.now) == []


def train(story: Story, steps: Iterable[int], every_s: float = 1.0, **said: Any) -> None:
    """Let all agents make steps, and say so; ``said`` is what their workers say beside them."""
    for step in steps:
        story.advance(every_s)
        for name, agent in story.agents.items():
            worker = at(step=step, heartbeat_age_s=0.0, **said)
            story.beat(name, GroupState.RUNNING, workers=(worker,))
            agent.workers = ()


def begin_again(story: Story) -> None:
    story.fail("b")
    story.obey_all()


def repeated(story: Story) -> int:
    run = story.run()
    return overview_message(run.state, run, Overview(), now=story.now).steps_repeated


def progress(story: Story) -> dict[str, Any]:
    run = story.run()
    document = document_of(progress_message(run.state, run, now=story.now))
    return {key: value for key, value in document.items() if value}


def test_steps_that_a_later_round_makes_again_are_counted() -> None:
    story = a_running_story(2, restarts_max=9)
    train(story, range(121))
    begin_again(story)
    assert repeated(story) == 0, "none is made again yet"
    train(story, range(101, 106))
    begin_again(story)
    assert repeated(story) == 4, "of those that were lost only these were made"
    train(story, range(101, 131))
    assert repeated(story) == 4 + 19
    begin_again(story)
    train(story, range(131, 140))
    assert repeated(story) == 4 + 19, "it went on where it had been"


def test_repeated_steps_are_kept_when_the_coordinator_starts_again() -> None:
    story = a_running_story(2, restarts_max=9)
    train(story, range(50))
    begin_again(story)
    train(story, range(20, 60))
    before = repeated(story)
    assert before == 29
    story.restart()
    assert repeated(story) == before
    story.back("a")
    story.back("b")
    train(story, range(60, 70))
    assert repeated(story) == before


def test_a_hang_that_is_over_repeats_nothing() -> None:
    ledger = Ledger(began=0, stretch=Stretch.ROUND)
    ledger.note(ProgressNoted(marks=Marks(step_first=0, step=100)))
    ledger.follow(1.0, Stretch.HUNG, hosts=1)
    ledger.follow(2.0, Stretch.ROUND, hosts=1)
    ledger.note(ProgressNoted(marks=Marks(step_first=97, step=105)))
    assert ledger.steps_repeated == 0
    ledger.follow(3.0, Stretch.INTERRUPTED, hosts=1)
    ledger.follow(4.0, Stretch.ROUND, hosts=1)
    ledger.note(ProgressNoted(marks=Marks(step_first=97, step=103)))
    assert ledger.steps_repeated == 6


def test_absurd_steps_of_a_worker_do_not_break_the_overview_of_its_run() -> None:
    story = a_running_story(2, restarts_max=9)
    for _ in range(3):
        train(story, [-(2**63), 2**63 - 1], steps_total=2**64 - 1)
        begin_again(story)
    run = story.run()
    message = overview_message(run.state, run, Overview(), now=story.now)
    assert message.steps_repeated == STEPS_REPEATED_MAX
    train(story, [-(2**63)])
    assert overview_message(run.state, run, Overview(), now=story.now).HasField("progress")


def test_a_run_tells_step_pace_and_time_left() -> None:
    story = a_running_story(2, restarts_max=9)
    assert progress(story) == {}
    train(story, range(0, 200, 2), steps_total=1_000)
    assert progress(story) == {
        "step": 198,
        "steps_total": 1_000,
        "steps_per_second": 2.0,
        "time_left_s": 401.0,
        "step_farthest": 198,
    }
    begin_again(story)
    assert progress(story) == {"step_farthest": 198, "steps_total": 1_000}
    train(story, range(100, 140))
    again = progress(story)
    assert (again["step"], again["steps_per_second"], again["time_left_s"]) == (139, 1.0, 861.0)
    assert again["step_farthest"] == 198, "the lost steps are not made again yet"


def test_the_pace_is_that_of_the_last_minutes_and_falls_when_training_stands_still() -> None:
    story = a_running_story(1)
    train(story, range(1_000), every_s=0.5)
    train(story, range(1_000, 1_400))
    assert progress(story)["steps_per_second"] == 1.0, "the first steps were faster, but long ago"
    story.advance(IDLE_S)
    assert progress(story)["steps_per_second"] == 1.0, "a beat may be late"
    story.advance(PACE_WINDOW_S)
    assert 0.3 < progress(story)["steps_per_second"] < 0.5


def test_a_coordinator_that_starts_again_knows_the_total_and_the_checkpoint() -> None:
    story = a_running_story(1)
    train(story, range(90), steps_total=500)
    train(story, range(90, 160), saved_step=80, saved_age_s=9.0)
    story.restart()
    known = progress(story)
    assert (known["steps_total"], known["checkpoint_step"]) == (500, 80)
    assert "step" not in known
    story.back("a")
    train(story, range(160, 170), saved_step=165, saved_age_s=0.0)
    known = progress(story)
    assert (known["step"], known["steps_per_second"], known["checkpoint_step"]) == (169, 1.0, 165)
    assert known["time_left_s"] == 331.0
    assert "checkpoint_age_s" not in known, "it is 0"


def test_a_checkpoint_for_a_notice_counts_with_agents_that_tell_none() -> None:
    state = a_running_story(1).run().state
    notice = PendingNotice(
        notice_id=1, kind=NoticeKind.CHECKPOINT, reason="asked", until_s=99.0, chosen=40
    )
    state.apply(NoticeGiven(notice=notice, at_s=10.0))
    state.apply(NoticeEnded(notice_id=1, reason="all have saved", at_s=11.0, is_saved=True))
    assert state.observed.checkpoint == (11.0, 40)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {
                "step": 1_200,
                "steps_total": 10_000,
                "steps_per_second": 3.1,
                "time_left_s": 2_820.0,
                "step_farthest": 1_350,
                "checkpoint_step": 1_000,
                "checkpoint_age_s": 180.0,
            },
            (
                "step 1,200 of 10,000 (12 %), 3.1 steps/s, 47 min left; farthest step 1,350; "
                "last checkpoint at step 1,000, 3 min ago"
            ),
        ),
        ({"step": 7, "step_farthest": 7, "steps_per_second": 0.05}, "step 7, 20 s a step"),
        ({"steps_total": 10, "step_farthest": 9}, "farthest step 9 of 10 (90 %)"),
        ({"checkpoint_step": 5, "checkpoint_age_s": 60.0}, "last checkpoint at step 5, 1 min ago"),
    ],
)
def test_progress_in_words(given: dict[str, Any], text: str) -> None:
    message = pb.Progress()
    for name in ("time_left", "checkpoint_age"):
        if (seconds := given.pop(f"{name}_s", None)) is not None:
            getattr(message, name).CopyFrom(duration(seconds))
    message.MergeFrom(pb.Progress(**given))
    assert progress_line(document_of(message)) == text
