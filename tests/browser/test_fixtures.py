"""A page that does something wrong fails its test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from tests.support.browser import DEADLINE_S, Browser, needs_chromium
from tests.support.waiting import wait_until

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAGE = """<!doctype html><title>t</title><link rel="icon" href="data:,">
<h1>here</h1><script>{}</script>"""


@pytest_asyncio.fixture(loop_scope="session")
async def origin() -> AsyncIterator[str]:
    """Serve a page whose script is the query of its address."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE.format(request.query_string), content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site.name
    await runner.cleanup()


FAULTS = {
    "console.error('oh');": "console error: oh",
    "setTimeout(() => nothing());": "error: nothing is not defined",
    "fetch('/missing');": "answer 404: GET http://127.0.0.1",
    "fetch('https://other.invalid/');": "request to another host: https://other.invalid/",
}


async def see_them(browser: Browser, url: str) -> None:
    async with browser.visit(url) as visit:
        assert await visit.page.inner_text("h1") == "here"
        told = visit.faults.seen
        await wait_until(
            lambda: all(any(fault in each for each in told) for fault in FAULTS.values()),
            DEADLINE_S,
            lambda: told,
        )


async def test_whatever_goes_wrong_in_a_page_fails_the_test(browser: Browser, origin: str) -> None:
    with pytest.raises(AssertionError) as raised:
        await see_them(browser, f"{origin}?{''.join(FAULTS)}")
    shown = str(raised.value)
    assert "not within" not in shown
    assert [fault for fault in FAULTS.values() if fault not in shown] == []


async def test_what_is_expected_to_go_wrong_is_forgiven(browser: Browser, origin: str) -> None:
    async with browser.visit(origin) as visit:
        with visit.faults.allowed("404"):
            await visit.page.evaluate("fetch('/missing')")
        assert visit.faults.forgiven


async def test_what_cannot_be_read_named_or_reached_is_listed(
    browser: Browser, origin: str
) -> None:
    async with browser.visit(origin) as visit:
        for function in ("tooWide", "withoutName", "illegible"):
            assert await visit.look(function) == []
        await visit.page.set_content(
            """<p style="width: 5000px; color: #aaa">pale and wide</p><button></button>
               <a href="/" style="outline: none">plain</a>"""
        )
        assert "pale and wide" in str(await visit.look("tooWide"))
        assert "pale and wide" in str(await visit.look("illegible"))
        assert len(await visit.look("withoutName")) == 1
        assert [each["number"] for each in await visit.look("focusable")] == [0, 1]
        await visit.page.locator("a").focus()
        assert (await visit.look("focused"))["isSeen"] is False
