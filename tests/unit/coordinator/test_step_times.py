"""Step times of the last minutes: what is kept, how much memory that is, what readers get."""

import math

import pytest

from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.errors import InvalidRequest, UnknownRun
from drumbeat.coordinator.observe.messages import (
    RANKS_CHOSEN,
    RANKS_MAX,
    step_times_message,
)
from drumbeat.coordinator.observe.steps.step_times import (
    COLUMNS_LEAST,
    COLUMNS_MAX,
    INTERVAL_MAX_S,
    StepTimes,
)
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState
from drumbeat.v1 import query_pb2
from tests.support.world import START, Story, a_running_story
from tests.unit.coordinator.test_stragglers import RULE, Ranks, a_round


def a_beat(*times: float | None, round_id: int = 0) -> Beat:
    workers = tuple(
        WorkerProgress(local_rank=i, step=1, step_time_s=time) for i, time in enumerate(times)
    )
    return Beat(state=GroupState.RUNNING, round_id=round_id, workers=workers)


def asked(story: Story, *ranks: int) -> query_pb2.GetStepTimesResponse:
    request = query_pb2.GetStepTimesRequest(run_id="run", ranks=ranks)
    return step_times_message(request, story.state(), story.run(), now=story.now)


def test_a_young_round_has_each_second_and_an_old_one_the_last_minutes() -> None:
    times = StepTimes(a_round(2))
    for second in range(1, 7201):
        times.heard("h0.1", a_beat(float(second)), now=START + second)
        count = len(times.columns)
        assert count <= COLUMNS_MAX
        if second == COLUMNS_MAX:
            assert [column.steps[0] for column in times.columns] == list(range(1, 61))
        if second > COLUMNS_MAX:
            covered_s = START + second - times.columns[0].began_at
            assert covered_s >= min(second / 2, 240) - INTERVAL_MAX_S
    assert covered_s == pytest.approx(COLUMNS_MAX * INTERVAL_MAX_S, abs=2 * INTERVAL_MAX_S)
    gaps = {
        after.began_at - before.began_at
        for before, after in zip(times.columns, times.columns[1:], strict=False)
    }
    assert gaps == {INTERVAL_MAX_S}


@pytest.mark.parametrize(("agents", "mebibytes"), [(10_000, 19), (50_000, 20)])
def test_memory_has_a_bound_that_a_larger_round_does_not_pass(agents: int, mebibytes: int) -> None:
    times = StepTimes(a_round(agents, workers=8))
    for second in range(70):
        times.heard("h0.1", a_beat(1.0), now=START + 10 * second)
    assert len(times.columns) >= COLUMNS_LEAST
    held = sum(column.steps.itemsize * len(column.steps) for column in times.columns)
    assert held <= mebibytes * 1024 * 1024


def test_ranks_of_other_rounds_and_strangers_are_passed_over() -> None:
    times = StepTimes(a_round(2, workers=2))
    times.heard("stranger", a_beat(1.0), now=START)
    times.heard("h1.1", a_beat(None, 2.0), now=START)
    assert [math.isnan(each) for each in times.columns[0].steps] == [True, True, True, False]


def test_what_is_told_of_another_round_is_passed_over() -> None:
    story = a_running_story(2)
    story.beat("a", round_id=7, workers=a_beat(1.0).workers)
    assert not asked(story, 0).ages_seconds


def test_a_reader_gets_the_ranks_it_asks_for_with_the_median_of_all() -> None:
    story = a_running_story(4)
    for index, name in enumerate("abcd"):
        story.beat(name, GroupState.RUNNING, workers=a_beat(0.1 * (index + 1)).workers)
    story.advance(3.0)
    found = asked(story, 3, 1, 1)
    assert [row.rank for row in found.ranks] == [1, 3]
    assert [row.name for row in found.ranks] == ["b", "d"]
    assert [row.step_seconds[0] for row in found.ranks] == pytest.approx([0.2, 0.4])
    assert found.median_seconds[0] == pytest.approx(0.2)
    assert len(found.ages_seconds) == len(found.median_seconds) == 4
    assert list(found.ages_seconds) == [3.0, 2.0, 1.0, 0.0]
    assert (found.round_id, found.world_size, found.stragglers_count) == (0, 4, 0)
    assert not found.median_busy_seconds
    assert not found.ranks[0].busy_seconds


def test_a_reader_that_names_no_rank_gets_stragglers_and_the_slowest() -> None:
    story = a_running_story(12, **RULE)
    ranks = Ranks(story, is_busy=True)
    ranks.train(2)
    ranks.train(8, k=0.4, a=0.12)
    found = asked(story)
    assert len(found.ranks) == RANKS_CHOSEN
    assert {0, 10} <= {row.rank for row in found.ranks}
    assert [each.rank for each in found.stragglers] == [10]
    assert found.median_busy_seconds[-1] == pytest.approx(0.1)
    row = next(row for row in found.ranks if row.rank == 10)
    assert row.busy_seconds[-1] == pytest.approx(0.4)
    assert math.isnan(row.busy_seconds[0])


def test_ranks_that_have_just_begun_to_make_steps_are_among_the_slowest() -> None:
    times = StepTimes(a_round(3))
    times.heard("h0.1", a_beat(None), now=START)
    times.heard("h0.1", a_beat(0.1), now=START + 1)
    times.heard("h2.1", a_beat(0.3), now=START + 1)
    assert times.slowest(8) == [0, 2]
    assert times.slowest(1) == [2]


def test_what_cannot_be_asked_for_is_named() -> None:
    story = a_running_story(2)
    with pytest.raises(InvalidRequest, match="0 to 1"):
        asked(story, 2)
    with pytest.raises(InvalidRequest, match=f"at most {RANKS_MAX}"):
        asked(story, *([0] * (RANKS_MAX + 1)))
    story.fail("a")
    with pytest.raises(UnknownRun):
        asked(story)
