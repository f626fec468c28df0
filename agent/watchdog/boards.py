"""Shell. Makes the boards of a round's workers, and the sockets beside them that workers call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host.private_directory import MEMORY, PrivateDirectory
from drumbeat.agent.watchdog.board_reader import Board
from drumbeat.agent.watchdog.listener import Listener
from drumbeat.agent.watchdog.observers import Observers
from worker_sdk import context

if TYPE_CHECKING:
    from drumbeat.agent.watchdog.service import Calls, WorkerService

log = structlog.get_logger()


class Boards:
    """Boards and sockets of this agent's workers, one round's at a time.

    They are in the private directory of the agent. If its disk has no room they are in another
    one, in memory: a worker that is not watched can't restart in its process with the others, and
    would go on without them. ``observers`` are there if ``worker_of`` is, which returns whose a
    token is.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        calls: Calls,
        worker_of: Callable[[str], WorkerKey | None] | None,
        *,
        beat_interval_s: float,
    ) -> None:
        self.observers: Observers | None = None
        self._listener: Listener | None = None
        self._directory, self._calls, self._worker_of = directory, calls, worker_of
        self._beat_interval_s = beat_interval_s
        self._spare: PrivateDirectory | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def service(self) -> WorkerService | None:
        """What takes the calls of workers, once one has connected."""
        return None if self._listener is None else self._listener.service

    def environment(self, board: Board) -> dict[str, str]:
        """Return what tells a worker of a board, and of the sockets."""
        assert self._listener is not None, "a board without a socket"
        env = {
            context.WORKER_DIR: str(board.directory),
            context.WORKER_SOCKET: str(self._listener.path),
        }
        if self.observers is not None:
            env[context.OBSERVER] = str(self.observers.path)
        return env

    def make(self, keys: Sequence[WorkerKey]) -> dict[WorkerKey, Board]:
        """Return a board for each worker, or none at all if there is no room.

        The workers that had earlier ones have ended.
        """
        try:
            return self._make_in(self._directory.ensure(), keys)
        except (PrivateDirectoryUnusable, OSError) as error:
            why = str(error)
        try:
            self._spare = self._spare or PrivateDirectory((MEMORY,))
            boards = self._make_in(self._spare.ensure(), keys)
        except (PrivateDirectoryUnusable, OSError):
            log.warning("workers not watched", reason=why)
            return {}
        where = str(self._spare.path)
        log.warning("workers watched from a spare directory", path=where, reason=why)
        return boards

    async def close(self) -> None:
        """End every connection. The boards are for their users to close, and before."""
        if self._listener is not None:
            self._close_later(self._listener.close())
        if self.observers is not None:
            self._close_later(self.observers.close())
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._spare is not None:
            self._spare.close()

    def _make_in(self, directory: Path, keys: Sequence[WorkerKey]) -> dict[WorkerKey, Board]:
        if self._listener is not None and not self._listener.is_in(directory):
            # A cleaner took its socket away, or it is in the other directory.
            self._close_later(self._listener.close())
            self._listener = None
            if self.observers is not None:
                self._close_later(self.observers.close())
                self.observers = None
        self._listener = self._listener or Listener(directory, self._calls)
        if self._worker_of is not None and self.observers is None:
            self.observers = Observers(directory, self._worker_of)
        boards: dict[WorkerKey, Board] = {}
        try:
            for key in keys:
                boards[key] = Board(directory, key, beat_interval_s=self._beat_interval_s)
        except OSError:
            for board in boards.values():
                board.close()
            raise
        return boards

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
