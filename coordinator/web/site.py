"""Shell. All that is served over HTTP: which caller may have what, and where it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import structlog
from aiohttp import hdrs, web

from drumbeat.coordinator.access.authentication import AUTHORIZATION, token_id_of
from drumbeat.coordinator.api.shares import Shares
from drumbeat.coordinator.errors import (
    CoordinatorError,
    InvalidRequest,
    Unauthenticated,
)
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.interceptor import set_caller
from drumbeat.coordinator.shell.transport.methods import Calls
from drumbeat.coordinator.web.access import Access, Coordinator, Known
from drumbeat.coordinator.web.calls import (
    Call,
    answer,
    error_answer,
    error_document,
    event,
)
from drumbeat.coordinator.web.connections import SECURITY
from drumbeat.coordinator.web.files import File, Files
from drumbeat.coordinator.web.pace import Pace
from drumbeat.format import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

Handle = Callable[[Call], Awaitable[object]]
# For a reader to take why its stream ends.
LAST_WORD_S = 0.5
RUN = "*"  # stands for a run in the path of a route


class Route(NamedTuple):
    """One path of the API. A handler returns a document, or has answered the call itself."""

    path: str
    rpc: str  # whose roles may call it
    handle: Handle
    is_change: bool = False
    needs_term: bool = True  # else a coordinator that does not lead answers as well


class Site:
    """Answers every request."""

    def __init__(
        self, access: Access, limits: Limits, routes: Sequence[Route], files: Files
    ) -> None:
        self._access, self._limits, self._files = access, limits, files
        self._routes = {tuple(route.path.split("/")[1:]): route for route in routes}
        self.coordinator: Coordinator  # once it serves
        self._calls = Calls()
        self._strangers = Pace(limits.http_strangers_per_s, limits.http_at_once_max)
        self._shares = Shares("http_connections", limits)
        self._of_tokens: dict[str, list[Calls]] = {}

    def end(self, error: CoordinatorError) -> None:
        """End all calls, and those that come, with an error."""
        self._calls.end(error)

    def revoke(self, token_id: str) -> None:
        """End what a token, or a cookie that it led to, has under way."""
        for calls in self._of_tokens.get(token_id, ()):
            calls.end(Unauthenticated(f"its token {token_id} was revoked"))

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, and have the answer sent."""
        call = Call(request, self._limits)
        call.connection.expect(self._limits.http_answer_timeout_s)
        try:
            if call.connection.caller is None:
                await self._wait_for_turn()
            response = await self._answered(call)
            await response.prepare(request)
            await response.write_eof()
        finally:
            call.connection.expect(self._limits.http_request_timeout_s)
        return response

    async def _answered(self, call: Call) -> web.StreamResponse:
        try:
            self._access.check_host(call.request)
            if (file := self._file(call.request)) is not None:
                return _of_file(call.request, file)
            return await self._served(call)
        except CoordinatorError as error:
            if error.status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                self._tell_refused(call.request, error)
            return await _failed(call, error)
        except ConnectionError:  # who asked is gone
            raise
        except Exception:
            log.exception("request broken", path=one_line(call.request.path))
            return await _failed(call, CoordinatorError("it failed; its log says why"))

    async def _wait_for_turn(self) -> None:
        if delay_s := self._strangers.take(now=asyncio.get_running_loop().time()):
            try:
                await asyncio.sleep(delay_s)
            except asyncio.CancelledError:  # its client is gone
                self._strangers.give_back()
                raise

    def _file(self, request: web.BaseRequest) -> File | None:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return None
        return self._files.find(request.rel_url.raw_path)

    async def _served(self, call: Call) -> web.StreamResponse:
        request = call.request
        parts = tuple(map(unquote, request.rel_url.raw_path.split("/")[1:]))
        if parts == ("api", "enter"):
            return await self._enter(call)
        call.known = known = self._access.known(request, self.coordinator)
        call.connection.caller = known.caller.name
        route = self._found(call, parts)
        known.caller.check_method(f"/drumbeat.v1.{route.rpc}")
        if call.run_id:
            known.caller.check_run(call.run_id)
        set_caller(known.caller)
        with self._held(known):
            if route.is_change:
                self._access.check_change(request, known)
            with ExitStack() as stack:
                if route.needs_term:
                    call.term = await self.coordinator.term_for(call)
                    stack.enter_context(call.term.services.calls.held())
                made = await _within(known.within_s, route.handle(call))
        if isinstance(made, web.StreamResponse):
            return made
        if call.stream is not None:
            return call.stream
        return answer(made)

    def _found(self, call: Call, parts: tuple[str, ...]) -> Route:
        """Return what is asked for. Raises ``InvalidRequest``."""
        if len(parts) > 2 and parts[:2] == ("api", "runs"):
            call.run_id, parts = parts[2], ("api", "runs", RUN, *parts[3:])
        route = self._routes.get(parts)
        method = call.request.method
        if route is None:
            raise _NoPath(one_line(call.request.path, 256))
        allowed = ("POST",) if route.is_change else ("GET", "HEAD")
        if method not in allowed:
            raise InvalidRequest("method", one_line(method, 16), " or ".join(allowed))
        return route

    async def _enter(self, call: Call) -> web.StreamResponse:
        """Let a browser in that brings a code."""
        request = call.request
        if request.method != hdrs.METH_POST:
            raise InvalidRequest("method", one_line(request.method, 16), "POST")
        self._access.check_origin(request)
        code = (await call.body()).get("code")
        if not isinstance(code, str):
            raise InvalidRequest("code", "nothing", "the code of a link")
        await self.coordinator.term_for(call)  # another coordinator has no use for it
        text, known = self._access.enter(code, self.coordinator)
        about = {"role": str(known.caller.role), "token.id": known.token_id}
        log.info("page opened", caller=known.caller.name, **about)
        response = answer({"name": known.caller.name, "role": known.caller.role})
        response.set_cookie(
            self._access.cookie,
            text,
            path="/",
            max_age=round(self._limits.page_session_life_s),
            secure=True,
            httponly=True,
            samesite="Strict",
        )
        return response

    @contextmanager
    def _held(self, known: Known) -> Iterator[None]:
        """Count a call among those of its token, which may end together."""
        calls, of_token = Calls(), self._of_tokens.setdefault(known.token_id, [])
        of_token.append(calls)
        try:
            with ExitStack() as stack:
                stack.enter_context(self._shares.held(known.caller))
                stack.enter_context(self._calls.held())
                stack.enter_context(calls.held())
                yield
        finally:
            of_token.remove(calls)
            if not of_token:
                self._of_tokens.pop(known.token_id, None)

    def _tell_refused(self, request: web.BaseRequest, error: CoordinatorError) -> None:
        peer = request.get_extra_info("peername") or ("unknown", 0)
        kind = "ipv6" if ":" in str(peer[0]) else "ipv4"
        shown = [(AUTHORIZATION, value) for value in request.headers.getall(hdrs.AUTHORIZATION, [])]
        method, token_id = one_line(f"{request.method} {request.path}", 128), token_id_of(shown)
        audit = self.coordinator.audit
        audit.refused(f"{kind}:{peer[0]}:{peer[1]}", error, method=method, token_id=token_id)


class _NoPath(CoordinatorError):
    """Nothing is served at a path."""

    status, text = "NOT_FOUND", "nothing is served at {0}"


async def _within(within_s: float | None, made: Awaitable[object]) -> object:
    """Return what is made, unless its caller is not let in any more meanwhile."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await made
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unauthenticated("its time here is over") from None


async def _failed(call: Call, error: CoordinatorError) -> web.StreamResponse:
    if call.stream is None:
        return error_answer(error)
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await call.send(event("ended", error_document(error)))
    except TimeoutError:  # it takes nothing
        call.connection.abort()
    return call.stream


def _of_file(request: web.BaseRequest, file: File) -> web.StreamResponse:
    headers = {**SECURITY, "Cache-Control": "no-cache", hdrs.ETAG: file.tag}
    if request.headers.get(hdrs.IF_NONE_MATCH) == file.tag:
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=file.content, headers={**headers, hdrs.CONTENT_TYPE: file.content_type}
    )
