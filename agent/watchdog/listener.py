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
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from drumbeat.agent.watchdog.service import Calls, WorkerService

log = structlog.get_logger()

CONNECTIONS_MAX = 4096 * 4  # workers have one each; further ones are closed
ACCEPT_PAUSE_S = 0.5  # without a descriptor left, the next connection is accepted so much later


class Listener:
    """Listens from its making on; raises ``OSError`` if it can't."""

    def __init__(self, directory: Path, calls: Calls) -> None:
        self.path = directory / "workers"
        self.service: WorkerService | None = None  # until a worker has connected
        self._calls = calls
        self._starting = asyncio.Lock()
        self._why_not = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self.path.unlink(missing_ok=True)  # of one that was closed
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)  # before a process can connect, whatever the umask
            self._socket.listen(1024)
            self._place = self.path.stat()
        except OSError:
            self._socket.close()
            raise
        self._tasks = {asyncio.get_running_loop().create_task(self._accept())}

    def is_in(self, directory: Path) -> bool:
        """Return whether the socket in ``directory`` is this one."""
        with suppress(OSError):
            return os.path.samestat(self._place, (directory / self.path.name).stat())
        return False

    async def close(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        if self.service is not None:
            await self.service.close()

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
            path = await self._served_at()
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            writers.append(writer)
            grpc_reader, grpc_writer = await asyncio.open_unix_connection(path)
            writers.append(grpc_writer)
            await asyncio.gather(_pipe(reader, grpc_writer), _pipe(grpc_reader, writer))
        except (OSError, ImportError) as error:
            if len(writers) < 2:
                self._warn(error)
        finally:
            for writer in writers:
                writer.transport.abort()
            connection.close()

    async def _served_at(self) -> str:
        """Start the server, unless it runs; the next connection after a failure tries anew."""
        path = self.path.with_name("grpc")
        async with self._starting:
            if self.service is None:
                # Away from the loop: workers shall be watched meanwhile.
                module = await asyncio.to_thread(import_module, "drumbeat.agent.watchdog.service")
                service: WorkerService = module.WorkerService(self._calls)
                try:
                    path.unlink(missing_ok=True)
                    await service.start(path)
                except BaseException:
                    await service.close()
                    raise
                self.service, self._why_not = service, ""
        return str(path)

    def _warn(self, error: Exception) -> None:
        """Log what keeps workers from calling; once, until it is over or is another reason."""
        if str(error) != self._why_not:
            self._why_not = str(error)
            log.warning("calls of workers not served", reason=str(error))


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(64 * 1024):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()
