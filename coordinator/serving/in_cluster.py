"""Shell. A coordinator among others: the journal is on etcd, and one of them leads."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from drumbeat.coordinator.access.join_token import is_loopback
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.cluster.address import advertised
from drumbeat.coordinator.cluster.following import reason_of
from drumbeat.coordinator.cluster.membership import Membership
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.seen_terms import SeenTerms
from drumbeat.coordinator.cluster.service import version
from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import CoordinatorError, JournalOutage
from drumbeat.coordinator.journal.etcd.client import EtcdClient
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.keys import Keys
from drumbeat.coordinator.journal.etcd.model import Etcd
from drumbeat.coordinator.journal.outage import Outage
from drumbeat.coordinator.serving.process import (
    open_page,
    operators_identity,
    published,
    stop_signals,
    tell_how_to_join,
    tell_page,
    tell_ready,
)
from drumbeat.coordinator.shell.server import Server
from drumbeat.coordinator.shell.transport.binding import check_port
from drumbeat.tasks import until_one_ends

log = structlog.get_logger()

T = TypeVar("T")


async def serve_in_cluster(config: CoordinatorConfig, directory: Path) -> None:
    """Serve until a signal. Raises ``CommandFailed``; etcd that does not answer is waited for."""
    assert config.etcd is not None, "the journal is there"
    stopped = stop_signals()
    if config.etcd.is_exposed:
        reason = "--journal-ca encrypts it; the secrets of this cluster are among it"
        log.warning("others on the network can read what etcd is told", reason=reason)
    check_port(config)  # told at once, whether etcd answers or not
    etcd, keys = EtcdClient(config.etcd), Keys(config.etcd.prefix)
    found: list[ServerIdentity | None] = []

    seen = SeenTerms(directory, config.etcd.prefix)

    async def prepare() -> None:
        seen.check((await _answered(lambda: etcd.read(keys.leader, ""))).revision)
        found.append(await _identity(config, etcd, keys, directory))

    try:
        await until_one_ends(prepare(), stopped.wait())
        if found and not stopped.is_set():
            await _serve(config, etcd, found[0], directory, stopped, seen)
    finally:
        await etcd.close()


async def _identity(
    config: CoordinatorConfig, etcd: Etcd, keys: Keys, directory: Path
) -> ServerIdentity | None:
    """Return what the server shows, once etcd has answered."""
    identity = operators_identity(config)
    if identity is not None or config.insecure:
        return identity
    return await _answered(lambda: SharedAuthority.open(etcd, keys, directory))


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask etcd until it answers."""
    outage: Outage | None = None
    while True:
        try:
            return await ask()
        except JournalOutage as error:
            outage = outage or Outage(now=time.monotonic())
            if outage.failed(str(error), now=time.monotonic()):
                log.warning("the coordinator waits for etcd", reason=reason_of(error))
        await asyncio.sleep(outage.next_retry_s())


async def _serve(
    config: CoordinatorConfig,
    etcd: Etcd,
    identity: ServerIdentity | None,
    directory: Path,
    stopped: asyncio.Event,
    seen: SeenTerms,
) -> None:
    assert config.etcd is not None, "the journal is there"
    keys, etcd_hosts = Keys(config.etcd.prefix), config.etcd.endpoints
    page = open_page(config, identity)
    server = Server(config, identity, page=page)
    port = server.bind()
    where = advertised(config, port)
    if is_loopback(where.host) and not all(is_loopback(each.host) for each in etcd_hosts):
        reason = "agents and operators on others are told so; --advertise says where it is reached"
        message = f"only this host reaches {where}: {reason}"
        log.warning("address of this host alone", message=message, reason=reason)
    member = Member(uuid.uuid4().hex, str(where), version())
    membership = Membership(
        etcd,
        keys,
        member,
        server,
        ttl_s=config.leader_ttl,
        journal_of=lambda term: EtcdJournal(etcd, keys, term=term),
    )

    told: set[Member] = set()

    async def tell(term: Term) -> None:
        """Say how to join, and once more whenever there is a coordinator that was not named."""
        while True:
            told.update(membership.members)
            addresses = [each.address for each in membership.members]
            await tell_how_to_join(config, addresses, term.driver, identity, directory)
            await membership.wait_for_members(told)

    membership.on_term = tell
    membership.note_terms(seen.seen)
    if isinstance(identity, SharedAuthority):
        membership.share(identity)
    try:
        async with server.listening(membership, membership.follower, partial(published, directory)):
            membership.start()
            tell_ready(config, port)
            if page is not None:
                await tell_page(config, page, leads=False)
            await stopped.wait()
            log.info("coordinator stopping", reason="it was told to by a signal")
            with suppress(CoordinatorError):  # there may be no other one
                await membership.step_down("it was told to end by a signal")
    finally:
        await membership.leave()
