"""Coordinators of one cluster in this process, on a model of etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from drumbeat.access.certificates import SERVER_NAME, trust_anchors
from drumbeat.access.token import parse_token
from drumbeat.coordinator.cluster.membership import ClusterMember
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.web.page import Page
from drumbeat.v1 import query_pb2
from tests.support.channels import with_token
from tests.support.etcd_model import EtcdClientModel, EtcdModel
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, Client

KEYS = Keys("prod")


@dataclass
class Coordinator:
    """One of them. ``etcd`` is its way to etcd, with faults of its own."""

    port: int
    server: Server
    membership: ClusterMember
    etcd: EtcdClientModel
    client: Client
    published: list[str]  # what lets this user in, the latest last
    page: Page | None = None  # with a port for it

    @property
    def address(self) -> str:
        """Where the others say that it is."""
        return self.membership.member.address

    @property
    def term(self) -> int:
        """The term that it serves, 0 if it follows."""
        return 0 if self.server.term is None else self.server.term.number

    @asynccontextmanager
    async def let_in(self, token: str = "") -> AsyncIterator[Client]:
        """Return a client with a token, or with this user's own; of one with an authority."""
        text = token or self.published[-1]
        anchors = trust_anchors([parse_token(text).ca])
        secret = with_token(grpc.ssl_channel_credentials(anchors), text)
        options = [
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        channel = grpc.aio.secure_channel(self.address, secret, options)
        async with Client(self.port, channel) as client:
            yield client

    async def leads(self) -> None:
        """Return once it serves a term."""
        await wait_until(lambda: self.term, DEADLINE_S)

    async def follows(self, leader: Coordinator) -> None:
        """Return once it knows that another one leads."""

        def is_known() -> bool:
            found = self.membership.leader
            return found is not None and found.address == leader.address

        await wait_until(is_known, DEADLINE_S)

    async def cluster(self) -> query_pb2.ListCoordinatorsResponse:
        """Ask it for all of them."""
        asked = query_pb2.ListCoordinatorsRequest()
        found: query_pb2.ListCoordinatorsResponse = await self.client.runs.ListCoordinators(
            asked, timeout=DEADLINE_S
        )
        return found


@asynccontextmanager
async def coordinator_of(
    model: EtcdModel,
    *,
    ttl_s: float = 1.0,
    limits: Limits | None = None,
    authority_in: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Coordinator]:
    """Let one more coordinator of the cluster serve while the context is open."""
    etcd = model.client()
    config = CoordinatorConfig(
        port=0, insecure=authority_in is None, limits=limits or Limits(), **settings
    )
    identity = None
    if authority_in is not None:
        identity = await SharedAuthority.open(etcd, KEYS, authority_in)
    page = None if config.http_port is None else Page(config, identity)
    server = Server(config, identity, page=page)
    port = server.bind()
    membership = ClusterMember(
        etcd,
        KEYS,
        Member(f"c{port}", f"127.0.0.1:{port}", "1"),
        server,
        ttl_s=ttl_s,
    )
    if identity is not None:
        membership.share(identity)
    published: list[str] = []

    @contextmanager
    def publish(_: int, text: str) -> Iterator[Callable[[str], None]]:
        published.append(text)
        yield published.append

    try:
        async with (
            server.listening(membership, membership.follower, publish),
            Client(port) as client,
        ):
            membership.start()
            yield Coordinator(port, server, membership, etcd, client, published, page)
    finally:
        await membership.leave()
