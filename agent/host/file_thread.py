"""Shell. A thread for blocking work, with deadlines: a file system or driver may hang.

A network file system that stalls must cost this host neither its heartbeats nor its answers. One
thread works in order, so that the owner of the files needs no locks; a daemon, it does not hold up
the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

JOBS_MAX = 10_000  # that wait: many times what the exits of one host's workers ask for


class FilesStalled(Exception):
    """File work did not end in time; it may still be done later."""


class FileThread:
    """Does file work for one owner, a piece at a time. Belongs to one event loop."""

    def __init__(self, name: str = "files") -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._pending = 0
        self._overdue: set[asyncio.Future[Any]] = set()

    @property
    def is_stalled(self) -> bool:
        """Whether some work is still not done although its time is over."""
        return bool(self._overdue)

    async def run(self, work: Callable[[], T], *, timeout_s: float) -> T:
        """Return what ``work`` returns; ``FilesStalled`` if it is late or too much waits."""
        if (done := self.submit(work)) is not None:
            await asyncio.wait({done}, timeout=timeout_s)
            if done.done():
                return done.result()
            self._overdue.add(done)
            done.add_done_callback(self._overdue.discard)
        raise FilesStalled(f"the file system did not answer within {timeout_s:g} s")

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T] | None:
        """Have ``work`` done, whenever that is; ``None`` if too much waits already."""
        if self._pending >= JOBS_MAX:
            return None
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            finish: Callable[[], None]
            try:
                finish = partial(done.set_result, work())
            except BaseException as error:  # noqa: BLE001 - belongs to the one who asked
                finish = partial(done.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
                loop.call_soon_threadsafe(self._finish, done, finish)

        # asyncio would complain about an error that comes too late to be looked at.
        done.add_done_callback(lambda late: late.cancelled() or late.exception())
        self._pending += 1
        self._jobs.put(job)
        if self._thread.ident is None:
            self._thread.start()
        return done

    def close(self) -> None:
        """End the thread once all work is done; returns at once."""
        self._jobs.put(None)
        if self._thread.ident is not None and not self._pending:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _finish(self, done: asyncio.Future[T], finish: Callable[[], None]) -> None:
        self._pending -= 1
        if not done.done():
            finish()
