"""Who was where, and who is behind."""

from typing import Any

import pytest

from drumbeat.coordinator.core.model import Hang
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import EndingStarted, RoundEnded
from drumbeat.coordinator.observe.steps.worker_progress import (
    BEHIND_SHOWN_MAX,
    Standing,
    WorkerProgress,
    furthest_behind,
)
from drumbeat.model import HangKind
from tests.support.world import Story, a_running_story


def standing(rank: int, step: int | None = None, scope: str = "", **fields: Any) -> Standing:
    age = fields.pop("heartbeat_age_s", None if step is None else 1.0)
    progress = WorkerProgress(local_rank=0, step=step, heartbeat_age_s=age, scope=scope)
    return Standing(rank=rank, host=f"h{rank}", progress=progress)


def test_the_lowest_step_is_behind() -> None:
    found = [standing(0, 41, "reduce"), standing(1, 41, "reduce"), standing(2, 40)]
    assert furthest_behind(found) == "rank 2 on h2 at step 40"
    assert furthest_behind(found[1:]) == "rank 2 on h2 at step 40"


def test_at_equal_steps_who_is_not_where_the_others_wait_is_behind() -> None:
    found = [standing(0, 41, "reduce"), standing(1, 41), standing(2, 41, "reduce")]
    assert furthest_behind(found) == "rank 1 on h1 at step 41, not in 'reduce' as the others"


@pytest.mark.parametrize(
    ("found", "ranks"),
    [
        ([standing(rank, min(rank, 1)) for rank in range(3)], [0]),
        ([standing(rank, rank) for rank in range(9)], [0]),
        ([standing(rank, rank // 3) for rank in range(7)], [0, 1, 2]),
        ([standing(rank, rank // BEHIND_SHOWN_MAX) for rank in range(100)], [0, 1, 2, 3]),
        ([standing(0, 1), standing(1), *(standing(rank, 2) for rank in range(2, 5))], [1]),
        ([standing(0, 1, "load"), *(standing(r, 2, "reduce") for r in (1, 2))], [0]),
        ([standing(rank, 2, "reduce" if rank < 3 else "") for rank in range(5)], [3, 4]),
        ([standing(rank, 2, "reduce" if rank < 2 else "") for rank in range(5)], []),
        ([standing(rank, 2, "reduce" if rank < 2 else str(rank)) for rank in range(4)], []),
    ],
)
def test_few_ranks_are_named_and_never_half_of_them(
    found: list[Standing], ranks: list[int]
) -> None:
    named = furthest_behind(found)
    assert named.count("rank ") == len(ranks), named
    assert all(f"rank {rank} on h{rank} " in named for rank in ranks), named


def test_who_has_not_begun_is_behind_and_who_counts_no_steps_is_not() -> None:
    found = [standing(0, 4), standing(1), standing(2, 4)]
    assert furthest_behind(found) == "rank 1 on h1 before its first heartbeat"
    uncounted = standing(1, None, heartbeat_age_s=0.1)
    assert furthest_behind([standing(0, 4), uncounted, standing(2, 4)]) == ""


@pytest.mark.parametrize(
    "found",
    [
        [],
        [standing(0, 1)],
        [standing(rank, 7, "reduce") for rank in range(4)],
        [standing(rank, 7) for rank in range(4)],
        [standing(rank, rank % 2) for rank in range(4)],
        [standing(rank, 0 if rank <= BEHIND_SHOWN_MAX else 1) for rank in range(100)],
        [standing(0, 7, "a"), standing(1, 7, "b"), standing(2, 7, "c")],
    ],
)
def test_nobody_is_named_where_nobody_stands_out(found: list[Standing]) -> None:
    assert furthest_behind(found) == ""


def stand(story: Story, name: str, **fields: Any) -> None:
    count = story.agents[name].identity.local_world_size
    workers = tuple(WorkerProgress(local_rank=i, **fields) for i in range(count))
    story.beat(name, workers=workers)


def test_a_restart_and_an_ending_keep_who_was_where_with_the_ages_of_then() -> None:
    story = a_running_story(2, restarts_max=1)
    stand(story, "a", step=4, heartbeat_age_s=1.0)
    story.now += 2.0
    story.fail("b")
    (ended,) = story.records(RoundEnded)
    ((only,), count) = (ended.where.shown, ended.where.count)
    assert (only.rank, only.host, only.progress.heartbeat_age_s, count) == (0, "a", 3.0, 1)
    assert story.state().where.count == 0, "a new round runs"
    story.obey_all()
    stand(story, "b", step=9)
    story.fail("a")
    (ending,) = story.records(EndingStarted)
    assert [(s.rank, s.progress.step) for s in ending.where.shown] == [(1, 9)]


def test_the_report_has_the_standings_of_the_failure_not_of_the_verdict() -> None:
    story = a_running_story(2)
    stand(story, "a", step=4)
    story.fail("b")
    stand(story, "a", step=5)
    story.beat("a", workers_alive=0)
    report = story.verdict("b").report
    assert [s.progress.step for s in report.standings] == [4]
    assert (report.standings_count, report.root_causes) == (1, ())


def test_the_verdict_of_a_run_that_never_forms_again_has_those_of_its_last_round() -> None:
    story = a_running_story(2, restarts_max=3, join_timeout_s=60.0)
    stand(story, "a", step=4)
    story.beat("a", port=0)  # the leader holds no port for another round
    story.fail("b")
    story.advance(100.0)
    verdict = story.verdict("a")
    assert "no free port" in verdict.reason
    assert [s.progress.step for s in verdict.report.standings] == [4]


def test_of_too_many_those_furthest_behind_are_kept_in_order_of_rank() -> None:
    policy = Policy(standings_shown_max=3)
    story = a_running_story(6, policy=policy)
    for name, step in zip("abcdef", [9, 2, 8, 1, 7, 3], strict=True):
        stand(story, name, step=step, heartbeat_age_s=0.0)
    story.fail("a")
    where = story.state().where
    assert [(s.rank, s.progress.step) for s in where.shown] == [(1, 2), (3, 1), (5, 3)]
    assert where.count == 6


def test_a_hang_names_who_is_behind_even_if_its_record_comes_late() -> None:
    story = a_running_story(3)
    for name, step in zip("abc", [5, 5, 4], strict=True):
        stand(story, name, step=step, heartbeat_age_s=0.0)
    story.agents["a"].sequence = 1
    story.fail("a")
    assert "behind" not in story.state().reason
    hang = Hang(kind=HangKind.TIMER, scope="reduce", limit_s=60.0, elapsed_s=60.1)
    story.record("a", sequence=1, hang=hang)
    for name in "bc":
        story.beat(name, workers_alive=0)
    assert story.verdict("b").reason == (
        "round 0 failed: a worker on a; no restarts are allowed; root cause: rank 0 on a hung: "
        "timer 'reduce' not released within 60 s; furthest behind: rank 2 on c at step 4"
    )
