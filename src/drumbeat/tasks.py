"""Shell. Tasks that belong together: none outlives the others, and no error of one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


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
