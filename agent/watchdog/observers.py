"""Shell. The agent's side of the observers in its workers: who is connected, and what they answer.

An observer is code in a user's process. Nothing it sends is believed beyond what it says of its own
worker; what is too long, too late or not asked for ends the connection or is dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from drumbeat.agent.core.watchdog.model import WorkerKey

CONNECTIONS_MAX = 1024  # of all workers; further ones are closed
OF_WORKER_MAX = 8  # of one worker, which may start other interpreters; the oldest is closed
LINE_BYTES_MAX = 256
ANSWER_BYTES_MAX = 4 * 1024 * 1024
HELLO_WITHIN_S = 10.0
QUESTIONS_MAX = 16  # of one observer that have no answer yet; one more is not asked


class Observer:
    """One connection: questions go out with a number, answers come in with the same."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._asked = 0

    async def ask(self, what: str) -> bytes:
        """Return its answer; nothing if it has gone. Cancel it to wait no longer."""
        if self._writer.is_closing() or len(self._waiting) >= QUESTIONS_MAX:
            return b""
        self._asked = number = self._asked + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(f"{number} {what}\n".encode())
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def run(self) -> None:
        """Take answers in until the connection ends, or breaks the rules."""
        try:
            while header := await self._reader.readline():
                number, size = map(int, header.split())
                if not 0 <= size <= ANSWER_BYTES_MAX:
                    return
                data = await self._reader.readexactly(size)
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(data)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; what it was asked has no answer."""
        self._writer.transport.abort()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(b"")


class Observers:
    """Listens from its making on; raises ``OSError`` if it can't."""

    def __init__(self, directory: Path, worker_of: Callable[[str], WorkerKey | None]) -> None:
        """Listen in ``directory``. ``worker_of`` returns whose a token is."""
        self.path = directory / "observers"
        self._worker_of = worker_of
        self._observers: dict[WorkerKey, list[Observer]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self.path.unlink(missing_ok=True)  # of one that was closed
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen(1024)
        except OSError:
            self._socket.close()
            raise
        serving = asyncio.start_unix_server(self._serve, sock=self._socket, limit=LINE_BYTES_MAX)
        self._server = asyncio.get_running_loop().create_task(serving)

    def is_connected(self, key: WorkerKey) -> bool:
        """Return whether a worker has an observer."""
        return key in self._observers

    async def ask(self, key: WorkerKey, what: str, timeout_s: float) -> bytes:
        """Return what the latest observer of a worker answers in time, nothing if none does."""
        observers = self._observers.get(key)
        if not observers:
            return b""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await observers[-1].ask(what)
        return b""

    async def close(self) -> None:
        """End every connection."""
        (await self._server).close()
        for observers in self._observers.values():
            for observer in observers:
                observer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        observer = Observer(reader, writer)
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                hello = await reader.readline()
        except (OSError, ValueError, TimeoutError):
            hello = b""
        token = hello.decode("ascii", "replace").strip()
        key = self._worker_of(token)
        if key is None or sum(map(len, self._observers.values())) >= CONNECTIONS_MAX:
            observer.close()
            return
        own = self._observers.setdefault(key, [])
        own.append(observer)
        if len(own) > OF_WORKER_MAX:
            own.pop(0).close()
        try:
            await observer.run()
        finally:
            if observer in own:
                own.remove(observer)
            if not own and self._observers.get(key) is own:
                del self._observers[key]
