"""Shell. Where workers knock: a unix socket, behind which grpc is only started when one does.

Most runs never need it, and importing grpc would slow down the start of each.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from agent.core.inprocess.model import WorkerOrder
    from agent.watchdog.core.model import WorkerKey
    from agent.watchdog.service import Calls, WorkerServer

log = structlog.get_logger()

OUTER, INNER = "door", "grpc"
"""Names of the two sockets within the agent's directory."""

CONNECTIONS_MAX = 4096 * 4
"""Workers have one each; more is a mistake in one of them."""

ACCEPT_PAUSE_S = 0.5
"""Without a descriptor for a visitor, the next look at who knocks comes so much later."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BACKLOG = 1024
_PIECE_BYTES = 64 * 1024


class Door:
    """Listens from the start; raises ``OSError`` if it can't."""

    def __init__(self, directory: Path, calls: Calls) -> None:
        self.path = directory / OUTER
        self._inner = directory / INNER
        self._calls = calls
        self._server: WorkerServer | None = None
        self._starting: asyncio.Task[WorkerServer] | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._told = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
            self._socket.listen(_BACKLOG)
            self._place = self.path.stat()
        except OSError:
            self._socket.close()
            raise
        self._listen()

    def is_at(self, directory: Path) -> bool:
        """Return whether workers that are told of a door in ``directory`` find this one."""
        try:
            return os.path.samestat(self._place, (directory / OUTER).stat())
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        """Whether anybody has knocked yet."""
        return self._starting is not None

    def worker_gone(self, key: WorkerKey) -> None:
        """End the conversation with a worker that has ended."""
        if self._server is not None:
            self._server.worker_gone(key)

    def order(self, key: WorkerKey, order: WorkerOrder) -> None:
        """Hand an order to a worker, who has said something and so came in by here."""
        if self._server is not None:
            self._server.order(key, order)

    async def close(self) -> None:
        """Let nobody in, and end every conversation."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        tasks = [*self._visits, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.close()

    def _listen(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._socket, self._on_knock)

    def _on_knock(self) -> None:
        try:
            visitor, _ = self._socket.accept()
        except OSError as error:
            if error.errno in _SHORTAGES:
                # The knock stays there, so that the loop would come back at once, and for ever.
                self._tell(str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(ACCEPT_PAUSE_S, self._listen)
            return  # else it is gone again
        if len(self._visits) >= CONNECTIONS_MAX:
            visitor.close()
            return
        visit = asyncio.get_running_loop().create_task(self._let_in(visitor))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _let_in(self, visitor: socket.socket) -> None:
        try:
            await self._started()
            theirs = await asyncio.open_unix_connection(sock=visitor)
        except (OSError, ImportError) as error:
            self._tell(str(error))
            visitor.close()
            return
        except BaseException:
            visitor.close()
            raise
        writers = [theirs[1]]
        try:
            ours = await asyncio.open_unix_connection(str(self._inner))
            writers.append(ours[1])
            await asyncio.gather(_pipe(theirs[0], ours[1]), _pipe(ours[0], theirs[1]))
        except OSError:
            pass  # either side went away
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _started(self) -> None:
        """Return when the server runs; the next visitor after a failure tries anew."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except (OSError, ImportError):
            if self._starting is starting:
                self._starting = None
            raise

    async def _start(self) -> WorkerServer:
        # Away from the loop: workers shall be watched meanwhile.
        service = await asyncio.to_thread(import_module, "agent.watchdog.service")
        server: WorkerServer = service.WorkerServer(self._calls)
        try:
            self._inner.unlink(missing_ok=True)
            await server.start(self._inner)
        except OSError:
            await server.close()
            raise
        self._server = server
        self._told = ""
        return server

    def _tell(self, why: str) -> None:
        """Say what keeps workers from calling; once, until it is over or is another reason."""
        if why != self._told:
            self._told = why
            log.warning("calls of workers not served", reason=why)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE_BYTES):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()
