"""A coordinator with a page, and browsers that look at it."""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import grpc
import grpc.aio

from drumbeat.access.certificates import SERVER_NAME, trust_anchors
from drumbeat.access.token import Role, Token
from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.events import TokenCreated, TokenRevoked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.tokens.token_table import secret_sha256
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.web.page import Page
from drumbeat.v1 import query_pb2, query_pb2_grpc
from tests.support.channels import with_token
from tests.support.wire import DEADLINE_S, Client

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()


@dataclass
class HttpAnswer:
    """One answer."""

    status: int
    headers: Any
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["reason"])


@dataclass
class Browser:
    """Keeps the cookie that it is given, and sends it with each request."""

    origin: str
    session: aiohttp.ClientSession
    tls: ssl.SSLContext | bool
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, **more: Any) -> HttpAnswer:
        async with self.open(method, path, **more) as response:
            if (given := response.headers.get("Set-Cookie")) is not None:
                self.cookie = given.partition(";")[0]
            return HttpAnswer(response.status, response.headers, await response.read())

    async def get(self, path: str, **more: Any) -> HttpAnswer:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, data: Any, **more: Any) -> HttpAnswer:
        """Post as the page does."""
        headers = {"Origin": self.origin, **self.headers, **more.pop("headers", {})}
        return await self.ask("POST", path, json=data, headers=headers, **more)

    def open(self, method: str, path: str, **more: Any) -> Any:
        headers = dict(more.pop("headers", {}))
        if self.cookie:
            headers["Cookie"] = self.cookie
        more.setdefault("ssl", self.tls)
        url = self.origin + path
        if self.origin.startswith("https"):
            more["server_hostname"] = SERVER_NAME
        return self.session.request(method, url, headers=headers, **more)

    async def enter(self, link: str) -> HttpAnswer:
        """Follow a link, and take the value that changes have to show."""
        told = await self.post("/api/enter", {"code": code_of(link)})
        if told.status == 200:
            self.headers["X-Drumbeat-CSRF"] = (await self.get("/api/me")).json["csrf"]
        return told


class Stream:
    """Reads server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self.number = ""
        """The id of the latest that has one."""

    async def next(self) -> tuple[str, Any]:
        """Return the kind and the data of the next event."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                block = (await self._content.readuntil(b"\n\n")).decode()
                fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
                self.number = fields.get("id", self.number)
                if "event" in fields:
                    return fields["event"], json.loads(fields["data"])

    async def next_of(self, wanted: str) -> Any:
        """Return the data of the next event of a kind, passing over others."""
        while True:
            kind, data = await self.next()
            if kind == wanted:
                return data


def code_of(link: str) -> str:
    return urlsplit(link).fragment.removeprefix("code=")


@dataclass
class Site:
    """A coordinator with a page."""

    driver: Driver
    port: int
    page: Page
    identity: ServerIdentity | None
    session: aiohttp.ClientSession

    def browser(self) -> Browser:
        tls: ssl.SSLContext | bool = True
        if self.identity is not None and self.identity.keys:
            tls = ssl.create_default_context(cadata=trust_anchors(self.identity.keys[:1]).decode())
        return Browser(self.origin, self.session, tls)

    async def forget_connections(self) -> None:
        """Have the next request begin with a handshake."""
        assert self.session.connector is not None, "it is open"
        for waiting in list(self.session.connector._conns.values()):
            for protocol, _ in waiting:
                protocol.close()
        self.session.connector._conns.clear()

    async def entered(self) -> Browser:
        """Return the browser of the user that the coordinator runs as."""
        browser = self.browser()
        assert (await browser.enter(await self.page.local_link())).status == 200
        return browser

    @property
    def origin(self) -> str:
        scheme = "http" if self.identity is None else "https"
        return f"{scheme}://127.0.0.1:{self.page.port}"

    async def token(self, role: Role, run_id: str = "", ttl_s: float | None = None) -> Token:
        token = Token(role, secrets.token_hex(4), secrets.token_urlsafe(16))
        await self.driver.change_token(
            TokenCreated(
                request_id=-secrets.randbits(40),
                token_id=token.token_id,
                role=role,
                secret_sha256=secret_sha256(token.secret),
                run_id=run_id,
                ttl_s=ttl_s,
            )
        )
        return token

    def channel(self, token: Token) -> grpc.aio.Channel:
        assert self.identity is not None, "it asks for tokens"
        secret = grpc.ssl_channel_credentials(trust_anchors(self.identity.keys[:1]))
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        where = f"127.0.0.1:{self.port}"
        return grpc.aio.secure_channel(where, with_token(secret, token.text()), options)

    @asynccontextmanager
    async def client(self, token: Token) -> AsyncIterator[Client]:
        async with Client(self.port, self.channel(token)) as client:
            yield client

    async def link(self, token: Token, **asked: Any) -> str:
        """Return the link that a caller of gRPC is given."""
        async with self.channel(token) as channel:
            stub: Any = query_pb2_grpc.QueryServiceStub(cast("Any", channel))
            return str((await stub.GetPageLink(query_pb2.GetPageLinkRequest(**asked))).url)

    async def revoke(self, token: Token) -> None:
        event = TokenRevoked(request_id=-secrets.randbits(40), token_id=token.token_id)
        await self.driver.change_token(event)


def bearer(token: Token) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.text()}"}


@asynccontextmanager
async def site(
    directory: Path,
    *,
    limits: Limits | None = None,
    insecure: bool = False,
    identity: ServerIdentity | None = None,
    policy: Policy | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """Serve a page at a free port, with the coordinator's own authority unless it is insecure."""
    config = CoordinatorConfig(
        port=0,
        insecure=insecure,
        limits=limits or Limits(),
        **{"http_port": 0, **settings},
    )
    journal = SqliteJournal(directory)
    if identity is None and not insecure:
        identity = Authority(directory)
    page = Page(config, identity)
    jar = aiohttp.DummyCookieJar()
    async with (
        serving(config, journal, policy, identity=identity, page=page) as (port, driver),
        aiohttp.ClientSession(cookie_jar=jar) as session,
    ):
        yield Site(driver, port, page, identity, session)
