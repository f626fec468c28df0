"""What the live line says: how far training is, how fast, and how long it takes."""

from typing import Any

from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.agent.telemetry.live import PACE_WINDOW_S, TrainingPace
from drumbeat.pace import POINTS_MAX


def at(local_rank: int, step: int | None, when: float, **more: Any) -> WorkerProgress:
    return WorkerProgress(local_rank=local_rank, step=step, heartbeat_at=when, **more)


def test_it_is_the_slowest_rank_that_counts() -> None:
    pace = TrainingPace()
    for second in range(11):
        standings = [at(0, 4 * second, second), at(1, 2 * second, second, steps_total=140)]
        pace.take(0, standings, now=second)
    assert pace.text(now=10.0) == "step 20 of 140, 2 steps/s, 1 min left"


def test_before_the_second_step_there_is_no_pace_and_without_steps_none_at_all() -> None:
    pace = TrainingPace()
    pace.take(0, [], now=5.0)
    assert pace.text(now=65.0) == "running for 1 min"
    pace.take(0, [at(0, None, 6.0)], now=6.0)
    assert pace.text(now=8.0) == "running for 3 s"
    pace.take(0, [at(0, 7, 7.0)], now=7.0)
    assert pace.text(now=7.0) == "step 7"


def test_slow_steps_are_told_by_their_time() -> None:
    pace = TrainingPace()
    for step in range(3):
        pace.take(0, [at(0, step, 40.0 * step)], now=40.0 * step)
    assert pace.text(now=81.0) == "step 2, 40 s a step"


def test_a_rank_that_makes_no_step_is_told_with_its_place() -> None:
    pace = TrainingPace()
    for step in range(3):
        pace.take(0, [at(0, step, step, step_time_s=1.0)], now=step)
    pace.take(0, [at(0, 2, 2.0, step_time_s=1.0, scope="checkpoint")], now=60.0)
    assert pace.text(now=62.0) == "step 2, none for 1 min (in checkpoint)"


def test_steps_that_begin_anew_have_a_pace_of_their_own() -> None:
    pace = TrainingPace()
    for step in (100, 200, 300):
        pace.take(0, [at(0, step, step / 100)], now=step / 100)
    for step in (50, 51, 52):  # a restart in process
        pace.take(0, [at(0, step, step)], now=step)
    assert pace.text(now=52.0) == "step 52, 1 steps/s"
    pace.take(1, [at(0, 7, 60.0)], now=60.0)
    assert pace.text(now=60.0) == "step 7"


def test_the_pace_is_that_of_late_and_what_is_kept_is_bounded() -> None:
    pace = TrainingPace()
    now, step = 0.0, 0
    for steps_a_second in (1, 100):
        for _ in range(100_0 if steps_a_second == 100 else 60):
            now, step = now + (0.05 if steps_a_second == 100 else 1.0), step + 1
            pace.take(0, [at(0, step, now)], now=now)
    assert pace.text(now=now).endswith("20 steps/s")
    points = pace._pace._points
    assert len(points) <= POINTS_MAX + 2
    assert now - points[0][0] <= PACE_WINDOW_S + 1
