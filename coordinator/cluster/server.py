"""Shell. The gRPC server of ``coordinator serve``, for one or several terms."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.access.local import INSECURE
from drumbeat.access.token import NO_CA, Role, Token
from drumbeat.command.console import close_console
from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.authentication import Authenticator, Open
from drumbeat.coordinator.access.certificate_roles import caller_of_names, names_of
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.api.permissions import OPEN, check_method
from drumbeat.coordinator.api.query_service import Links
from drumbeat.coordinator.cluster.follower import Follower
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.service import Cluster, ClusterService
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.events import Deafened, OutageEnded
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.records import CallKind, Record
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.core.tokens.caller import LOCAL_ID, Caller
from drumbeat.coordinator.core.tokens.token_table import KeptToken
from drumbeat.coordinator.errors import CommandFailed, CoordinatorError, RevokedToken, Unavailable
from drumbeat.coordinator.evidence.keeper import EvidenceKeeper
from drumbeat.coordinator.frontends.server import FrontEndServer
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.shell.collecting.log_tails import LogTails
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.garbage import GARBAGE
from drumbeat.coordinator.shell.transport.binding import advertised, bound
from drumbeat.coordinator.shell.transport.interceptor import CallInterceptor, caller_of
from drumbeat.coordinator.shell.transport.methods import SERVICES, Context, Services, add_methods
from drumbeat.model import Pace

if TYPE_CHECKING:
    from drumbeat.coordinator.notify.notifier import Notifier
    from drumbeat.coordinator.observe.tracing.exporter import Tracing

log = structlog.get_logger()

# How long calls may take to end once the coordinator stops. They are told at once, so this is time
# for the network only.
STOP_GRACE_S = 1.0

# Name of the health service for probes of the process, which need not lead.
LIVE = "live"

Publish = Callable[[str], object]  # takes the text that lets this user in
Published = Callable[[int, str], AbstractContextManager[Publish]]


class Serving(NamedTuple):
    """A coordinator that serves calls."""

    port: int
    driver: Driver


@asynccontextmanager
async def serving(
    config: CoordinatorConfig,
    journal: Journal,
    policy: Policy | None = None,
    *,
    identity: ServerIdentity | None = None,
    published: Published = lambda *_: nullcontext(str),
    page: PageServer | None = None,
) -> AsyncIterator[Serving]:
    """Serve as the only coordinator while the context is open. Raises ``CommandFailed``.

    Without an identity nothing is encrypted and callers are not authenticated. ``published`` is
    called with the port and the text that lets this user in, and yields what is called with a text
    that replaces it.
    """
    server = Server(config, identity, policy, page)
    term = await server.restored(journal)
    try:
        port = server.bind()
    except BaseException:
        await journal.close()
        raise
    cluster = Cluster(Member("", str(advertised(config, port)), VERSION), journal.term)
    try:
        server.lead(term, crash_if_failed)
        async with server.listening(cluster, None, published):
            yield Serving(port, term.driver)
    finally:
        await term.ended()


class PageServer(Links, Protocol):
    """What browsers see of this coordinator, at a port of its own."""

    def bind(self) -> object:
        """Take the port. Raises ``PortInUse``."""

    def start(self, coordinator: Server) -> None:
        """Serve callers, which the server authenticates."""

    async def stop(self, error: CoordinatorError, within_s: float) -> None:
        """End all calls with an error, and serve no more."""

    def follow(self, driver: Driver) -> None:
        """Show the runs of a term, from its beginning."""

    def revoke(self, token_id: str) -> None:
        """End all that a token opened."""

    def link_without_code(self) -> str:
        """Return its address."""


class Server:
    """Listens from start to end. Answers calls by the term while this coordinator leads."""

    def __init__(
        self,
        config: CoordinatorConfig,
        identity: ServerIdentity | None,
        policy: Policy | None = None,
        page: PageServer | None = None,
    ) -> None:
        self.term: Term | None = None
        self.cluster: Cluster  # once it listens
        self._page = page
        self._follower: Follower | None = None
        self._config, self._identity = config, identity
        self._policy = _policy(config, policy or Policy())
        self._local = _local_token(identity)
        self.audit = Audit()
        self._tracing = _tracing(config)
        self.notifier = _notifier(config, self._is_deciding)
        self._evidence = (
            EvidenceKeeper(config, self._local_services) if config.evidence_dir else None
        )
        self._tails = (
            LogTails(Path(config.state_dir, "output"), config.limits) if config.state_dir else None
        )
        self._health = health.aio.HealthServicer()
        self.authenticator = self._authenticator()
        self._interceptor = CallInterceptor(
            self.authenticator,
            config.limits,
            audit=self.audit,
            open_services=OPEN,
            check_method=check_method,
        )
        self._publish_anew: Publish = str
        self._bound: tuple[grpc.aio.Server | FrontEndServer, int] | None = None
        self._always: Services | None = None

    def bind(self) -> int:
        """Take the port, and return it. Raises ``PortInUse``."""
        server, port = self._bound = bound(self._config, self._interceptor, self._identity)
        if isinstance(server, FrontEndServer):
            server.on_cut_off, server.on_deaf = self._cut_off, self._deafened
        add_methods(server, self._find)
        registry: Any = server  # both kinds take handlers alike
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registry)
        shown = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(shown)
        add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # no types
        add_reflection(servicer, registry)
        if self._page is not None:
            self._page.bind()
        return port

    @asynccontextmanager
    async def listening(
        self, cluster: Cluster, follower: Follower | None, published: Published
    ) -> AsyncIterator[None]:
        """Serve callers while the context is open, then end their calls with an error.

        ``follower`` answers while there is no term; without a follower there is always a term.
        """
        assert self._bound is not None, "it has a port"
        server, port = self._bound
        local = INSECURE if self._local is None else self._local.text()
        of_all = ClusterService(cluster, self.audit, caller_of, self._outage, self._config.shown())
        self._always = of_all.services(self._config.limits)
        self._follower, self.cluster = follower, cluster
        try:
            # Published before the first call: an agent that comes back at once looks there.
            with published(port, local) as self._publish_anew:
                await self._health.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
                await self.tell_health()
                await server.start()
                ended = asyncio.create_task(server.wait_for_termination(), name="server")
                ended.add_done_callback(crash_if_failed)
                if self._page is not None:
                    self._page.start(self)
                if self.notifier is not None:
                    self.notifier.name = f"coordinator {cluster.member.address}"
                    self.notifier.page = self._page.link_without_code() if self._page else ""
                    self.notifier.start()
                if self._evidence is not None:
                    self._evidence.start()
                yield
        finally:
            if self._evidence is not None:
                await self._evidence.close()
            if self._tails is not None:
                await self._tails.close()
            await self._health.enter_graceful_shutdown()
            if self.term is not None:
                self.term.driver.stop(Unavailable("it is stopping"))
            if follower is not None:
                follower.end(Unavailable("it is stopping"))
            ends: list[Awaitable[object]] = [server.stop(STOP_GRACE_S)]
            if self._page is not None:
                ends.append(self._page.stop(Unavailable("it is stopping"), STOP_GRACE_S))
            if self.notifier is not None:
                ends.append(self.notifier.close())
            await asyncio.gather(*ends)
            if self._tracing is not None:
                await self._tracing.close()

    async def restored(self, journal: Journal, *, is_successor: bool = False) -> Term:
        """Return a term that goes on from a journal. Raises ``CommandFailed``, and closes it.

        ``is_successor``: another term ended before, while this process ran.
        """
        registry = Registry(replace(self._policy, is_successor=is_successor))
        limits = self._config.limits
        driver = Driver(registry, journal, limits, on_serving=self._serving_changed)
        observers: list[Callable[[RunState, Record], None]] = []
        if self._tracing is not None:
            observers.append(self._tracing.observer(driver.now))
        if self.notifier is not None:
            observers.append(self.notifier.observe)
        if self._evidence is not None:
            observers.append(self._evidence.observe)
        if self._tails is not None:
            observers.append(partial(self._tails.observe, driver.logs))
            driver.tails = self._tails

        def observe(state: RunState, record: Record) -> None:
            for tell in observers:
                tell(state, record)

        driver.on_record = observe
        gc.disable()  # nothing of what is read is garbage
        try:
            await driver.restore()
        except BaseException:
            await journal.close()
            raise
        finally:
            gc.enable()
        if self._tails is not None:
            driver.journal.runs.on_forgotten = self._tails.forget
        driver.on_revoked = self.revoked
        # Not by the driver, which a timer would hold beyond the end of its term.
        driver.on_last_closed = partial(GARBAGE.collect_when_idle, self._is_idle)
        if self._page is not None:
            self._page.follow(driver)
        term = Term(driver, self._identity, self.audit, self._page, self._config.link)
        if self.notifier is not None:
            term.queries.notified = self.notifier.recent
        if self._local is not None:
            term.control.on_replaced = self.authorities_changed
        return term

    def lead(self, term: Term, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """Serve a term from now on; ``on_end`` is called with its task when it ends."""
        self.term = term
        term.run(on_end)

    def follow(self, error: CoordinatorError) -> Term | None:
        """End the term and its calls with an error; return it, so that its end can be awaited."""
        term, self.term = self.term, None
        if term is not None:
            term.stop(error)
        return term

    async def tell_health(self) -> None:
        """Tell probes whether this coordinator leads and makes decisions."""
        await self._tell_health(self._is_deciding())

    def kept_token(self, token_id: str) -> tuple[KeptToken | None, float]:
        """Return a token, and the coordinator's clock to compare its expiry with.

        Raises ``NotLeader``.
        """
        if self.term is None:
            assert self._follower is not None, "one leads before callers are let in"
            return self._follower.kept_token(token_id), float("-inf")
        driver = self.term.driver
        return driver.tokens.tokens.get(token_id), driver.now()

    def revoked(self, token_id: str) -> None:
        """End all that a token opened."""
        self._interceptor.revoke(token_id)
        if self._page is not None:
            self._page.revoke(token_id)

    def authorities_changed(self, keys: list[str]) -> None:
        """Let this user's commands trust the newest authority, before an older one is retired."""
        if self._local is not None:
            self._publish_anew(dataclasses.replace(self._local, ca=keys[0]).text())
        if self._bound is not None and isinstance(self._bound[0], FrontEndServer):
            self._bound[0].tell_identity()

    async def _find(self, method: str, context: Context) -> Services:
        assert self._always is not None, "it listens"
        if method in self._always:
            return self._always
        return (await self.term_for(context)).services

    def _local_services(self, method: str) -> Services:
        """Return what serves a call of this process itself. Raises ``Unavailable``."""
        if self._always is not None and method in self._always:
            return self._always
        if self.term is None:
            raise Unavailable("another coordinator leads")
        return self.term.services

    async def term_for(self, context: Any) -> Term:
        """Return the term, once this coordinator leads for certain. Raises ``NotLeader``."""
        follower = self._follower
        while self.term is None or (follower is not None and not follower.is_serving()):
            assert follower is not None, "one leads before callers are let in"
            await follower.wait_for_term(context)
        return self.term

    def _is_idle(self) -> bool:
        return self.term is None or not self.term.driver.sessions_count

    def _cut_off(self) -> None:
        if self.term is not None:
            self.term.driver.submit(OutageEnded(has_cut_off=True))

    def _deafened(self, seconds: float) -> None:
        if self.term is not None:
            self.term.driver.submit(Deafened(seconds=seconds))

    def _outage(self) -> str:
        return "" if self.term is None else self.term.driver.outage

    def _authenticator(self) -> Authenticator:
        if self._local is None:
            return Open()
        roles = self._config.tls_roles

        def verify(token: Token) -> Caller:
            if self.term is None:
                assert self._follower is not None, "one leads before callers are let in"
                return self._follower.verify(token)
            driver = self.term.driver
            try:
                return driver.tokens.verify(token, now=driver.now())
            except RevokedToken as error:
                driver.note(error.run_id, CallKind.ACCESS_REFUSED, token.token_id, str(error))
                raise

        def of_certificate(properties: Mapping[str, Iterable[bytes]]) -> Caller:
            return caller_of_names(names_of(properties), roles)

        mutual = of_certificate if self._config.tls_client_ca is not None else None
        return Authenticator(verify, local=self._local, of_certificate=mutual)

    def _is_deciding(self) -> bool:
        return self.term is not None and not self._outage()

    async def _serving_changed(self, is_serving: bool) -> None:
        if self.notifier is not None and self.term is not None:
            self.notifier.journal_changed("" if is_serving else self._outage())
        await self._tell_health(is_serving)

    async def _tell_health(self, is_serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        for name in ("", *SERVICES):
            await self._health.set(name, response.SERVING if is_serving else response.NOT_SERVING)


def _tracing(config: CoordinatorConfig) -> Tracing | None:
    """Return the exporter of traces, if --otlp-endpoint is given. Raises ``TracesUnusable``."""
    if config.otlp_endpoint is None:
        return None
    # Its packages are an extra.
    from drumbeat.coordinator.observe.tracing.exporter import Tracing  # noqa: PLC0415

    return Tracing(config.otlp_endpoint)


def _notifier(config: CoordinatorConfig, is_well: Callable[[], bool]) -> Notifier | None:
    """Return the sender of notifications, if there is one. Raises ``NotificationsUnusable``."""
    if not config.notify and config.notify_file is config.notify_heartbeat is None:
        return None
    # Its packages are an extra.
    from drumbeat.coordinator.notify.notifier import Notifier  # noqa: PLC0415

    return Notifier(config, is_well)


def _policy(config: CoordinatorConfig, base: Policy) -> Policy:
    pace = Pace(
        heartbeat_interval_s=config.heartbeat_interval,
        lease_s=config.lease,
        reconnect_delay_max_s=1.0,
    )
    return replace(
        base,
        base_pace=pace,
        checkpoint_grace_s=config.checkpoint_grace,
        has_others=config.journal is not None,
        exclude_max_percent=config.exclude_max,
        allows_rehearsals=config.allow_rehearsals,
        failures_bytes_least=config.limits.failure_record_bytes_max,
        restart_grace_s=max(base.restart_grace_s, config.lease),
    )


def _local_token(identity: ServerIdentity | None) -> Token | None:
    """Return the token of the coordinator's own user, for the life of this process."""
    if identity is None:
        return None
    secret = secrets.token_urlsafe(16)
    return Token(Role.ADMIN, LOCAL_ID, secret, next(iter(identity.keys), NO_CA))


def crash_if_failed(owner: asyncio.Task[Any]) -> None:
    """End the process if its driver failed: the journal is sound, a new process goes on from it."""
    if owner.cancelled() or (error := owner.exception()) is None:
        return
    if isinstance(error, CommandFailed):  # it could not even start now
        log.critical("coordinator ends", reason=str(error), advice=error.hint)
    else:
        log.critical("coordinator broken", exc_info=error)
    close_console()  # it writes from a thread, which ends with the process
    os._exit(1)
