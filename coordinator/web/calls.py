"""Shell. One call over HTTP: what it asks for, who makes it, and how it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import hdrs, web

from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CoordinatorError, InvalidRequest
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.web.access import Known
from drumbeat.coordinator.web.connections import DATA, Connection, connection_of
from drumbeat.coordinator.wire.stack_groups import parse_ranks
from drumbeat.text.format import one_line

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
# The statuses of HTTP for those of gRPC; any other is 500.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}
_NUMBER_DIGITS_MAX = 12
# After so long without anything to say a stream says nothing: so the reader knows that it is there.
SILENCE_MAX_S = 15.0
SILENCE = b":\n\n"
# When a browser connects again of itself.
_RETRY = b"retry: 1000\n\n"


class WebCall:
    """One call. To services it is what gRPC's context is to them."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self.request, self._limits = request, limits
        self.known: Known
        self.term: Term
        self.run_id = ""
        self.stream: web.StreamResponse | None = None
        self._sending = asyncio.Lock()

    @property
    def connection(self) -> Connection:
        """The connection on which it came."""
        return connection_of(self.request)

    @property
    def is_head(self) -> bool:
        """Whether it asks for no more than how it would be answered."""
        return self.request.method == hdrs.METH_HEAD

    def invocation_metadata(self) -> tuple[()]:
        """Return what gRPC's callers say beside their message."""
        return ()

    def number(self, name: str, default: int = 0) -> int:
        """Return a whole number of the query. Raises ``InvalidRequest``."""
        text = self.request.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS_MAX):
            raise InvalidRequest(name, one_line(text), "a whole number")
        return int(text)

    def ranks(self, most: int) -> tuple[int, ...]:
        """Return the ranks of the query, empty for all. Raises ``InvalidRequest``."""
        text = self.request.query.get("ranks", "")
        try:
            return parse_ranks(text, most) if text else ()
        except ValueError:
            allowed = f"ranks and ranges of them, {most} at most, e.g. 17 or 0,8-15"
            raise InvalidRequest("ranks", one_line(text, 64), allowed) from None

    @property
    def generation(self) -> int:
        """Which of the runs of the id; 0: the latest."""
        return self.number("generation")

    def find_run(self) -> tuple[RunState, IsolatedRun | None]:
        """Return the run that is asked for. Raises ``UnknownRun`` or ``Unavailable``."""
        return self.term.queries.find(self.run_id, self.generation)

    async def body(self) -> dict[str, Any]:
        """Return the JSON object that it brings. Raises ``InvalidRequest``."""
        if self.request.content_type != JSON:
            raise InvalidRequest("Content-Type", one_line(self.request.content_type), JSON)
        most = self._limits.http_body_bytes_max
        try:
            async with asyncio.timeout(self._limits.http_request_timeout_s):
                await self.request.content.readexactly(most + 1)
            raise InvalidRequest("body", f"more than {most} bytes", f"{most} at most")
        except TimeoutError:
            raise InvalidRequest("body", "a part", "all of it in time") from None
        except asyncio.IncompleteReadError as whole:
            content = whole.partial
        try:
            document = msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("body", "something else", "one object of JSON") from None
        return document

    async def open_stream(self) -> None:
        """Begin to answer with events."""
        headers = {**DATA, hdrs.CONTENT_TYPE: EVENT_STREAM, "X-Accel-Buffering": "no"}
        self.stream = web.StreamResponse(headers=headers)
        await self.stream.prepare(self.request)
        self.connection.expect(None)  # each part has its time
        if not self.is_head:
            await self.send(_RETRY)

    async def send(self, part: bytes) -> None:
        """Send a part of a stream, once the reader has taken what came before."""
        assert self.stream is not None, "it is open"
        async with self._sending:
            self.connection.expect(self._limits.page_send_timeout_s)
            await self.stream.write(part)
            self.connection.expect(None)

    async def keep_open(self) -> None:
        """Have the reader know that the stream is there, until cancelled."""
        while True:
            await asyncio.sleep(SILENCE_MAX_S)
            await self.send(SILENCE)


def event(kind: str, data: object, number: str = "") -> bytes:
    """Return one event of a stream."""
    about = f"id: {number}\n" if number else ""
    return f"event: {kind}\n{about}data: ".encode() + msgspec.json.encode(data) + b"\n\n"


def answer(data: object, status: int = 200, headers: Mapping[str, str] = DATA) -> web.Response:
    """Return data as the answer of a call."""
    body = msgspec.json.encode(data)
    return web.Response(body=body, status=status, headers=headers, content_type=JSON)


def error_document(error: CoordinatorError) -> dict[str, Any]:
    """Return what is told of an error."""
    hint = getattr(error, "hint", "") or _HINTS.get(error.status, "")
    return {"error": {"status": error.status, "reason": str(error), "hint": hint}}


def error_answer(error: CoordinatorError) -> web.Response:
    """Return an error as the answer of a call: the one place where it becomes a status."""
    status = STATUSES.get(error.status, 500)
    headers = {**DATA, "WWW-Authenticate": "Bearer"} if status == 401 else DATA
    return answer(error_document(error), status, headers)


_HINTS = {
    "UNAUTHENTICATED": "`coordinator page` prints another link",
    "PERMISSION_DENIED": "`coordinator page --role admin` prints a link that allows more",
}
