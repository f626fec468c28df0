"""Shell. The unix socket for workers' calls; gRPC is started at the first connection.

Most runs never need it, and importing gRPC would slow down the start of each. So bytes are
passed between this socket and that of the gRPC server, which can take over no connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.inprocess.model import WorkerOrder
    from agent.watchdog.calls import Calls
    from agent.watchdog.core.model import WorkerKey
    from agent.watchdog.service import WorkerService

log = structlog.get_logger()

SOCKET, GRPC_SOCKET = "workers", "grpc"

CONNECTIONS_MAX = 4096 * 4
"""Workers have one each; further ones are closed."""

ACCEPT_PAUSE_S = 0.5
"""Without a descriptor left, the next connection is accepted so much later."""

_BACKLOG = 1024
_PIECE_BYTES = 64 * 1024


class Listener:
    """Listens from its making on; raises ``OSError`` if it can't."""

    def __init__(self, directory: Path, calls: Calls) -> None:
        self.path = directory / SOCKET
        self._grpc_path = directory / GRPC_SOCKET
        self._calls = calls
        self._service: WorkerService | None = None
        self._starting = asyncio.Lock()
        self._why_not = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
            self._socket.listen(_BACKLOG)
            self._place = self.path.stat()
        except OSError:
            self._socket.close()
            raise
        self._tasks = {asyncio.get_running_loop().create_task(self._accept())}

    def is_at(self, directory: Path) -> bool:
        """Return whether workers that are told of a socket in ``directory`` find this one."""
        try:
            return os.path.samestat(self._place, (directory / SOCKET).stat())
        except OSError:
            return False

    def worker_gone(self, key: WorkerKey) -> None:
        """End the stream of a worker that has ended."""
        if self._service is not None:
            self._service.worker_gone(key)

    def order(self, order: WorkerOrder) -> None:
        """Hand an order to a worker, which has sent a step and so came in by here."""
        if self._service is not None:
            self._service.order(order)

    async def close(self) -> None:
        """End every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        if self._service is not None:
            await self._service.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                self._warn(error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._tasks) > CONNECTIONS_MAX:
                connection.close()
                continue
            task = loop.create_task(self._forward(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, connection: socket.socket) -> None:
        """Pass bytes between a worker and the gRPC server until either ends."""
        writers: list[asyncio.StreamWriter] = []
        try:
            await self._ensure_served()
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            writers.append(writer)
            grpc_reader, grpc_writer = await asyncio.open_unix_connection(str(self._grpc_path))
            writers.append(grpc_writer)
            await asyncio.gather(_pipe(reader, grpc_writer), _pipe(grpc_reader, writer))
        except (OSError, ImportError) as error:
            if len(writers) < 2:
                self._warn(error)
        finally:
            for writer in writers:
                writer.transport.abort()
            connection.close()

    async def _ensure_served(self) -> None:
        """Start the server, unless it runs; the next connection after a failure tries anew."""
        async with self._starting:
            if self._service is not None:
                return
            # Away from the loop: workers shall be watched meanwhile.
            module = await asyncio.to_thread(import_module, "agent.watchdog.service")
            service: WorkerService = module.WorkerService(self._calls)
            try:
                self._grpc_path.unlink(missing_ok=True)
                await service.start(self._grpc_path)
            except BaseException:
                await service.close()
                raise
            self._service, self._why_not = service, ""

    def _warn(self, error: Exception) -> None:
        """Log what keeps workers from calling; once, until it is over or is another reason."""
        if str(error) != self._why_not:
            self._why_not = str(error)
            log.warning("calls of workers not served", reason=str(error))


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE_BYTES):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()
