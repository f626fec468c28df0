"""What strangers and slow readers can have of the page's port: little, and others notice none."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from drumbeat.access.certificates import trust_anchors
from drumbeat.access.token import Role, parse_token
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.web.access import link
from drumbeat.coordinator.web.api.run_list import RunList
from drumbeat.v1 import control_pb2, query_pb2
from tests.support.coordinators import Coordinator, coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.pages import Browser, Site, Stream, bearer, code_of, site
from tests.support.waiting import MS, wait_until
from tests.support.wire import DEADLINE_S, Client

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LIMITS = Limits(http_request_timeout_s=200 * MS, http_connections_max=20)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, insecure=True, limits=LIMITS) as made:
        yield made


async def said(served: Site, text: bytes) -> bytes:
    """Return what the port answers to a text, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.page.port)
    writer.write(text)
    answer = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
    writer.close()
    return answer


NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 20,  # TLS, to a port without
    b"\0" * 4096,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    HEAD + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    HEAD + b"X: y\r\n" * 1_000 + b"\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_what_is_no_request_is_refused_and_the_connection_closed(served: Site) -> None:
    for text in NO_REQUESTS:
        first = (await said(served, text)).split(b"\r\n", 1)[0]
        assert first == b"" or b" 400 " in first, text[:100]
    assert (await served.browser().get("/api/me")).status == 200


async def test_a_connection_has_a_time_for_its_next_request(served: Site) -> None:
    texts = (b"", HEAD, b"G", HEAD + b"Connection: keep-alive\r\n\r\n")
    await asyncio.gather(*(said(served, text) for text in texts))  # they end by themselves


async def test_a_body_has_a_size_and_a_time(served: Site) -> None:
    head = b"POST /api/drains HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n"
    head += b"Content-Type: application/json\r\n"
    for length in (b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
        assert b"in time" in await said(served, head + length)
    large = b'{"name": "' + b"a" * LIMITS.http_body_bytes_max + b'"}'
    answer = await said(served, head + b"Content-Length: %d\r\n\r\n" % len(large) + large)
    assert b" 400 " in answer
    assert b"16384" in answer
    packed = head + b"Content-Encoding: gzip\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    assert b" 200 " not in await said(served, packed.replace(b"{}", b"\x1f\x8b"))


async def test_silent_connections_keep_no_one_out(served: Site) -> None:
    port = served.page.port
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
    assert (await served.browser().get("/api/me")).status == 200
    for _, writer in silent:
        writer.close()


async def test_one_connection_more_than_the_limit_closes_the_oldest(tmp_path: Path) -> None:
    limits = Limits(http_connections_max=3, http_request_timeout_s=10 * DEADLINE_S)
    async with site(tmp_path, insecure=True, limits=limits) as made:
        opened = [await asyncio.open_connection("127.0.0.1", made.page.port) for _ in range(4)]
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                assert await opened[0][0].read() == b""
            for reader, writer in opened[1:]:
                writer.write(HEAD + b"\r\n")
                assert b" 200 " in await reader.readline()
        for _, writer in opened:
            writer.close()


PATHS = [
    "/../config.py",
    "/%2e%2e/config.py",
    "/base/../../config.py",
    "//etc/passwd",
    "/base/..%2f..%2fconfig.py",
    "/base/\\..\\config.py",
    "/index.html%00.js",
    "/api/../index.html",
    "/nothing",
]
NAMES = ["%2F", "a%2Fb", "%3Cb%3E", "%C3%BC", "%FF", "%00", "..", "a" * 200]


async def test_no_path_leads_out_of_the_page_and_a_run_may_have_any_name(served: Site) -> None:
    asked = [(path, b"nothing is served") for path in PATHS]
    asked += [(f"/api/runs/{name}", b"there is no run") for name in NAMES]
    for path, why in asked:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await said(served, head.encode())
        assert (b" 404 " in answer.split(b"\r\n", 1)[0], why in answer) == (True, True), path


async def test_other_methods_and_versions(served: Site) -> None:
    browser = served.browser()
    for path in ("/", "/api/me", "/api/live"):
        told = await browser.ask("HEAD", path)
        assert (told.status, told.content) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        for path in ("/", "/api/runs"):
            told = await browser.ask(method, path)
            assert (told.status, "GET or HEAD" in told.reason) == (400, True)
    for old in (b"/", b"/api/me"):
        assert b" 200 " in await said(served, b"GET " + old + b" HTTP/1.0\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.page.port)
    writer.write(b"GET /api/live HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        assert b'"runs":[]' in await reader.readuntil(b"}\n\n")
    writer.close()


async def test_a_reader_that_takes_nothing_is_left_and_others_go_on(tmp_path: Path) -> None:
    limits = Limits(page_send_timeout_s=100 * MS, page_streams_max=2)
    async with site(tmp_path, insecure=True, limits=limits) as made, Client(made.port) as client:
        await client.agent().join()
        reader, writer = await asyncio.open_connection("127.0.0.1", made.page.port, limit=1)
        writer.write(b"GET /api/runs/run/logs?tail=5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.read(1)
        async with made.browser().open("GET", "/api/live") as response:
            await Stream(response).next_of("runs")
            told = await made.browser().get("/api/live")
            assert (told.status, "page_streams_max" in told.reason) == (429, True)
        writer.close()


async def test_a_cookie_is_taken_whole_and_of_this_coordinator_alone(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        browser = await made.entered()
        name, _, value = browser.cookie.partition("=")
        body, _, mac = value.partition(".")
        wrong = ["", value[:-1], f"{body}.", f".{mac}", body, f"{body[:-2]}AA.{mac}", "a" * 5_000]
        wrong += [code_of(await made.page.local_link()), f"{value}\xff"]
        for forged in wrong:
            browser.cookie = f"{name}={forged}"
            assert (await browser.get("/api/me")).status == 401
        browser.cookie = f"{name}={value}; {name}=other"
        assert (await browser.get("/api/me")).status in (200, 401)
        for code in (value, "x", "é", None, 7, "a" * 3_000):
            assert (await browser.post("/api/enter", {"code": code})).status in (400, 401)
        told = await browser.ask(
            "POST", "/api/enter", json={"code": code_of(await made.page.local_link())}
        )
        assert told.status == 403  # no origin: another site's form could do that
        for token in (await made.token(Role.JOIN), await made.token(Role.JOIN, run_id="run")):
            assert (await made.browser().get("/api/runs", headers=bearer(token))).status == 403
        for given in ("Bearer drumbeat1.admin.x", "Basic YTpi", "Bearer", ""):
            headers = {"Authorization": given}
            assert (await made.browser().get("/api/me", headers=headers)).status == 401


async def test_cookies_hold_over_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        browser = await made.entered()
        port = made.page.port
    async with site(tmp_path, http_port=port) as made:
        again = made.browser()
        again.cookie = browser.cookie
        assert (await again.get("/api/me")).json["name"] == "hostuser"


async def test_who_leads_no_more_ends_its_streams_and_says_who_does(tmp_path: Path) -> None:
    model = EtcdModel()
    settings: Any = {"authority_in": tmp_path, "http_port": 0}
    async with (
        coordinator_of(model, **settings) as first,
        coordinator_of(model, **settings) as second,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await first.leads()
        await second.follows(first)
        browser = browser_of(first, session)
        assert first.page is not None
        await browser.enter(await first.page.local_link())
        viewer = browser_of(first, session)
        token_id = await view(first, viewer)
        async with browser.open("GET", "/api/live") as response:
            stream = Stream(response)
            await stream.next_of("runs")
            await first.membership.step_down("a test")
            told = await stream.next_of("ended")
        assert told["error"]["status"] == "UNAVAILABLE"
        await second.leads()
        await first.follows(second)
        told = await browser.get("/api/runs")
        assert (told.status, second.address in told.reason) == (503, True)
        assert (await browser.get("/")).status == 200
        assert (await browser_of(first, session).get("/api/runs")).status == 401
        assert (await viewer.get("/metrics")).status == 200  # all coordinators answer that
        async with second.let_in() as client:
            await client.control.RevokeToken(control_pb2.RevokeTokenRequest(token_id=token_id))

        def is_revoked() -> bool:
            kept = first.server.kept_token(token_id)[0]
            return kept is not None and kept.revoked_at is not None

        await wait_until(is_revoked, DEADLINE_S)
        assert (await viewer.get("/metrics")).status == 401
        other = browser_of(second, session)  # it has the same key
        assert second.page is not None
        other.cookie = f"__Host-drumbeat-{second.page.port}={browser.cookie.partition('=')[2]}"
        assert (await other.get("/api/me")).json["name"] == "hostuser"


async def view(of: Coordinator, browser: Browser) -> str:
    """Let a browser in by the link of a new token; return the token's id."""
    async with of.let_in() as admin:
        asked = control_pb2.CreateTokenRequest(role=control_pb2.ROLE_VIEW)
        made = await admin.control.CreateToken(asked)
    async with of.let_in(made.text) as client:
        link = (await client.runs.GetPageLink(query_pb2.GetPageLinkRequest())).url
    assert (await browser.enter(link)).status == 200
    return str(made.token.token_id)


def browser_of(of: Coordinator, session: aiohttp.ClientSession) -> Browser:
    assert of.page is not None
    anchors = trust_anchors([parse_token(of.published[-1]).ca]).decode()
    origin = f"https://127.0.0.1:{of.page.port}"
    return Browser(origin, session, ssl.create_default_context(cadata=anchors))


async def test_of_what_a_reader_does_not_take_the_latest_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunList, "since", lambda *_: {"runs": "a" * 8_000_000})
    limits = Limits(page_send_timeout_s=200 * MS)
    async with site(tmp_path, insecure=True, limits=limits) as made:
        slow, writer = await asyncio.open_connection("127.0.0.1", made.page.port, limit=1)
        writer.write(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with made.browser().open("GET", "/api/live") as response:
            async with asyncio.timeout(DEADLINE_S):
                assert len(await response.content.readexactly(8_000_000)) == 8_000_000
        await asyncio.sleep(2 * limits.page_send_timeout_s)
        taken = b""
        with suppress(ConnectionError):  # it was left, with what the kernel had of one part
            async with asyncio.timeout(DEADLINE_S):
                while part := await slow.read(2**20):
                    taken += part
        assert len(taken) < 8_000_000
        writer.close()


def test_a_link_is_right_for_any_host_and_run() -> None:
    assert link("https", "::1", 1, "a/b", "c") == "https://[::1]:1/runs/a%2Fb#code=c"
    assert link("http", "head", 80) == "http://head:80/"
