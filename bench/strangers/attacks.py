"""What can be done to a coordinator by one who knows its port and nothing else.

Each attack is one function of a ``Door``: how many connections, and for how long they last.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bench.strangers import http2
from bench.strangers.http2 import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

CONNECTING_MAX = 100
# Of one connection that sends as fast as it can, between two looks at the clock.
BURST = 200
HEALTH = "/grpc.health.v1.Health/Check"
METHODS = ("/drumbeat.v1.AgentService/OpenSession", "/drumbeat.v1.QueryService/GetRun", HEALTH)
_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first of a client's TLS
_CLOSED = (OSError, asyncio.IncompleteReadError)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Door:
    """A coordinator's port, and whether TLS is spoken there."""

    port: int
    is_tls: bool = False
    host: str = "127.0.0.1"

    async def open(self, *, is_raw: bool = False) -> Connection:
        """Connect; with the handshake of TLS where there is one, unless ``is_raw``."""
        if not self.is_tls or is_raw:
            return await asyncio.open_connection(self.host, self.port)
        return await asyncio.open_connection(self.host, self.port, ssl=_trusting())


@cache
def _trusting() -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


@asynccontextmanager
async def crowd(
    door: Door, count: int, first: bytes = b"", *, is_raw: bool = False
) -> AsyncIterator[list[Connection]]:
    """Yield so many connections that have sent the same; those that are refused are left out."""
    connecting, opened = asyncio.Semaphore(CONNECTING_MAX), []

    async def enter() -> None:
        with suppress(*_CLOSED):
            async with connecting:
                opened.append(await door.open(is_raw=is_raw))
            opened[-1][1].write(first)

    try:
        await asyncio.gather(*(enter() for _ in range(count)))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()
        # The transports close in the next turns of the loop.
        await asyncio.gather(*(_gone(writer) for _, writer in opened))


async def _gone(writer: asyncio.StreamWriter) -> None:
    with suppress(*_CLOSED):
        await writer.wait_closed()


async def _flood(
    door: Door, connections: int, lasting_s: float, bursts: Callable[[], Iterable[bytes]]
) -> None:
    """Send bursts on each connection, as fast as they are taken."""

    async def send(connection: Connection) -> None:
        reader, writer = connection
        drained = asyncio.create_task(_drain(reader))
        with suppress(*_CLOSED, TimeoutError):
            async with asyncio.timeout(lasting_s):
                for burst in bursts():
                    writer.write(burst)
                    await writer.drain()
                    await asyncio.sleep(0)
        drained.cancel()
        await asyncio.gather(drained, return_exceptions=True)

    async with crowd(door, connections, http2.HELLO) as opened:
        await asyncio.gather(*map(send, opened))


async def _drain(reader: asyncio.StreamReader) -> None:
    with suppress(*_CLOSED):
        while await reader.read(65536):
            pass


async def silent(door: Door, count: int, lasting_s: float) -> None:
    """Connect, and say nothing."""
    async with crowd(door, count, is_raw=True):
        await asyncio.sleep(lasting_s)


async def silent_in_tls(door: Door, count: int, lasting_s: float) -> None:
    """Shake hands, and say nothing."""
    async with crowd(door, count):
        await asyncio.sleep(lasting_s)


async def slow(door: Door, count: int, lasting_s: float) -> None:
    """Send a handshake, a byte a second."""
    async with crowd(door, count, _HANDSHAKE if door.is_tls else b"PRI", is_raw=True) as opened:
        for _ in range(round(lasting_s)):
            for _, writer in opened:
                with suppress(*_CLOSED):
                    writer.write(b" ")
            await asyncio.sleep(1)


async def garbage(door: Door, count: int, lasting_s: float) -> None:
    """Send what means nothing."""
    until = time.monotonic() + lasting_s
    async with crowd(door, count, os.urandom(1000), is_raw=True) as opened:
        await asyncio.wait([asyncio.ensure_future(_drain(reader)) for reader, _ in opened])
    async with crowd(door, count // 10, os.urandom(1000)):
        await asyncio.sleep(until - time.monotonic())


async def http1(door: Door, count: int, lasting_s: float) -> None:
    """Ask as a browser does, with and without TLS."""
    request = b"GET / HTTP/1.1\r\nHost: head\r\n\r\n"
    async with crowd(door, count, request, is_raw=True), crowd(door, count // 10, request):
        await asyncio.sleep(lasting_s)


async def port_scan(door: Door, count: int, lasting_s: float) -> None:
    """Connect and leave, over and over."""
    until = time.monotonic() + lasting_s
    while time.monotonic() < until:
        async with crowd(door, count, is_raw=True):
            pass


async def oversize_frames(door: Door, count: int, lasting_s: float) -> None:
    """Announce 16 MB in one frame, and send them."""
    begun = http2.HELLO + b"\xff\xff\xff\x01\x04\0\0\0\x01"
    async with crowd(door, count, begun + b"x" * 65536):
        await asyncio.sleep(lasting_s)


async def endless_headers(door: Door, count: int, lasting_s: float) -> None:
    """Begin a call whose metadata do not end."""
    block = http2.field(b"x", b"y" * 1000) * 16
    more = http2.frame(Kind.CONTINUATION, block, stream=1)
    begun = http2.HELLO + http2.frame(Kind.HEADERS, b"", stream=1)
    async with crowd(door, count, begun + more * 20):
        await asyncio.sleep(lasting_s)


async def calls_without_message(door: Door, count: int, lasting_s: float) -> None:
    """Begin as many calls as there may be on each connection, and say nothing in them."""
    begun = (http2.call(METHODS[i % len(METHODS)], 2 * i + 1) for i in range(200))
    async with crowd(door, count, http2.HELLO + b"".join(begun)):
        await asyncio.sleep(lasting_s)


async def rapid_reset(door: Door, count: int, lasting_s: float) -> None:
    """Take calls back as soon as they are begun."""

    def bursts() -> Iterator[bytes]:
        for stream in range(1, 2**31, 2 * BURST):
            numbers = range(stream, stream + 2 * BURST, 2)
            yield b"".join(http2.call(METHODS[0], i) + http2.reset(i) for i in numbers)

    await _flood(door, min(count, 4), lasting_s, bursts)


async def frame_floods(door: Door, count: int, lasting_s: float) -> None:
    """Send frames that ask for an answer, or for nothing, as fast as they are taken."""
    frames: Sequence[bytes] = (
        http2.frame(Kind.PING, b"12345678"),
        http2.frame(Kind.SETTINGS, b"\0\4\0\1\0\0"),
        http2.frame(Kind.WINDOW_UPDATE, b"\0\0\0\1"),
        http2.frame(Kind.PRIORITY, b"\0" * 5, stream=1),
        http2.frame(Kind.UNKNOWN),
    )
    for each in frames:
        await _flood(door, min(count, 4), lasting_s / len(frames), partial(repeat, each * 1000))


async def calls_without_token(door: Door, count: int, lasting_s: float) -> None:
    """Make whole calls as fast as they are refused, with a token that looks like one."""
    until = time.monotonic() + lasting_s
    token = (b"authorization", b"Bearer drumbeat1.join.aaaaaaaa." + b"b" * 22 + b".-.00000000")

    async def trouble(connection: Connection) -> None:
        reader, writer = connection
        with suppress(*_CLOSED, TimeoutError):
            async with asyncio.timeout(lasting_s):
                for stream in range(1, 2**31, 100):
                    if time.monotonic() > until:
                        break
                    calls = (
                        http2.call(METHODS[0], i, token) for i in range(stream, stream + 100, 2)
                    )
                    writer.write(b"".join(calls))
                    await writer.drain()
                    await reader.read(65536)

    async with crowd(door, min(count, 20), http2.HELLO) as opened:
        await asyncio.gather(*map(trouble, opened))


Attack = Callable[[Door, int, float], Coroutine[Any, Any, None]]

ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        silent,
        silent_in_tls,
        slow,
        garbage,
        http1,
        port_scan,
        oversize_frames,
        endless_headers,
        calls_without_message,
        rapid_reset,
        frame_floods,
        calls_without_token,
    )
}
