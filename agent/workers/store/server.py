"""Shell. Stores that listen, one for each round or iteration this agent may lead.

They listen before any worker gets their address, so that none comes too early and waits to
try again, and stay until all have left the round: the end of rank 0 takes the store from none.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import structlog

from drumbeat.agent.workers.ports import Ports
from drumbeat.agent.workers.store.budget import Budget
from drumbeat.agent.workers.store.commands import CommandError, CommandReader
from drumbeat.agent.workers.store.table import StoreTable

log = structlog.get_logger()

BACKLOG = 4_096
# Of a rank there are a few: one for each of its process groups.
OPEN_FILES_WANTED = 65_536
# Lines of a store's log on clients that it lets go: a scan of ports must not fill it.
TOLD_MAX = 20
# For all else that an agent has open.
OPEN_FILES_RESERVED = 256


def raise_open_files() -> None:
    """Make room for clients. Workers keep the limit they had: their parent runs already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def clients_max() -> int:
    """Return how many clients a store takes, within the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft - OPEN_FILES_RESERVED


class Stores(Ports):
    """Listening stores by port. Belongs to the event loop it is used in.

    ``loopback`` is the only address at which they listen; empty: at all of this host. Ports are
    of ``allowed`` if that is given.
    """

    def __init__(self, loopback: str = "", allowed: range | None = None) -> None:
        super().__init__(allowed, loopback)
        self._numbers, self._budget = count(), Budget()
        self._budget.let_go = self._let_go

    def _hold(self, bound: socket.socket) -> Store:
        bound.setblocking(False)
        bound.listen(BACKLOG)
        return Store(bound, self._budget, self._numbers)

    def _let_go(self, number: int) -> None:
        """Let the client go that holds most, with all that it holds."""
        for store in self._held.values():
            store.drop(number)


class Store:
    """One store and its clients, in one event loop."""

    def __init__(self, listener: socket.socket, budget: Budget, numbers: Iterator[int]) -> None:
        self.budget = budget
        self._table = StoreTable(budget)
        self._clients: dict[int, Client] = {}
        self._numbers = numbers
        self._warnings = count()
        self._serving = asyncio.ensure_future(self._serve(listener))
        # After the server, which has it in the loop; and if that has never begun.
        self._serving.add_done_callback(lambda _: listener.close())

    def close(self) -> None:
        """End; its clients have their connections reset."""
        self._serving.cancel()
        for client in [*self._clients.values()]:
            client.end()
        for number in self._table.holders():
            self.budget.forget(number)

    def admit(self, client: Client) -> int | None:
        """Return the number of a new client, None if there are too many."""
        if not self._clients:
            raise_open_files()
        if len(self._clients) >= clients_max():
            self.tell("a store has too many clients", clients=len(self._clients))
            return None
        number = next(self._numbers)
        self._clients[number] = client
        self.budget.met(len(self._clients))
        return number

    def handle(self, number: int, data: bytes, reader: CommandReader) -> None:
        """Do what a client says."""
        for command in reader.feed(data):
            if number not in self._clients:
                return
            for client, answer in self._table.handle(number, command):
                if client in self._clients:  # it may have gone by the answer before
                    self._clients[client].send(answer)

    def drop(self, number: int) -> None:
        """Let a client go, or one that has gone, and all that it made the store hold."""
        if (client := self._clients.get(number)) is not None:
            self.tell("a store let the client go that held most", limit=self.budget.limit)
            client.end()
        self._table.drop(number)

    def tell(self, what: str, **more: object) -> None:
        """Log what is wrong with a client, of the first ones that it is of."""
        if next(self._warnings) < TOLD_MAX:
            log.warning(what, **more)

    def forget(self, number: int) -> None:
        """Take note that a client has gone."""
        if self._clients.pop(number, None) is not None:
            self._table.leave(number)

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Client(self), sock=listener, backlog=BACKLOG)
        async with server:
            await server.serve_forever()


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = CommandReader()
        self._number: int | None = None
        self._counted = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it in, if there is room."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # it is called when all was read
        self._number = self._store.admit(self)
        if self._number is None:
            self.end()

    def data_received(self, data: bytes) -> None:
        """Do what is said."""
        if self._number is None:
            return
        try:
            self._store.handle(self._number, data, self._reader)
            self._count()
        except CommandError as error:
            self._store.tell("store client disconnected", reason=str(error))
            self.end()

    def connection_lost(self, _error: Exception | None) -> None:
        """Let it go."""
        self.end()

    def resume_writing(self) -> None:
        """Take note that it has read everything."""
        self._count()

    def send(self, data: bytes) -> None:
        """Answer. What a client does not read counts."""
        assert self._transport is not None, "an answer before a question"
        if self._transport.is_closing():
            return  # it has gone, which is reported later
        self._transport.write(data)
        try:
            self._count()
        except CommandError as error:
            self._store.tell("store client disconnected", reason=str(error))
            self.end()

    def _count(self) -> None:
        """Count what it leaves unread and unfinished. Raises ``CommandError``."""
        if self._number is None or self._transport is None:
            return
        held = self._reader.held + self._transport.get_write_buffer_size()
        if held > self._counted:
            self._store.budget.hold(self._number, held - self._counted)
        else:
            self._store.budget.release(self._number, self._counted - held)
        self._counted = held

    def end(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()
        if self._number is not None:
            self._store.budget.release(self._number, self._counted)
            self._store.forget(self._number)
            self._number = None
            self._reader.close()
