"""Shell. The gRPC server of ``coordinator serve``: start, serve, stop in order."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from msgspec.structs import replace

from coordinator.access.audit import Audit
from coordinator.access.authentication import Authenticator, Open
from coordinator.access.authority import Authority
from coordinator.access.caller import Caller
from coordinator.access.certificate_roles import caller_of_names, names_of
from coordinator.access.join_token import how_to_join, is_loopback, join_token, pin
from coordinator.access.operator_certificate import OperatorCertificate
from coordinator.access.server_identity import ServerIdentity
from coordinator.config import CoordinatorConfig
from coordinator.core.model import Pace
from coordinator.core.policy import Policy
from coordinator.core.registry.registry import Registry
from coordinator.core.run.records import CallKind
from coordinator.errors import (
    CommandFailed,
    CoordinatorError,
    PortInUse,
    RevokedToken,
    Unavailable,
)
from coordinator.journal.journal import Journal
from coordinator.journal.sqlite import SqliteJournal
from coordinator.shell.driver import Driver
from coordinator.shell.term import METHODS, Term
from coordinator.shell.transport.connections import (
    keep_threads,
    prepare_process,
    server_options,
)
from coordinator.shell.transport.grpc_server import make_server
from coordinator.shell.transport.interceptor import CallInterceptor
from coordinator.shell.transport.methods import Context, Services, add_methods
from drumbeat.access.local import INSECURE, publish, withdraw
from drumbeat.access.token import NO_CA, Role, Token, parse_token
from drumbeat.command.settings import HostPort
from drumbeat.v1 import control_pb2, query_pb2, session_pb2

log = structlog.get_logger()

# How long calls may take to end by themselves once the coordinator stops; they
# are told at once, so this is for the network alone.
STOP_GRACE_S = 1.0

# Objects that may be made before the garbage among them is looked for. With Python's 700, and all
# modules looked at each time, a tenth of what a thousand arriving agents cost was that.
GARBAGE_BEFORE_COLLECTION = 10_000

_BIND_HINTS = {
    errno.EADDRNOTAVAIL: "--host has to be a name or an address of this machine; "
    "0.0.0.0 and :: stand for all",
    errno.EACCES: "choose a --port above 1023, the ports below belong to the system",
}

# Id of the token for the user that the coordinator runs as; no other token has it.
LOCAL_ID = "hostuser"

SERVICES = tuple(
    service.full_name
    for file in (session_pb2, query_pb2, control_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


Publish = Callable[[str], object]  # takes the text that lets this user in
Published = Callable[[int, str], AbstractContextManager[Publish]]


class Serving(NamedTuple):
    """A coordinator that serves."""

    port: int
    driver: Driver


def run(config: CoordinatorConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ``CommandFailed``."""

    async def serve(
        directory: Path, journal: SqliteJournal, identity: ServerIdentity | None
    ) -> None:
        stopped = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
        published = partial(_published, directory)
        async with serving(config, journal, identity=identity, published=published) as served:
            where = HostPort(config.host, served.port)
            gc.freeze()  # what is there by now stays
            gc.set_threshold(GARBAGE_BEFORE_COLLECTION)
            print(f"coordinator ready at {where}", flush=True)
            told = asyncio.create_task(_tell_how_to_join(where, served.driver, identity, directory))
            await stopped.wait()
            told.cancel()
            log.info("coordinator stopping", reason="it was told to by a signal")

    with ExitStack() as stack:
        directory = Path(
            config.state_dir
            or stack.enter_context(tempfile.TemporaryDirectory(prefix="drumbeat-coordinator-"))
        )
        os.umask(0o077)  # whatever this process writes is private
        prepare_process(config.limits)
        journal = SqliteJournal(directory)
        if not journal.is_local:
            reason = "its file system may be a network's, so each decision takes longer to write"
            log.info("state directory", path=str(directory), reason=reason)
        asyncio.run(serve(directory, journal, _identity(config, directory)))
    return 0


@asynccontextmanager
async def serving(
    config: CoordinatorConfig,
    journal: Journal,
    policy: Policy | None = None,
    *,
    identity: ServerIdentity | None = None,
    published: Published = lambda *_: nullcontext(str),
) -> AsyncIterator[Serving]:
    """Serve as the one coordinator there is while the context is open. Raises ``CommandFailed``.

    Without an identity nothing is encrypted and no caller is asked who it is. ``published`` is
    told the port and what lets this user in, for as long as that does; what it yields is told
    when that is another text.
    """
    server = Server(config, identity, policy)
    term = await server.restored(journal)
    try:
        server.bind()
    except BaseException:
        await journal.close()
        raise
    try:
        await server.lead(term, _crash_if_failed)
        async with server.listening(published) as port:
            yield Serving(port, term.driver)
    finally:
        await term.end()


class Server:
    """Listens from start to end. What it answers is the term's, in which this coordinator leads."""

    def __init__(
        self, config: CoordinatorConfig, identity: ServerIdentity | None, policy: Policy | None
    ) -> None:
        self.term: Term | None = None
        self._config, self._identity = config, identity
        self._policy = _policy(config, policy or Policy())
        self._local = _local_token(identity)
        self._audit = Audit()
        self._health = health.aio.HealthServicer()
        authenticator = self._authenticator()
        self._interceptor = CallInterceptor(
            authenticator, config.limits, on_refused=self._audit.refused
        )
        self._publish_anew: Publish = str
        self._bound: tuple[grpc.aio.Server, int] | None = None

    def bind(self) -> None:
        """Take the port. Raises ``PortInUse``."""
        server, _ = self._bound = _bind(self._config, self._interceptor, self._identity)
        add_methods(server, METHODS, self._find)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        shown = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(shown, server)

    @asynccontextmanager
    async def listening(self, published: Published) -> AsyncIterator[int]:
        """Let callers in; at the end they are told that this stops."""
        assert self._bound is not None, "it has a port"
        server, port = self._bound
        local = INSECURE if self._local is None else self._local.text()
        try:
            # Known before the first caller is let in: an agent that comes back at once looks there.
            with published(port, local) as self._publish_anew:
                await server.start()
                ended = asyncio.create_task(server.wait_for_termination(), name="server")
                ended.add_done_callback(_crash_if_failed)
                yield port
        finally:
            await self._health.enter_graceful_shutdown()
            if self.term is not None:
                self.term.driver.stop(Unavailable("it is stopping"))
            await server.stop(STOP_GRACE_S)

    async def restored(self, journal: Journal) -> Term:
        """Return a term that goes on from a journal. Raises ``CommandFailed``, and closes it."""
        registry, limits = Registry(self._policy), self._config.limits
        driver = Driver(registry, journal, limits, on_serving=self._tell_health)
        try:
            await driver.restore()
        except BaseException:
            await journal.close()
            raise
        driver.on_revoked = self._interceptor.revoke
        term = Term(driver, self._identity, self._audit)
        if self._local is not None:
            term.control.on_replaced = self._replaced
        return term

    async def lead(self, term: Term, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """Serve a term from now on."""
        self.term = term
        term.run(on_end)
        await self._tell_health(True)

    async def _find(self, method: str, context: Context) -> Services:  # noqa: ARG002
        assert self.term is not None, "one leads before callers are let in"
        return self.term.services

    def _replaced(self, keys: list[str]) -> None:
        """Have this user's commands trust the newest authority, before an older one is retired."""
        assert self._local is not None, "there is an authority"
        self._publish_anew(dataclasses.replace(self._local, ca=keys[0]).text())

    def _authenticator(self) -> Authenticator:
        if self._local is None:
            return Open()
        roles = self._config.tls_roles

        def verify(token: Token) -> Caller:
            assert self.term is not None, "one leads before callers are let in"
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

    async def _tell_health(self, is_serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        for name in ("", *SERVICES):
            await self._health.set(name, response.SERVING if is_serving else response.NOT_SERVING)


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
        failures_bytes_least=config.limits.failure_record_bytes_max,
        restart_grace_s=max(base.restart_grace_s, config.lease),
    )


@contextmanager
def _published(directory: Path, port: int, text: str) -> Iterator[Publish]:
    if (path := publish(port, text)) is None:
        reason = "there is no place that only this user can write to"
        log.warning("this user needs a token here as all others do", reason=reason)

    def publish_anew(other: str) -> None:
        nonlocal path, text
        path, text = publish(port, other), other
        with suppress(OSError):  # it still names an authority that vouches for the new one
            pin(directory, parse_token(text).ca)

    try:
        yield publish_anew
    finally:
        if path is not None:
            withdraw(path, text)


def _identity(config: CoordinatorConfig, directory: Path) -> ServerIdentity | None:
    if config.insecure:
        reason = "all who reach its port can read, join and end every run"
        log.warning("nothing is encrypted, and no caller is asked who it is", reason=reason)
        return None
    if config.tls_cert is not None and config.tls_key is not None:
        return OperatorCertificate(config.tls_cert, config.tls_key, config.tls_client_ca)
    return Authority(directory)


async def _tell_how_to_join(
    where: HostPort, driver: Driver, identity: ServerIdentity | None, directory: Path
) -> None:
    """Say it on standard output, unless only callers can be meant that need no token."""
    if identity is None or identity.is_mutual or is_loopback(where.host):
        return
    try:
        token = await join_token(directory, driver, next(iter(identity.keys), NO_CA))
    except (CoordinatorError, OSError) as error:
        log.warning("no token to join with", reason=str(error))
        return
    print(how_to_join(where, token, directory), flush=True)


def _local_token(identity: ServerIdentity | None) -> Token | None:
    """Return what lets the user in that the coordinator runs as, for the life of this process."""
    if identity is None:
        return None
    secret = secrets.token_urlsafe(16)
    return Token(Role.ADMIN, LOCAL_ID, secret, next(iter(identity.keys), NO_CA))


def _bind(
    config: CoordinatorConfig, interceptor: CallInterceptor, identity: ServerIdentity | None
) -> tuple[grpc.aio.Server, int]:
    keep_threads()
    server = make_server([interceptor], server_options(config))
    address = str(HostPort(config.host, config.port))
    try:
        _probe(config)
        if identity is None:
            return server, server.add_insecure_port(address)
        return server, server.add_secure_port(address, identity.server_credentials())
    except (OSError, RuntimeError) as error:
        raise bind_error(config.host, config.port, error) from error


def bind_error(host: str, port: int, error: OSError | RuntimeError) -> PortInUse:
    """Return what to tell the user, with a hint that fits what is wrong."""
    found = PortInUse(host, port, getattr(error, "strerror", None) or str(error))
    is_unknown = isinstance(error, socket.gaierror)
    number = errno.EADDRNOTAVAIL if is_unknown else getattr(error, "errno", 0)
    found.hint = _BIND_HINTS.get(number, found.hint)
    return found


def _probe(config: CoordinatorConfig) -> None:
    """Bind and release the address, because gRPC's own error does not say what is wrong."""
    found = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _crash_if_failed(owner: asyncio.Task[Any]) -> None:
    """End the process if its owner ended: the journal is sound, a new process goes on from it."""
    if owner.cancelled() or (error := owner.exception()) is None:
        return
    if isinstance(error, CommandFailed):  # it could not even start now
        log.critical("coordinator ends", reason=str(error), advice=error.hint)
    else:
        log.critical("coordinator broken", exc_info=error)
    os._exit(1)
