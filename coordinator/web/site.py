"""Shell. The HTTP application: routes, access checks, and how errors are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from drumbeat.coordinator import errors
from drumbeat.coordinator.access.authentication import AUTHORIZATION, token_id_of
from drumbeat.coordinator.api.operations import BY_PATH, Operation
from drumbeat.coordinator.api.permissions import check_method
from drumbeat.coordinator.api.shares import Shares
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.core.registry.jobs import job_of
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.interceptor import set_caller
from drumbeat.coordinator.shell.transport.methods import Calls
from drumbeat.coordinator.web.access import Access, Known
from drumbeat.coordinator.web.calls import (
    WebCall,
    answer,
    error_answer,
    error_document,
    event,
)
from drumbeat.coordinator.web.connections import SECURITY, RateLimit, connection_of
from drumbeat.coordinator.web.files import File, Files
from drumbeat.text.format import one_line

log = structlog.get_logger()

Handle = Callable[[WebCall], Awaitable[object]]
# For sending the reason when a stream ends.
LAST_WORD_S = 0.5


class Route(NamedTuple):
    """One path of the API. A handler returns a document, or has answered the call itself."""

    path: str  # one in the table of operations
    handle: Handle
    needs_term: bool = True  # else a coordinator that does not lead answers as well

    @property
    def operation(self) -> Operation:
        """The method whose roles may call it."""
        return BY_PATH[self.path]

    @property
    def is_change(self) -> bool:
        """Whether it changes something, and takes POST alone."""
        return self.operation.service == "Control"


class Site:
    """Routes each request, checks who may make it, and answers it."""

    def __init__(
        self, access: Access, limits: Limits, routes: Iterable[Route], files: Files
    ) -> None:
        self._access, self._limits = access, limits
        self.coordinator: Server  # set before it serves
        self._calls, self._files = Calls(), files
        self._strangers = RateLimit(limits.http_strangers_per_s, limits.http_at_once_max)
        self._shares = Shares("http_connections", limits)
        self._of_tokens: dict[str, list[Calls]] = {}
        self.app = web.Application(middlewares=[self._answered_in_time, self._answered_in_words])
        router = self.app.router
        for path, file in files.by_path():
            router.add_get(path, partial(_serve_file, file))
        for path in ("/", "/runs/{rest:.*}"):
            router.add_get(path, self._serve_page)
        router.add_post("/api/enter", self._enter)
        for route in routes:
            for method in (hdrs.METH_POST,) if route.is_change else (hdrs.METH_GET, hdrs.METH_HEAD):
                router.add_route(method, route.path, partial(self._serve, route))

    def end(self, error: errors.CoordinatorError) -> None:
        """End all running and later calls with an error."""
        self._calls.end(error)

    def revoke(self, token_id: str) -> None:
        """End the running calls of a token and of the sessions opened with it."""
        for calls in self._of_tokens.get(token_id, ()):
            calls.end(errors.Unauthenticated(f"its token {token_id} was revoked"))

    @web.middleware
    async def _answered_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Rate-limit unknown callers, and close a connection that does not read its answer."""
        connection = connection_of(request)
        connection.expect(self._limits.http_answer_timeout_s)
        try:
            if connection.caller is None:
                await self._wait_for_turn()
            response = await handler(request)
            await response.prepare(request)
            await response.write_eof()
        finally:
            connection.expect(self._limits.http_request_timeout_s)
        return response

    @web.middleware
    async def _answered_in_words(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Answer errors with an error document."""
        try:
            self._access.check_host(request)
            return await handler(request)
        except ConnectionError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001 - it is logged where it is not expected
            is_page = "text/html" in request.headers.get(hdrs.ACCEPT, "")
            if isinstance(error, web.HTTPNotFound) and is_page and request.path[:5] != "/api/":
                return await self._serve_page(request)
            return error_answer(self._to_answer(request, error))

    async def _wait_for_turn(self) -> None:
        if delay_s := self._strangers.take(now=asyncio.get_running_loop().time()):
            try:
                await asyncio.sleep(delay_s)
            except asyncio.CancelledError:  # its client is gone
                self._strangers.give_back()
                raise

    async def _serve_page(self, request: web.Request) -> web.StreamResponse:
        """Answer with the page, whatever its view shows. Only a browser wants it of no path."""
        file, status = self._files.page(request.rel_url.raw_path, is_job="job" in request.query)
        return await _serve_file(file, request, status)

    async def _serve(self, route: Route, request: web.Request) -> web.StreamResponse:
        """Answer a call of the API."""
        call = WebCall(request, self._limits)
        try:
            made = await self._made(route, call)
        except Exception as error:
            if call.stream is None or isinstance(error, ConnectionError):
                raise
            await _end_stream(call, self._to_answer(request, error))
        else:
            if isinstance(made, web.StreamResponse):
                return made
        return answer(made) if call.stream is None else call.stream

    async def _made(self, route: Route, call: WebCall) -> object:
        """Return what the handler of a route makes, if the caller may call it."""
        call.known = known = self._access.known(call.request, self.coordinator)
        call.connection.caller = known.caller.name
        call.run_id = call.request.match_info.get("run_id", "")
        check_method(known.caller, route.operation.full_name)
        set_caller(known.caller)
        with self._held(known) as stack:
            if route.is_change:
                self._access.check_change(call.request, known)
            if route.needs_term:
                call.term = await self.coordinator.term_for(call)
                if call.run_id:
                    state = call.term.driver.journal.runs.find(call.run_id)
                    known.caller.check_run(call.run_id, job_of(state))
                stack.enter_context(call.term.services.calls.held())
            return await _within(known.within_s, route.handle(call))

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Exchange the code of a link for a session cookie."""
        call = WebCall(request, self._limits)
        self._access.check_origin(request)
        code = (await call.body()).get("code")
        if not isinstance(code, str):
            raise errors.InvalidRequest("code", "nothing", "the code of a link")
        await self.coordinator.term_for(call)  # only the leader accepts codes
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
    def _held(self, known: Known) -> Iterator[ExitStack]:
        """Count a call for its caller, and register it so that `end` and `revoke` can end it."""
        calls, of_token = Calls(), self._of_tokens.setdefault(known.token_id, [])
        of_token.append(calls)
        try:
            with ExitStack() as stack:
                for held in (self._shares.held(known.caller), self._calls.held(), calls.held()):
                    stack.enter_context(held)
                yield stack
        finally:
            of_token.remove(calls)
            if not of_token:
                self._of_tokens.pop(known.token_id, None)

    def _to_answer(self, request: web.Request, error: Exception) -> errors.CoordinatorError:
        """Return the error to answer; log it if it is unexpected, audit it if access is refused."""
        match error:
            case errors.CoordinatorError(status="UNAUTHENTICATED" | "PERMISSION_DENIED"):
                self._tell_refused(request, error)
                return error
            case errors.CoordinatorError():
                return error
            case web.HTTPMethodNotAllowed():
                allowed = " or ".join(sorted(error.allowed_methods))
                return errors.InvalidRequest("method", one_line(error.method, 16), allowed)
            case web.HTTPNotFound():
                return _NoPath(one_line(request.path, 256))
            case web.HTTPException():
                return errors.InvalidRequest(
                    "request", one_line(error.reason, 64), "one that is served"
                )
        log.error("request broken", path=one_line(request.path), exc_info=error)
        return errors.CoordinatorError("it failed; its log says why")

    def _tell_refused(self, request: web.Request, error: errors.CoordinatorError) -> None:
        peer = request.get_extra_info("peername") or ("unknown", 0)
        kind = "ipv6" if ":" in str(peer[0]) else "ipv4"
        shown = [(AUTHORIZATION, value) for value in request.headers.getall(hdrs.AUTHORIZATION, [])]
        method, token_id = one_line(f"{request.method} {request.path}", 128), token_id_of(shown)
        audit = self.coordinator.audit
        audit.refused(f"{kind}:{peer[0]}:{peer[1]}", error, method=method, token_id=token_id)


class _NoPath(errors.CoordinatorError):
    """There is no such path."""

    status, text = "NOT_FOUND", "nothing is served at {0}"


async def _within(within_s: float | None, made: Awaitable[object]) -> object:
    """Await a handler until the access of its caller expires."""
    try:
        async with asyncio.timeout(within_s) as limit:
            return await made
    except TimeoutError:
        if not limit.expired():
            raise
        raise errors.Unauthenticated("its time here is over") from None


async def _end_stream(call: WebCall, error: errors.CoordinatorError) -> None:
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await call.send(event("ended", error_document(error)))
    except TimeoutError:  # the client reads nothing
        call.connection.abort()


async def _serve_file(file: File, request: web.Request, status: int = 200) -> web.StreamResponse:
    headers = {**SECURITY, "Cache-Control": "no-cache", hdrs.ETAG: file.tag}
    if status == 200 and request.headers.get(hdrs.IF_NONE_MATCH) == file.tag:
        return web.Response(status=304, headers=headers)
    headers[hdrs.CONTENT_TYPE] = file.content_type
    return web.Response(body=file.content, status=status, headers=headers)
