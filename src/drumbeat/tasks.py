"""Shell. Tasks that belong together, and work that shares the loop with others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Any, TypeVar

T = TypeVar("T")


async def until_one_ends(*parts: Awaitable[Any]) -> None:
    """Run all ``parts`` at once until one ends, then cancel the others and wait for their end.

    Raises the error of the part that ended first, else one of a part that broke as it was
    cancelled; of several at once the first in their order. ``CancelledError`` if this was
    cancelled, or a part was without having been asked to end.
    """
    futures = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [future for future in futures if future.done()]
        for future in futures:
            future.cancel()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    of = dict(zip(futures, outcomes, strict=True))
    for future in (*ended, *futures):
        if isinstance(of[future], Exception):
            raise of[future]
    if any(future.cancelled() for future in ended):
        raise asyncio.CancelledError


def is_asked_to_end() -> bool:
    """Return whether the current task is to end: if not, a ``CancelledError`` is a call's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Turn:
    """Long work on the loop: it pauses as often as others need their turn, and not more often.

    On a busy loop a pause lasts as long as all that others have to do.
    """

    def __init__(self, lasts_s: float = 0.005) -> None:
        self._lasts_s, self._ends_at = lasts_s, time.perf_counter() + lasts_s

    async def pause(self) -> None:
        """Give others their turn if this one has lasted long enough."""
        if time.perf_counter() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = time.perf_counter() + self._lasts_s


async def in_thread(work: Callable[[], T]) -> T:
    """Return what ``work`` returns. The end of the process waits for no disk that stands still."""
    done: futures.Future[T] = futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="files", daemon=True).start()
    return await asyncio.wrap_future(done)
