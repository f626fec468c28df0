"""Readings that many share: how often one is made, and who is given which."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from drumbeat.coordinator.observe import shared_reading
from drumbeat.coordinator.observe.shared_reading import (
    FRESH_LEAST_S,
    KEPT_S,
    PASSES_MAX,
    SHARE,
    SHARE_AT_EVENTS,
    RunReadings,
    SharedReading,
    fresh_s,
)
from tests.support.world import START, a_running_story

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


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


def test_the_next_reading_waits_until_the_share_of_the_latest_is_used_up() -> None:
    assert fresh_s(2.0, 0.05) == 40.0
    assert fresh_s(0.0, 0.05) == FRESH_LEAST_S
    assert fresh_s(0.0, 0.05, 0.5) == 0.5


async def test_a_reading_serves_repeated_calls_until_it_is_old() -> None:
    clock, make = Clock(), Maker()
    shared = SharedReading[int](clock, least_s=2.0)
    assert await shared.get(make) == 1
    clock.now += 1.0
    assert shared.fresh_until() == clock.now + 1.0
    assert await shared.get(make) == 1
    assert await shared.get(make, is_repeated=False) == 2, "one that is new for a single call"
    clock.now += 2.0
    assert await shared.get(make) == 3
    assert make.befores == [None, 1, 2]


async def test_all_calls_while_a_reading_is_made_are_given_it() -> None:
    shared, make = SharedReading[int](Clock()), Maker()
    gets = [shared.get(make, is_repeated=bool(i % 2)) for i in range(10)]
    assert set(await asyncio.gather(*gets)) == {1}


async def test_other_tasks_run_while_a_reading_is_made() -> None:
    async def run() -> None:
        beside.append(make.made)

    make, beside = Maker(), list[int]()
    task = asyncio.create_task(run())
    await SharedReading[int](Clock()).get(make)
    await task
    assert beside == [0]


async def test_what_a_reading_takes_and_is_given_for_makes_it_serve_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([10.0, 10.5, 20.0, 21.0])  # before and after each of two turns
    with monkeypatch.context() as patched:
        patched.setattr(shared_reading, "time", type("Times", (), {"thread_time": times.__next__}))
        shared = SharedReading[int](Clock(), share=0.1)
        await shared.get(Maker())
    assert shared.fresh_until() == START + 15.0
    shared.giving_s = 0.5
    assert shared.fresh_until() == START + 20.0
    assert time.thread_time() >= 0.0


async def test_a_reading_of_a_run_serves_for_less_time_after_an_event() -> None:
    story = a_running_story(2, restarts_max=1)
    shared, state = SharedReading[int](Clock()), story.state()
    await shared.get(Maker(), state)
    shared.giving_s = 1.0
    assert shared.fresh_until(state) >= START + 1.0 / SHARE
    story.fail("a")
    assert shared.fresh_until(state) < START + 2.0 / SHARE_AT_EVENTS


async def test_no_reading_from_before_the_end_of_a_run_is_given_after_it() -> None:
    story, make = a_running_story(1), Maker()
    shared, state = SharedReading[int](Clock()), story.state()
    assert await shared.get(make, state) == 1
    story.succeed("a")
    assert await shared.get(make, state) == 2
    assert await shared.get(make, state) == 2, "one from after it is shared"


async def test_a_run_that_ends_on_the_way_has_the_reading_made_again() -> None:
    story, make = a_running_story(1), Maker()
    shared, state = SharedReading[int](Clock()), story.state()
    make.then = lambda: state.verdict or story.succeed("a")
    assert await shared.get(make, state) == 2
    assert await shared.get(make, state) == 2, "it is from after the end"


async def test_a_reading_with_an_event_on_the_way_is_as_old_as_one_from_before_it() -> None:
    def decide() -> None:
        state.events_count += 1

    state, shared = a_running_story(1).state(), SharedReading[int](Clock())
    await shared.get(Maker(decide), state)
    shared.giving_s = 1.0
    assert shared.fresh_until(state) < START + 2.0 / SHARE_AT_EVENTS


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_reading_that_was_not_finished_leaves_the_one_before_as_old_as_it_was(
    *, is_cancelled: bool
) -> None:
    def fail() -> None:
        raise ValueError("broken")

    story = a_running_story(1)
    shared, state, make = SharedReading[int](Clock()), story.state(), Maker()
    await shared.get(make, state)
    story.succeed("a")
    failing = asyncio.create_task(shared.get(Maker(fail), state))
    if is_cancelled:
        await asyncio.sleep(0)
        failing.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
        await failing
    assert await shared.get(make, state) == 2


async def test_a_round_that_begins_on_the_way_has_the_reading_made_again() -> None:
    def restart() -> None:
        if not make.made:
            story.fail("a")
            story.live()

    story, make = a_running_story(2, restarts_max=1), Maker(restart)
    assert await SharedReading[int](Clock()).get(make, story.state()) == 2
    assert story.state().round_id == 1


async def test_rounds_that_begin_again_and_again_keep_no_reader_waiting() -> None:
    def restart() -> None:
        story.fail("a")
        story.live()

    story, make = a_running_story(2, restarts_max=100), Maker(restart)
    assert await SharedReading[int](Clock()).get(make, story.state()) == PASSES_MAX


async def test_readings_of_runs_that_no_one_asks_for_are_forgotten() -> None:
    clock, state = Clock(), a_running_story(1).state()
    readings = RunReadings[int](clock)
    shared, make = readings.of(state), Maker()
    await shared.get(make, state)
    clock.now += KEPT_S
    assert readings.of(state) is shared
    clock.now += 1.0
    getting = asyncio.create_task(shared.get(make, state))
    await asyncio.sleep(0)
    assert readings.of(state) is shared, "a reader waits for the next one"
    await getting
    clock.now += KEPT_S + 1.0
    assert readings.of(state) is not shared
