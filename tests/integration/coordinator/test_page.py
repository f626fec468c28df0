"""The page: who is let in over HTTP, and what is read there, over real TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from drumbeat.access.token import Role
from drumbeat.v1 import control_pb2
from tests.support.pages import bearer, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.pages import Site


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def test_a_browser_enters_with_the_code_of_a_link_once(served: Site) -> None:
    browser, link = served.browser(), served.page.local_link()
    assert (await browser.get("/api/me")).status == 401
    told = await browser.enter(link)
    assert (told.status, told.json) == (200, {"name": "hostuser", "role": "admin"})
    shown = told.headers["Set-Cookie"]
    for part in ("__Host-", "HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
        assert part in shown
    assert (await browser.get("/api/runs")).json == {"runs": []}
    again = await served.browser().enter(link)
    assert again.status == 401
    assert "used before" in again.reason


async def test_a_view_token_reads_without_a_cookie(served: Site) -> None:
    headers = bearer(await served.token(Role.VIEW))
    told = await served.browser().get("/api/me", headers=headers)
    assert (told.json["role"], told.json["csrf"]) == ("view", None)
    assert (await served.browser().get("/api/runs", headers=headers)).status == 200


async def test_the_page_itself_is_served_to_all_who_reach_the_port(served: Site) -> None:
    browser = served.browser()
    for path in ("/", "/runs/mt5", "/runs/a%2Fb"):
        told = await browser.get(path)
        assert told.status == 200
        assert told.headers["Content-Type"] == "text/html; charset=utf-8"
        assert told.headers["Content-Security-Policy"].startswith("default-src 'self';")


async def test_a_command_prints_a_link_that_allows_what_is_asked_for(served: Site) -> None:
    token = await served.token(Role.VIEW)
    link = await served.link(token)
    assert link.startswith(f"{served.origin}/#code=")
    browser = served.browser()
    await browser.enter(link)
    me = (await browser.get("/api/me")).json
    assert (me["name"], me["role"], me["run_id"]) == (token.token_id, "view", None)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.link(token, role=control_pb2.ROLE_ADMIN)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
