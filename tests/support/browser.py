"""Debian's Chromium, headless, and pages in it that fail a test by whatever goes wrong in them."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, Response

CHROMIUM = shutil.which("chromium")
DEADLINE_S = 15_000 * MS
"""For whatever a page is to show; far longer than anything here takes."""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium, which `make test-programs` installs on Debian"
)

_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LOOKS = Path(__file__).with_name("looks.js").read_text().rstrip("\n")
_OWN_SCHEMES = ("data", "blob", "about")
"""Of requests that reach no network."""


class Faults:
    """What went wrong in the pages of one visit: what they logged, raised, failed to fetch."""

    def __init__(self, origin: str, errors: str = "") -> None:
        self._origin = origin
        self._allowed = [re.compile(errors)] if errors else []
        self.seen: list[str] = []
        self.forgiven: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        """Listen to all pages of a context."""
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._add(f"error: {error.error}"))
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failed)
        context.on("response", self._on_response)

    @contextmanager
    def allowed(self, pattern: str) -> Iterator[None]:
        """Forgive faults that match anywhere: a test that breaks something sees it reported."""
        self._allowed.append(re.compile(pattern))
        yield
        self._allowed.pop()

    def _add(self, fault: str) -> None:
        is_allowed = any(pattern.search(fault) for pattern in self._allowed)
        (self.forgiven if is_allowed else self.seen).append(fault)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self._add(f"console {message.type}: {message.text} at {message.location['url']}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in _OWN_SCHEMES and f"{parts.scheme}://{parts.netloc}" != self._origin:
            self._add(f"request to another host: {request.url}")

    def _on_failed(self, request: Request) -> None:
        # A page that is left, or a stream that it closes, ends what is under way.
        if request.failure != "net::ERR_ABORTED":
            self._add(f"request failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._add(f"answer {response.status}: {response.request.method} {response.url}")


class Visit:
    """One visitor with a profile of their own: a tab, perhaps more, and what went wrong in them."""

    def __init__(self, context: BrowserContext, page: Page, faults: Faults) -> None:
        self.context = context
        self.page = page
        self.faults = faults

    async def look(self, function: str) -> Any:
        """Return what one of the functions of ``looks.js`` finds."""
        return await self.page.evaluate(f"{_LOOKS}.{function}()")


class Browser:
    """One Chromium; an asynchronous context manager of the loop that all its tests run in."""

    async def __aenter__(self) -> Self:
        # Here, so that only a process that runs such tests has to load it.
        from playwright.async_api import async_playwright, expect

        expect.set_options(timeout=DEADLINE_S * 1000)
        assert CHROMIUM is not None, "skipped without it"
        self._driver = await async_playwright().start()
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        self._chromium = await self._driver.chromium.launch(
            executable_path=CHROMIUM, args=[*_ARGUMENTS, *sandbox]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._chromium.close()
        await self._driver.stop()

    @asynccontextmanager
    async def visit(self, url: str, errors: str = "", **looks: Any) -> AsyncIterator[Visit]:
        """Open ``url`` in a profile of its own; at the end fail by whatever went wrong there.

        Args:
            url: Of the page; it may ask for nothing of another origin.
            errors: A pattern of what goes wrong all the while, as the test wants it.
            looks: As ``Browser.new_context`` has them: ``viewport``, ``color_scheme``.
        """
        parts = urlsplit(url)
        faults = Faults(f"{parts.scheme}://{parts.netloc}", errors)
        # The coordinator's certificate is of its own authority, which no browser knows.
        context = await self._chromium.new_context(
            ignore_https_errors=True, reduced_motion="reduce", **looks
        )
        try:
            context.set_default_timeout(DEADLINE_S * 1000)
            faults.watch(context)
            page = await context.new_page()
            await page.goto(url)
            yield Visit(context, page, faults)
        finally:
            await context.close()
        assert not faults.seen, "\n".join(faults.seen)
