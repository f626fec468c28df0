"""Tasks that belong together."""

import asyncio

import pytest

from drumbeat.tasks import until_one_ends


class Part:
    """Runs until it is told to end, and notes how it ended."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.is_cancelled = False

    async def run(self) -> None:
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


async def breaks(error: BaseException) -> None:
    raise error


async def test_the_end_of_one_ends_the_others_and_is_no_error() -> None:
    first, second = Part(), Part()
    first.end.set()
    await until_one_ends(first.run(), second.run())
    assert (first.is_cancelled, second.is_cancelled) == (False, True)


async def test_the_error_of_one_ends_the_others_and_is_raised() -> None:
    part = Part()
    with pytest.raises(ValueError, match="it broke"):
        await until_one_ends(part.run(), breaks(ValueError("it broke")))
    assert part.is_cancelled


async def test_cancelling_it_ends_all_and_is_passed_on() -> None:
    parts = [Part(), Part()]
    both = asyncio.create_task(until_one_ends(*(part.run() for part in parts)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert [part.is_cancelled for part in parts] == [True, True]


async def test_an_error_on_the_way_out_is_raised_but_not_before_that_of_who_ended_first() -> None:
    async def trips() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("later")

    ended = Part()
    ended.end.set()
    with pytest.raises(KeyError):
        await until_one_ends(trips(), ended.run())
    with pytest.raises(ValueError, match="first"):
        await until_one_ends(trips(), breaks(ValueError("first")))


async def test_a_future_can_be_a_part() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    part = Part()
    asyncio.get_running_loop().call_soon(future.set_exception, ValueError("told"))
    with pytest.raises(ValueError, match="told"):
        await until_one_ends(part.run(), future)
    assert part.is_cancelled


async def test_a_part_that_is_cancelled_unasked_ends_the_whole_as_cancelled() -> None:
    """Which is no request to end: whoever owns the task can tell."""
    whole = asyncio.create_task(until_one_ends(Part().run(), breaks(asyncio.CancelledError())))
    await asyncio.wait([whole])
    assert whole.cancelled()
    assert not whole.cancelling()
