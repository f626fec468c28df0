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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
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
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

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
from coordinator.journal.sqlite import SqliteJournal
from coordinator.shell.connections import (
    keep_threads,
    prepare_process,
    server_options,
)
from coordinator.shell.control_service import ControlService
from coordinator.shell.driver import Driver
from coordinator.shell.grpc_server import make_server
from coordinator.shell.interceptor import CallInterceptor, Context, caller_of
from coordinator.shell.query_service import QueryService
from coordinator.shell.sessions import Sessions
from drumbeat.access.local import INSECURE, publish, withdraw
from drumbeat.access.token import NO_CA, Role, Token, parse_token
from drumbeat.command.settings import HostPort
from drumbeat.v1 import (
    control_pb2,
    control_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)

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
    journal: SqliteJournal,
    policy: Policy | None = None,
    *,
    identity: ServerIdentity | None = None,
    published: Callable[[int, str], AbstractContextManager[Publish]] = lambda *_: nullcontext(str),
) -> AsyncIterator[Serving]:
    """Serve while the context is open. Raises ``CommandFailed``.

    Without an identity nothing is encrypted and no caller is asked who it is. ``published`` is
    told the port and what lets this user in, for as long as that does; what it yields is told
    when that is another text.
    """
    status = health.aio.HealthServicer()
    try:
        told = partial(_tell_health, status)
        driver = Driver(
            Registry(_policy(config, policy or Policy())), journal, config.limits, on_serving=told
        )
        await driver.restore()
        local = _local_token(identity)
        audit = Audit()
        interceptor = CallInterceptor(
            _authenticator(config, driver, local),
            config.limits,
            on_refused=audit.refused,
        )
        driver.on_revoked = interceptor.revoke
        if identity is not None and len(identity.keys) > 1:
            driver.announce(identity.keys)
        server, port = _bind(config, interceptor, identity)
        control = ControlService(driver, identity, audit, caller_of)
        _add_services(server, driver, control, status)
    except BaseException:
        await journal.close()
        raise
    owner = asyncio.create_task(driver.run(), name="driver")
    owner.add_done_callback(_crash_if_failed)
    try:
        # Known before the first caller is let in: an agent that comes back at once looks there.
        with published(port, local.text() if local is not None else INSECURE) as publish_anew:
            if local is not None:
                control.on_replaced = partial(_pin, local, publish_anew)
            await server.start()
            ended = asyncio.create_task(server.wait_for_termination(), name="server")
            ended.add_done_callback(_crash_if_failed)
            await _tell_health(status, True)
            yield Serving(port, driver)
    finally:
        await status.enter_graceful_shutdown()
        driver.stop(Unavailable("it is stopping"))
        await server.stop(STOP_GRACE_S)
        owner.cancel()
        with suppress(asyncio.CancelledError):
            await owner


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


def _pin(local: Token, publish_anew: Publish, keys: list[str]) -> None:
    """Have this user's commands trust the newest authority, before an older one is retired."""
    publish_anew(dataclasses.replace(local, ca=keys[0]).text())


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


def _authenticator(config: CoordinatorConfig, driver: Driver, local: Token | None) -> Authenticator:
    if local is None:
        return Open()

    def verify(token: Token) -> Caller:
        try:
            return driver.tokens.verify(token, now=driver.now())
        except RevokedToken as error:
            driver.note(error.run_id, CallKind.ACCESS_REFUSED, token.token_id, str(error))
            raise

    def of_certificate(properties: Mapping[str, Iterable[bytes]]) -> Caller:
        return caller_of_names(names_of(properties), config.tls_roles)

    mutual = of_certificate if config.tls_client_ca is not None else None
    return Authenticator(verify, local=local, of_certificate=mutual)


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


def _add_services(
    server: grpc.aio.Server, driver: Driver, control: Any, status: health.aio.HealthServicer
) -> None:
    sessions = Sessions(driver)

    async def report_stacks(request: Any, context: Context) -> Any:
        return await sessions.report_stacks(request, caller_of(context))

    agents: Any = SimpleNamespace(
        OpenSession=_stream(sessions.open),
        ReportFailures=_stream(sessions.report),
        ReportStacks=report_stacks,
        ReportLogs=_stream(sessions.report_logs),
    )
    queries: Any = QueryService(driver, caller_of)
    session_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
    query_pb2_grpc.add_QueryServiceServicer_to_server(queries, server)
    control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    shown = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(shown, server)


def _stream(hold: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def handle(_: object, context: Context) -> None:
        await hold(_Requests(context), context.write, caller_of(context))

    return handle


class _Requests:
    """What a caller says. An object and not a generator: one that is left is no task's to close."""

    def __init__(self, context: Context) -> None:
        self._read = context.read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if (message := await self._read()) is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


async def _tell_health(status: health.aio.HealthServicer, is_serving: bool) -> None:
    response = health_pb2.HealthCheckResponse
    for name in ("", *SERVICES):
        await status.set(name, response.SERVING if is_serving else response.NOT_SERVING)


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
