"""Shell. ``coordinator serve`` with --journal: one of several coordinators that share etcd."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from drumbeat import VERSION
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.cluster.election import SeenTerms
from drumbeat.coordinator.cluster.membership import ClusterMember
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import CoordinatorError, JournalOutage
from drumbeat.coordinator.journal.etcd.client import EtcdClient
from drumbeat.coordinator.journal.etcd.following import reason_of, until_answered
from drumbeat.coordinator.journal.etcd.model import Etcd
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.serving import process
from drumbeat.coordinator.shell.transport.binding import advertised, check_port
from drumbeat.tasks import until_one_ends
from drumbeat.text.addresses import is_loopback

log = structlog.get_logger()


async def serve_with_others(config: CoordinatorConfig, directory: Path) -> None:
    """Serve until a signal, once etcd answers. Raises ``CommandFailed``."""
    assert config.etcd is not None, "the journal is on etcd"
    stopped = process.stop_signals()
    if config.etcd.is_exposed:
        reason = "--journal-ca encrypts it; the secrets of this cluster are among it"
        log.warning("others on the network can read what etcd is told", reason=reason)
    check_port(config)  # before etcd answers
    etcd, keys = EtcdClient(config.etcd), Keys(config.etcd.prefix)
    seen_terms = SeenTerms(directory, config.etcd.prefix)
    identities: list[ServerIdentity | None] = []

    async def prepare() -> None:
        reading = await until_answered(lambda: etcd.read(keys.leader, ""), _log_outage)
        seen_terms.check(reading.revision)
        identity = process.operators_identity(config)
        if identity is None and not config.insecure:
            identity = await until_answered(
                lambda: SharedAuthority.open(etcd, keys, directory), _log_outage
            )
        identities.append(identity)

    try:
        await until_one_ends(prepare(), stopped.wait())
        if identities and not stopped.is_set():
            one = _Process(config, etcd, keys, directory, identities[0], seen_terms)
            await one.serve(stopped)
    finally:
        await etcd.close()


def _log_outage(error: JournalOutage) -> None:
    log.warning("the coordinator waits for etcd", reason=reason_of(error))


class _Process:
    """This coordinator, once etcd has answered."""

    def __init__(
        self,
        config: CoordinatorConfig,
        etcd: Etcd,
        keys: Keys,
        directory: Path,
        identity: ServerIdentity | None,
        seen_terms: SeenTerms,
    ) -> None:
        self._config, self._directory, self._identity = config, directory, identity
        self._named = set[Member]()  # whose addresses were printed
        self._page = process.open_page(config, identity)
        self._server = Server(config, identity, page=self._page)
        self._port = self._server.bind()
        where = advertised(config, self._port)
        assert config.etcd is not None, "the journal is on etcd"
        if is_loopback(where.host) and config.etcd.is_remote:
            reason = (
                "agents and operators on others are told so; --advertise says where it is reached"
            )
            message = f"only this host reaches {where}: {reason}"
            log.warning("address of this host alone", message=message, reason=reason)
        self._membership = ClusterMember(
            etcd,
            keys,
            Member(uuid.uuid4().hex, str(where), VERSION),
            self._server,
            ttl_s=config.leader_ttl,
            seen_terms=seen_terms,
        )
        self._membership.on_term = self._print_how_to_join
        if isinstance(identity, SharedAuthority):
            self._membership.share(identity)

    async def serve(self, stopped: asyncio.Event) -> None:
        """Serve until ``stopped`` is set, then hand leadership over."""
        config, membership = self._config, self._membership
        published = partial(process.published, self._directory)
        try:
            async with self._server.listening(membership, membership.follower, published):
                membership.start()
                process.print_ready(config, self._port)
                if self._page is not None:
                    await process.print_page(config, self._page, leads=False)
                await stopped.wait()
                log.info("coordinator stopping", reason=process.SIGNAL)
                with suppress(CoordinatorError):  # it may be the only coordinator
                    await membership.step_down("it was told to end by a signal")
        finally:
            await membership.leave()

    async def _print_how_to_join(self, term: Term) -> None:
        """Print the command with which machines join, and again for each coordinator that comes."""
        while True:
            members = self._membership.members
            self._named.update(members)
            addresses = [member.address for member in members]
            await process.print_how_to_join(
                self._config, addresses, term.driver, self._identity, self._directory
            )
            await self._membership.wait_for_members(self._named)
