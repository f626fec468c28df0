"""Shell. Runs one blocking call of a driver in a thread that may never come back.

The pools of the standard library join their threads when the process ends; with
a GPU that hangs its driver, an agent would then not end at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def run_in_background(call: Callable[[], T], *, fallback: T, name: str) -> T:
    """Return what ``call`` returns. Cancelling only stops the waiting, not the call.

    Args:
        call: Raises nothing but mistakes of ours, which go to ``threading.excepthook``.
        fallback: Stands for its result then.
        name: Of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def answer(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def work() -> None:
        result = fallback
        try:
            result = call()
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(answer, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
