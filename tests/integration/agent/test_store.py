"""Stores that listen, as clients of torch's find them."""

import asyncio
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psutil
import pytest

from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.store import budget, server
from drumbeat.agent.workers.store.commands import MAGIC, Op
from drumbeat.agent.workers.store.server import Stores
from tests.support.cluster import ROOT
from tests.support.waiting import wait_until

HELLO = struct.pack("<BI", Op.VALIDATE, MAGIC)
PING = struct.pack("<BI", Op.PING, 5)
PONG = struct.pack("<I", 5)

SERVE = """
import asyncio, sys
from torch.distributed import TCPStore
from drumbeat.agent.workers.store.server import Stores
async def main():
    stores = Stores()
    own = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    print(own.port, stores.reserve(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stores.keep_only()
asyncio.run(main())
"""


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    made = Stores()
    yield made
    made.keep_only()
    await asyncio.sleep(0)


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    return reader, writer


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionResetError:
        return True


async def test_a_store_listens_once_it_is_reserved_and_no_longer_than_it_is_kept(
    stores: Stores,
) -> None:
    kept, gone = stores.reserve(), stores.reserve()
    for port in (kept, gone):
        reader, writer = await connect(port)
        writer.write(PING)
        assert await reader.readexactly(4) == PONG
        if port == gone:
            stores.keep_only(frozenset({kept}))
            assert await is_reset(reader)
        writer.transport.abort()
    with pytest.raises(OSError, match=r"refused|failed"):
        await connect(gone)


async def test_who_speaks_otherwise_loses_the_connection_alone(stores: Stores) -> None:
    port = stores.reserve()
    reader, writer = await connect(port)
    stranger, speaking = await asyncio.open_connection("::1", port)
    speaking.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await is_reset(stranger)
    writer.write(PING)
    assert await reader.readexactly(4) == PONG
    for each in (writer, speaking):
        each.transport.abort()


async def test_clients_have_a_bound_and_so_has_what_they_do_not_read(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "clients_max", lambda: 1)
    monkeypatch.setattr(budget, "LEAST_BYTES", 2**22)
    port = stores.reserve()
    reader, writer = await connect(port)
    writer.write(PING)
    assert await reader.readexactly(4) == PONG
    one_more, other = await connect(port)
    assert await is_reset(one_more)
    key, value = struct.pack("<Q", 1) + b"k", b"v" * 2**20
    writer.write(bytes([Op.SET]) + key + struct.pack("<Q", len(value)) + value)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write((bytes([Op.GET]) + key) * 100)
    await wait_until(lambda: not stores._held[port]._clients, 10)
    for each in (writer, other):
        each.transport.abort()


async def test_who_has_gone_amid_answers_costs_no_line_and_others_few(
    stores: Stores, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(server.log, "warning", lambda what, **_: told.append(what))
    port = stores.reserve()
    reader, writer = await connect(port)
    writer.write(PING)
    assert await reader.readexactly(4) == PONG
    [client] = stores._held[port]._clients.values()
    assert client._transport is not None
    client._transport.abort()  # as a failed answer does, before it is told
    for _ in range(10):
        client.send(PONG)
    for _ in range(2 * server.TOLD_MAX):
        stranger, speaking = await asyncio.open_connection("127.0.0.1", port)
        speaking.write(b"GET / HTTP/1.1")
        assert await is_reset(stranger)
        speaking.transport.abort()
    assert "socket.send()" not in caplog.text
    assert len(told) == server.TOLD_MAX
    writer.transport.abort()


@contextmanager
def both() -> Iterator[tuple[Any, Any]]:
    """A client of torch's own store, and one of ours.

    Both are in a process of their own: a client in ``list_keys`` lets no other thread run.
    """
    torch = pytest.importorskip("torch.distributed")
    how = {"timeout": timedelta(seconds=5), "wait_for_workers": False}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=-1, stdout=-1, text=True, cwd=ROOT
    ) as serving:
        assert serving.stdout is not None
        assert serving.stdin is not None
        own, ours = map(int, serving.stdout.readline().split())
        yield tuple(torch.TCPStore("127.0.0.1", port, 2, False, **how) for port in (own, ours))
        serving.stdin.close()


def some_call(rng: random.Random) -> tuple[str, Callable[[Any], Any]]:
    """A call of any method with a few keys, that does not wait for long."""
    key, keys = rng.choice("abcd"), rng.choices("abcd", k=rng.randrange(1, 4))
    value = rng.choice(["", "1", "x", "y" * 500])
    change, size, soon = rng.randrange(-9, 99), rng.randrange(1, 4), timedelta(milliseconds=5)
    return rng.choice(
        [
            ("set", lambda store: store.set(key, value)),
            ("compare_set", lambda store: store.compare_set(key, value, "1")),
            ("check", lambda store: store.check(keys)),
            ("add", lambda store: store.add(f"n{key}", change)),
            ("delete_key", lambda store: store.delete_key(key)),
            ("append", lambda store: store.append(key, value)),
            ("wait", lambda store: store.wait(keys, soon)),
            ("multi_set", lambda store: store.multi_set(keys, [value] * len(keys))),
            ("multi_get", lambda store: store.check(keys) and store.multi_get(keys)),
            ("num_keys", lambda store: (store.num_keys(), sorted(store.list_keys()))),
            ("queue_push", lambda store: store.queue_push(f"q{key}", value)),
            ("queue_pop", lambda store: store.queue_pop(f"q{key}", block=False)),
            ("queue_len", lambda store: store.queue_len(f"q{key}")),
            ("barrier", lambda store: store.barrier(f"b{key}", size, soon)),
        ]
    )


def outcome(call: Callable[[Any], Any], store: Any) -> object:
    try:
        return call(store)
    except Exception as error:  # noqa: BLE001 - the kind is compared
        return type(error).__name__


@pytest.mark.slow
@pytest.mark.torch
def test_it_answers_as_torchs_own_store() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with both() as (own, ours):
        for _ in range(400):
            name, call = some_call(rng)
            assert outcome(call, ours) == outcome(call, own), (seed, name)


def listening_at(port: int) -> set[str]:
    """Return the addresses at which this process listens at a port."""
    this = psutil.Process()
    # Of psutil before 6, where it has another name.
    listed = this.net_connections if hasattr(this, "net_connections") else this.connections
    found = (each for each in listed("tcp") if each.status == psutil.CONN_LISTEN)
    return {each.laddr.ip for each in found if each.laddr.port == port}


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "127.0.0.1"),  # standalone
        ({"master_addr": "10.0.0.1"}, ""),
        ({"coordinator": "head"}, ""),
        ({"coordinator": "head", "master_addr": "127.0.0.1"}, "127.0.0.1"),
        ({"coordinator": "head", "master_addr": "::1"}, "::1"),
        ({"coordinator": "head", "master_addr": "head"}, ""),
        ({"coordinator": "head", "local_addr": "127.0.0.1"}, "127.0.0.1"),
    ],
)
async def test_the_store_of_a_loopback_master_address_listens_there_alone(
    given: dict[str, Any], address: str
) -> None:
    config = AgentConfig(run_id="r", program=Program("program", "true"), **given)
    assert config.store_loopback == address
    made = Stores(config.store_loopback)
    try:
        port = made.reserve()
        _, writer = await asyncio.open_connection(address or "127.0.0.1", port)
        writer.transport.abort()
        if address:  # elsewhere, another process may listen at a port of this number
            assert listening_at(port) == {address}
    finally:
        made.keep_only()
