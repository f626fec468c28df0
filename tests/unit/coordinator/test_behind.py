"""Which ranks stay behind the others, and what status, the page and `why` are told of it."""

import asyncio
import json
from typing import Any

import pytest

from drumbeat.coordinator.observe import ranks as columns
from drumbeat.coordinator.observe.messages import overview_of
from drumbeat.coordinator.observe.ranks import ranks_of
from drumbeat.coordinator.observe.readings import Readings
from drumbeat.coordinator.observe.steps.behind import (
    GROUPS_NAMED_MAX,
    LONGEST_STEPS,
    STAY_LEAST_S,
    STEPS_JUDGED_MAX,
    USUAL_STEPS,
    Lag,
    Laggard,
    Peers,
    named,
)
from drumbeat.coordinator.observe.steps.worker_progress import (
    FIRST_MOVES,
    LATELY_S,
    Standing,
    Whereabouts,
    WorkerProgress,
)
from tests.support.world import Story, a_running_story, a_story

STEP_S = 0.1


def at(step: int | None, age_s: float, **more: Any) -> WorkerProgress:
    """Return a worker that has made no step for so long."""
    told = {"heartbeat_age_s": age_s, "progress_age_s": age_s, "step_time_s": STEP_S}
    return WorkerProgress(local_rank=0, step=step, **(told | more))


def peers(*workers: WorkerProgress, now: float = 100.0, **more: Any) -> Peers:
    given: dict[str, Any] = {"times_s": [STEP_S], "longest_s": 0.0, "is_restarted": False}
    return Peers([(worker, now) for worker in workers], **(given | more))


def behind(story: Story) -> tuple[str, list[list[int]]]:
    """Return what `status` and `why` are told, and what the page is."""
    now = lambda: story.now  # noqa: E731
    overview = asyncio.run(
        overview_of(Readings(now), story.state(), story.run(), is_repeated=False)
    )
    grid = asyncio.run(ranks_of(Readings(now), story.state(), story.run(), is_repeated=False))
    return overview.behind, json.loads(grid.whole)["behind"]


def test_a_lower_step_counts_once_it_has_been_so_for_several_steps_on_both_sides() -> None:
    for age_s, is_behind in ((STAY_LEAST_S - 0.1, False), (STAY_LEAST_S + 0.1, True)):
        late, others = at(40, age_s + 1.0), [at(41, age_s)] * 2
        found = peers(late, *others).lag(late, 100.0)
        assert found == (Lag(1) if is_behind else None)
    just_now = peers(at(40, 60.0), at(41, 0.1), at(41, 0.1))
    assert just_now.lag(at(40, 60.0), 100.0) is None, "all of them made no step, until now"


def test_long_steps_and_the_longest_of_late_have_it_wait_longer() -> None:
    workers = at(40, 61.0), at(41, 60.0)
    assert peers(*workers).lag(workers[0], 100.0) == Lag(1)
    for long in ({"times_s": [60.0 / USUAL_STEPS]}, {"longest_s": 60.0 / LONGEST_STEPS}):
        assert peers(*workers, **long).lag(workers[0], 100.0) is None
    assert peers(*workers, times_s=[]).lag(workers[0], 100.0) is None, "nothing is known of steps"


def test_others_that_go_on_without_it_passed_it_long_ago() -> None:
    late = at(40, 30.0)
    assert peers(late, at(340, 0.05), at(339, 0.05)).lag(late, 100.0) == Lag(299)
    assert peers(late, at(60, 0.05), at(61, 0.05)).lag(late, 100.0) is None, "some 2 s ago"


@pytest.mark.parametrize(
    "late",
    [
        at(40, 60.0, progress_age_s=None),  # in a section
        at(40, 60.0, progress_age_s=0.5),  # it has left one
        at(None, 60.0),
        at(None, 60.0, heartbeat_age_s=None, progress_age_s=None),
        at(41, 60.0),
        at(42, 60.0),
    ],
)
def test_who_is_not_behind(late: WorkerProgress) -> None:
    assert peers(late, at(41, 60.0), at(41, 60.0)).lag(late, 100.0) is None


def test_half_of_them_are_not_behind_the_others() -> None:
    late = at(40, 60.0)
    assert peers(late, late, at(41, 60.0), at(41, 60.0)).lag(late, 100.0) is None
    assert peers(late, late, *[at(41, 60.0)] * 3).lag(late, 100.0) == Lag(1)


def test_at_the_same_step_it_is_who_is_not_where_the_others_wait() -> None:
    waiting = [at(41, 60.0, scope="reduce", scope_age_s=59.0)] * 2
    late = at(41, 60.0, scope="load", scope_age_s=60.0)
    assert peers(late, *waiting).lag(late, 100.0) == Lag(0, "reduce")
    assert peers(late, *waiting).lag(waiting[0], 100.0) is None
    shortly = [at(41, 60.0, scope="reduce", scope_age_s=0.1)] * 2
    assert peers(late, *shortly).lag(late, 100.0) is None


def test_where_steps_begin_again_a_lower_one_may_be_the_later_one() -> None:
    first, second = at(0, 20.0), at(99, 20.1)
    assert peers(first, second, is_restarted=True).lag(first, 100.0) is None
    late = at(40, 20.1)
    assert peers(late, at(41, 20.0), is_restarted=True).lag(late, 100.0) == Lag(1)


def test_only_so_many_different_steps_are_judged() -> None:
    found = peers(at(0, 60.0), *[at(1_000, 60.0)] * 200)
    late = [at(step, 60.0) for step in range(STEPS_JUDGED_MAX + 1)]
    assert [found.lag(each, 100.0) is None for each in late] == [False] * STEPS_JUDGED_MAX + [True]


def test_the_longest_step_is_forgotten_in_time_and_the_first_ones_do_not_count() -> None:
    where, now = Whereabouts(), 0.0

    def step(number: int, took_s: float) -> float:
        nonlocal now
        where.take(0, [at(number - 1, took_s)], now=now)
        now += 1.0
        where.take(0, [at(number, 0.0)], now=now)
        return where.longest_step_s(0)

    # The first word of all is one, too.
    assert [step(i, 60.0) for i in range(1, FIRST_MOVES)] == [0.0] * (FIRST_MOVES - 1)
    assert step(10, 7.0) == 7.0
    now += LATELY_S
    assert step(11, 1.0) == 7.0
    now += 2 * LATELY_S
    assert step(12, 1.0) == 1.0
    assert where.longest_step_s(1) == 0.0
    assert not where.is_restarted
    step(5, 1.0)
    assert where.is_restarted
    where.take(1, [], now=now)
    assert (where.is_restarted, list(where.step_times_s(1))) == (False, [])


def laggard(rank: int, host: str, step: int, scope: str = "") -> Laggard:
    return Laggard(Standing(rank=rank, host=host, progress=at(step, 9.0)), Lag(1, scope))


def test_ranks_are_named_by_host_and_of_many_the_furthest_behind() -> None:
    assert named([], 0) == ""
    one = laggard(3, "b", 40, "reduce")
    assert named([one], 1) == "rank 3 on b at step 40, not in 'reduce' as the others"
    host = [laggard(rank, "c", 40) for rank in range(8, 16)]
    assert named(host, 8) == "ranks 8, 9, 10, 11, 12, 13, 14 and 15 on c at step 40"
    many = [laggard(rank, f"h{rank}", 50 - rank) for rank in range(9)]
    text = named(many, 20)
    assert text.startswith("rank 8 on h8 at step 42, rank 7 on h7 at step 43, ")
    assert text.endswith(f" and {20 - GROUPS_NAMED_MAX} more ranks")


def beat(story: Story, name: str, *workers: WorkerProgress) -> None:
    story.beat(name, workers=workers)


def test_status_and_page_are_told_the_same_whenever_hosts_are_heard() -> None:
    story = a_running_story(3)
    for name, step in (("a", 40), ("b", 41), ("c", 41)):
        beat(story, name, at(step, 0.05))
    assert behind(story) == ("", [])
    for name, step in (("a", 41), ("b", 42), ("c", 42)):
        beat(story, name, at(step, 0.05))
    story.now += 60.0
    assert behind(story) == ("", []), "no report said that a makes no step"
    for name, step, age_s in (("a", 41, 60.0), ("b", 42, 59.0), ("c", 42, 59.0)):
        beat(story, name, at(step, age_s))
    assert behind(story) == ("rank 0 on a at step 41", [[0, 1]])


def test_ranks_of_another_role_are_no_peers() -> None:
    story = a_story(3)
    for name, role in (("a", "learner"), ("b", "actor"), ("c", "actor")):
        story.join(name, role=role)
    story.obey_all()
    for name, step in (("a", 3), ("b", 400), ("c", 400)):
        beat(story, name, at(step, 0.05))
        beat(story, name, at(step, 60.0))
    assert behind(story) == ("", [])


def test_no_rank_is_behind_unless_a_round_runs() -> None:
    story = a_running_story(3, restarts_max=1)
    for name, step in (("a", 40), ("b", 41), ("c", 41)):
        beat(story, name, at(step, 0.05))
        beat(story, name, at(step, 60.0))
    assert behind(story)[0]
    story.fail("b")
    assert behind(story) == ("", [])


def test_the_page_is_told_no_more_ranks_than_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BEHIND_MAX", 2)
    story = a_running_story(9)
    for name, step in zip("abcdefghi", [1] * 3 + [2] * 6, strict=True):
        beat(story, name, at(step, 0.05))
        beat(story, name, at(step, 60.0))
    text, page = behind(story)
    assert page == [[0, 1], [1, 1]]
    assert text == "rank 0 on a at step 1, rank 1 on b at step 1, rank 2 on c at step 1"
