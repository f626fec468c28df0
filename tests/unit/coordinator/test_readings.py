"""Readings that many share: how often one is made, and who is given which."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from drumbeat.coordinator.observe import readings as module
from drumbeat.coordinator.observe.messages import overview_of
from drumbeat.coordinator.observe.ranks import ranks_of
from drumbeat.coordinator.observe.readings import (
    FRESH_LEAST_S,
    KEPT_S,
    PASSES_MAX,
    SHARE,
    SHARE_AT_EVENTS,
    Readings,
    View,
    fresh_s,
)
from drumbeat.wire.mapping import seconds_of
from tests.support.world import START, Story, a_running_story

VIEW = View[int]()
GIVEN = View[int](giving_s=lambda _: 1.0)


class Maker:
    """Makes numbers, in two turns each; ``then`` is called between the two."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.made, self.then = 0, then
        self.befores: list[int | None] = []

    def __call__(self, before: int | None) -> Generator[None, None, int]:
        self.befores.append(before)
        yield
        self.then()
        self.made += 1
        return self.made


class Clock:
    """A clock that is set by the test."""

    now = START

    def __call__(self) -> float:
        return self.now


def fail_and_go_on(story: Story) -> None:
    story.fail("a")
    story.live()


def test_the_next_reading_waits_until_the_share_of_the_latest_is_used_up() -> None:
    assert fresh_s(2.0, 0.05) == 40.0
    assert fresh_s(0.0, 0.05) == FRESH_LEAST_S
    assert fresh_s(0.0, 0.05, 0.5) == 0.5


async def test_a_reading_serves_repeated_calls_until_it_is_old() -> None:
    clock, make, view = Clock(), Maker(), View[int](least_s=2.0)
    readings = Readings(clock)
    assert await readings.get(view, make) == 1
    clock.now += 1.0
    assert readings.fresh_until(view) == clock.now + 1.0
    assert await readings.get(view, make) == 1
    assert await readings.get(view, make, is_repeated=False) == 2, "a single call has a new one"
    clock.now += 2.0
    assert await readings.get(view, make) == 3
    assert make.befores == [None, 1, 2]


async def test_each_view_of_each_run_has_readings_of_its_own() -> None:
    readings, make = Readings(Clock()), Maker()
    state, other = a_running_story(1).state(), a_running_story(1).state()
    other.run_id = "other"
    kinds = [(VIEW, None), (VIEW, state), (VIEW, other), (GIVEN, state)]
    for _ in range(2):
        assert [await readings.get(view, make, of) for view, of in kinds] == [1, 2, 3, 4]


async def test_all_calls_while_a_reading_is_made_are_given_it_and_other_tasks_run() -> None:
    async def run() -> None:
        beside.append(make.made)

    readings, make, beside = Readings(Clock()), Maker(), list[int]()
    task = asyncio.create_task(run())
    gets = [readings.get(VIEW, make, is_repeated=bool(i % 2)) for i in range(10)]
    assert set(await asyncio.gather(*gets)) == {1}
    await task
    assert beside == [0]


async def test_what_a_reading_takes_and_is_given_for_makes_it_serve_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([10.0, 10.5, 20.0, 21.0])  # before and after each of two turns
    view, clock = View[int](share=0.1, giving_s=lambda _: 0.5), Clock()
    readings, make = Readings(clock), Maker()
    with monkeypatch.context() as patched:
        patched.setattr(module, "time", SimpleNamespace(thread_time=times.__next__))
        await readings.get(view, make, is_repeated=False)
    assert readings.fresh_until(view) == START + 15.0
    await readings.get(view, make)
    assert readings.fresh_until(view) == START + 20.0, "one reader was given it"
    await readings.get(view, make, readers=4)
    assert readings.fresh_until(view) == START + 35.0, "one caller hands it to four"
    clock.now += 35.0
    await readings.get(view, make)
    assert readings.fresh_until(view) >= clock.now + 20.0, "as many may come as before"


async def test_a_reading_of_a_run_serves_for_less_time_after_an_event() -> None:
    story = a_running_story(2, restarts_max=1)
    readings, state = Readings(Clock()), story.state()
    await readings.get(GIVEN, Maker(), state)
    assert readings.fresh_until(GIVEN, state) >= START + 1.0 / SHARE
    story.fail("a")
    assert readings.fresh_until(GIVEN, state) < START + 2.0 / SHARE_AT_EVENTS


async def test_no_reading_from_before_the_end_of_a_run_is_given_after_it() -> None:
    story, make = a_running_story(1), Maker()
    readings, state = Readings(Clock()), story.state()
    assert await readings.get(VIEW, make, state) == 1
    story.succeed("a")
    assert await readings.get(VIEW, make, state) == 2
    assert await readings.get(VIEW, make, state) == 2, "one from after it is shared"


async def test_a_run_that_ends_on_the_way_has_the_reading_made_again() -> None:
    story, make = a_running_story(1), Maker()
    readings, state = Readings(Clock()), story.state()
    make.then = lambda: state.verdict or story.succeed("a")
    assert await readings.get(VIEW, make, state) == 2
    assert await readings.get(VIEW, make, state) == 2, "it is from after the end"


async def test_a_reading_with_an_event_on_the_way_is_as_old_as_one_from_before_it() -> None:
    def decide() -> None:
        state.events_count += 1

    state, readings = a_running_story(1).state(), Readings(Clock())
    await readings.get(GIVEN, Maker(decide), state)
    assert readings.fresh_until(GIVEN, state) < START + 2.0 / SHARE_AT_EVENTS


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_reading_that_was_not_finished_leaves_the_one_before_as_old_as_it_was(
    *, is_cancelled: bool
) -> None:
    def fail() -> None:
        raise ValueError("broken")

    story = a_running_story(1)
    readings, state, make = Readings(Clock()), story.state(), Maker()
    await readings.get(VIEW, make, state)
    story.succeed("a")
    failing = asyncio.create_task(readings.get(VIEW, Maker(fail), state))
    if is_cancelled:
        await asyncio.sleep(0)
        failing.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
        await failing
    assert await readings.get(VIEW, make, state) == 2


async def test_a_round_that_begins_on_the_way_has_the_reading_made_again() -> None:
    story = a_running_story(2, restarts_max=1)
    make = Maker(lambda: None if make.made else fail_and_go_on(story))
    assert await Readings(Clock()).get(VIEW, make, story.state()) == 2
    assert story.state().round_id == 1


async def test_rounds_that_begin_again_and_again_keep_no_reader_waiting() -> None:
    story = a_running_story(2, restarts_max=100)
    make = Maker(lambda: fail_and_go_on(story))
    assert await Readings(Clock()).get(VIEW, make, story.state()) == PASSES_MAX


async def test_readings_that_no_one_asks_for_are_forgotten() -> None:
    class Made:
        pass

    def make(_: Made | None) -> Generator[None, None, Made]:
        yield
        return Made()

    clock, view, other = Clock(), View[Made](), View[Made]()
    readings = Readings(clock)
    made = weakref.ref(await readings.get(view, make))
    clock.now += KEPT_S
    await readings.get(other, make)
    assert made() is not None
    clock.now += 1.0
    await readings.get(View[Made](), make)
    gc.collect()
    assert made() is None


@pytest.mark.parametrize("of", [overview_of, ranks_of])
async def test_what_is_shown_of_a_run_is_shared(of: Any) -> None:
    clock, story = Clock(), a_running_story(2)
    readings, seen = Readings(clock), list[float]()

    async def rows(*, is_repeated: bool) -> bytes:
        found = await of(readings, story.state(), story.run(), is_repeated=is_repeated)
        if of is ranks_of:
            return bytes(found.columns)
        seen.append(seconds_of(found.fresh_for))
        return bytes(found.run.SerializeToString())

    first = await rows(is_repeated=True)
    story.leave("b")
    clock.now += FRESH_LEAST_S / 2
    assert await rows(is_repeated=True) == first
    assert await rows(is_repeated=False) != first, "who asks once has it new"
    assert seen in ([], [FRESH_LEAST_S, FRESH_LEAST_S / 2, FRESH_LEAST_S])
