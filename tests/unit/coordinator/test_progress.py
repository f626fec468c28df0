"""Where workers stand: the latest of each, of the present round only."""

from __future__ import annotations

from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.worker_progress import (
    STEPS_REPEATED_MAX,
    Whereabouts,
    WorkerProgress,
)
from drumbeat.coordinator.wire.run_status import overview_message
from tests.support.world import RUN, a_running_story


def at(local_rank: int = 0, **fields: float | str | None) -> WorkerProgress:
    return WorkerProgress(local_rank=local_rank, **fields)  # type: ignore[arg-type]


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


def test_steps_that_a_later_round_computes_again_are_counted() -> None:
    where = Whereabouts()

    def repeated(round_id: int, step: int | None) -> int:
        where.take(round_id, [WorkerProgress(local_rank=0, step=step)], now=0.0)
        return where.steps_repeated

    assert [
        repeated(0, 5),
        repeated(0, 120),
        repeated(1, None),
        repeated(1, 101),
        repeated(1, 130),
    ] == [
        0,
        0,
        0,
        19,
        19,
    ]
    assert [repeated(2, 131), repeated(3, 111)] == [19, 39]


def test_absurd_steps_of_a_worker_do_not_break_the_overview_of_its_run() -> None:
    story = a_running_story(2, restarts_max=9)
    for step in (2**63 - 1, -(2**63), 2**63 - 1, -(2**63)):
        story.beat("a", workers=(at(step=step),))
        story.fail("b")
        story.obey_all()
    run = story.run(RUN)
    presence = run.members.presences["a.1"]
    assert presence.whereabouts.steps_repeated == STEPS_REPEATED_MAX
    message = overview_message(run.state, run, Overview(), now=story.now)
    assert message.steps_repeated == STEPS_REPEATED_MAX
