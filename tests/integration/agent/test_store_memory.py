"""What strangers can make an agent hold through its stores, measured as memory of a process."""

from __future__ import annotations

import asyncio
import re
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drumbeat.agent.workers.store.commands import MAGIC, TEXT_BYTES_MAX, Op
from tests.support.cluster import DEADLINE_S, ROOT

HELLO = struct.pack("<BI", Op.VALIDATE, MAGIC)
PING, PONG = struct.pack("<BI", Op.PING, 5), struct.pack("<I", 5)
STRANGERS, MEMORY_MAX = 24, 100_000_000
LARGE = b"x" * TEXT_BYTES_MAX

SERVE = """
import asyncio, sys
from drumbeat.agent.workers.store.server import Stores
async def main():
    stores = Stores()
    print(stores.reserve(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stores.keep_only()
asyncio.run(main())
"""


def size(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: bytes) -> bytes:
    return size(len(value)) + value


def set_of(key: bytes, value: bytes) -> bytes:
    return bytes([Op.SET]) + text(key) + text(value)


class Client:
    """A connection to a store."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1))
        client.writer.write(HELLO)
        await client.ping()
        return client

    async def ping(self) -> None:
        self.writer.write(PING)
        assert await self.reader.readexactly(len(PONG)) == PONG

    async def say(self, *parts: bytes) -> None:
        """Say as much as is taken; one that was let go says no more."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):  # of answers that are not read it takes no more
                for part in parts:
                    self.writer.write(part)
                    await self.writer.drain()

    async def check_work(self, key: bytes) -> None:
        """Do what a worker does."""
        self.writer.write(set_of(key, b"worker") + bytes([Op.GET]) + text(key))
        assert await self.reader.readexactly(8 + 6) == text(b"worker")


async def leave_a_message_unfinished(client: Client, _: int) -> None:
    await client.say(bytes([Op.MULTI_SET]) + size(8), *[text(LARGE)] * 7)


async def set_values(client: Client, number: int) -> None:
    for each in range(4):
        await client.say(set_of(b"%d/%d" % (number, each), LARGE))


async def hold_many_small_things(client: Client, number: int) -> None:
    """Values, values in queues, keys that are waited for, parts of a message: each of some."""
    keys = [b"%d/%d" % (number, each) for each in range(30_000)]
    match number % 4:
        case 0:
            await client.say(b"".join(set_of(key, b"v") for key in keys))
        case 1:
            await client.say(b"".join(bytes([Op.QUEUE_PUSH]) + text(b"q") + text(k) for k in keys))
        case 2:
            await client.say(bytes([Op.WAIT]) + size(len(keys)) + b"".join(map(text, keys)))
        case _:
            await client.say(bytes([Op.WAIT]) + size(len(keys) + 1) + b"".join(map(text, keys)))


async def leave_replies_unread(client: Client, _: int) -> None:
    await client.say(set_of(b"large", LARGE))
    await client.say((bytes([Op.GET]) + text(b"large")) * 50)


async def ask_for_all_at_once(client: Client, _: int) -> None:
    await client.say(set_of(b"large", LARGE))
    await client.say(bytes([Op.MULTI_GET]) + size(30) + text(b"large") * 30)


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Serve a store in a process of its own; yields its port and pid."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()


def memory_at_most(pid: int) -> int:
    """The most that a process has had in memory, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        leave_a_message_unfinished,
        set_values,
        hold_many_small_things,
        leave_replies_unread,
        ask_for_all_at_once,
    ],
)
async def test_strangers_cost_an_agent_little_memory_and_no_worker_its_store(
    attack: Callable[[Client, int], Awaitable[None]],
) -> None:
    with serving() as (port, pid):
        async with asyncio.timeout(4 * DEADLINE_S):
            worker = await Client.connect(port)
            await worker.check_work(b"before")
            before = memory_at_most(pid)
            strangers = [await Client.connect(port) for _ in range(STRANGERS)]
            await asyncio.gather(
                *(attack(*each) for each in zip(strangers, range(STRANGERS), strict=True))
            )
            await worker.check_work(b"after")
            worker.writer.write(bytes([Op.GET]) + text(b"before"))
            assert await worker.reader.readexactly(8 + 6) == text(b"worker")
            cost = memory_at_most(pid) - before
        for client in (worker, *strangers):
            client.writer.transport.abort()
        assert cost < MEMORY_MAX
