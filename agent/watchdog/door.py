"""Shell. Where workers knock: a unix socket, behind which grpc is only started when one does.

Most runs never need it, and importing grpc would slow down the start of each.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from agent.inprocess.model import WorkerOrder
    from agent.watchdog.model import WorkerKey
    from agent.watchdog.service import Calls, WorkerServer

log = structlog.get_logger()

OUTER, INNER = "door", "grpc"
"""Names of the two sockets within the agent's directory."""

CONNECTIONS_MAX = 4096 * 4
"""Workers have one each; more is a mistake in one of them."""

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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
            self._socket.listen(_BACKLOG)
            self._place = self.path.stat()
        except OSError:
            self._socket.close()
            raise
        asyncio.get_running_loop().add_reader(self._socket, self._on_knock)

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
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        tasks = [*self._visits, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.close()

    def _on_knock(self) -> None:
        try:
            visitor, _ = self._socket.accept()
        except OSError:
            return  # gone again, or this process has no descriptor left
        if len(self._visits) >= CONNECTIONS_MAX:
            visitor.close()
            return
        visit = asyncio.get_running_loop().create_task(self._let_in(visitor))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _let_in(self, visitor: socket.socket) -> None:
        try:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())
            await asyncio.shield(self._starting)
            theirs = await asyncio.open_unix_connection(sock=visitor)
        except OSError as error:
            log.warning("calls of workers not served", reason=str(error))
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

    async def _start(self) -> WorkerServer:
        # Away from the loop: workers shall be watched meanwhile.
        service = await asyncio.to_thread(import_module, "agent.watchdog.service")
        server: WorkerServer = service.WorkerServer(self._calls)
        await server.start(self._inner)
        self._server = server
        return server


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE_BYTES):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()
