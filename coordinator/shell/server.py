"""Shell. The gRPC server of ``coordinator serve``: start, serve, stop in order."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from coordinator.access.audit import Audit
from coordinator.config import CoordinatorConfig
from coordinator.core.model import Pace
from coordinator.core.policy import Policy
from coordinator.core.registry.registry import Registry
from coordinator.errors import CommandFailed, CoordinatorError, PortInUse, Unavailable
from coordinator.journal.sqlite import SqliteJournal
from coordinator.shell.connections import prepare_process, server_options
from coordinator.shell.control_service import ControlService
from coordinator.shell.driver import Driver
from coordinator.shell.query_service import QueryService
from coordinator.shell.sessions import Sessions
from coordinator.wire.session import error_detail
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

Context = grpc.aio.ServicerContext[Any, Any]

# How long calls may take to end by themselves once the coordinator stops; they
# are told at once, so this is for the network alone.
STOP_GRACE_S = 1.0

_BIND_HINTS = {
    errno.EADDRNOTAVAIL: "--host has to be a name or an address of this machine; "
    "0.0.0.0 and :: stand for all",
    errno.EACCES: "choose a --port above 1023, the ports below belong to the system",
}

# Trailing metadata of a refused call: an encoded `drumbeat.v1.ErrorDetail`.
ERROR_KEY = "drumbeat-error-bin"

SERVICES = tuple(
    service.full_name
    for file in (session_pb2, query_pb2, control_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


def run(config: CoordinatorConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ``CommandFailed``."""

    async def serve(journal: SqliteJournal) -> None:
        stopped = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
        async with serving(config, journal) as port:
            print(f"coordinator ready at {HostPort(config.host, port)}", flush=True)
            await stopped.wait()
            log.info("coordinator stopping", reason="it was told to by a signal")

    with ExitStack() as stack:
        directory = config.state_dir or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="drumbeat-coordinator-")
        )
        os.umask(0o077)  # whatever this process writes is private
        prepare_process(config.limits)
        journal = SqliteJournal(Path(directory))
        if not journal.is_local:
            reason = "its file system may be a network's, so each decision takes longer to write"
            log.info("state directory", path=directory, reason=reason)
        asyncio.run(serve(journal))
    return 0


@asynccontextmanager
async def serving(
    config: CoordinatorConfig, journal: SqliteJournal, policy: Policy | None = None
) -> AsyncIterator[int]:
    """Serve while the context is open; yields the port. Raises ``CommandFailed``."""
    status = health.aio.HealthServicer()
    policy = policy or Policy()
    policy = replace(
        policy,
        base_pace=Pace(
            heartbeat_interval_s=config.heartbeat_interval,
            lease_s=config.lease,
            reconnect_delay_max_s=1.0,
        ),
        failures_bytes_least=config.limits.failure_record_bytes_max,
        restart_grace_s=max(policy.restart_grace_s, config.lease),
    )
    try:
        told = partial(_tell_health, status)
        driver = Driver(Registry(policy), journal, config.limits, on_serving=told)
        await driver.restore()
        server, port = await _start(config, driver, status)
    except BaseException:
        await journal.close()
        raise
    owner = asyncio.create_task(driver.run(), name="driver")
    owner.add_done_callback(_crash_if_failed)
    try:
        yield port
    finally:
        await status.enter_graceful_shutdown()
        driver.stop(Unavailable("it is stopping"))
        await server.stop(STOP_GRACE_S)
        owner.cancel()
        with suppress(asyncio.CancelledError):
            await owner


async def _start(
    config: CoordinatorConfig, driver: Driver, status: health.aio.HealthServicer
) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options(config))
    sessions = Sessions(driver)
    agents: Any = SimpleNamespace(
        OpenSession=_stream(sessions.open), ReportFailures=_stream(sessions.report)
    )
    queries: Any = QueryService(driver)
    control: Any = ControlService(driver, None, Audit())
    session_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
    query_pb2_grpc.add_QueryServiceServicer_to_server(queries, server)
    control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    shown = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(shown, server)
    try:
        _probe(config)
        port = server.add_insecure_port(str(HostPort(config.host, config.port)))
    except (OSError, RuntimeError) as error:
        raise bind_error(config.host, config.port, error) from error
    await server.start()
    await _tell_health(status, True)
    return server, port


def _stream(hold: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def handle(_: object, context: Context) -> None:
        await hold(_Requests(context), context.write)

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


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a ``CoordinatorError`` into its status: the one place where that happens."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_translated(handler.unary_unary), *codecs)
        if iscoroutinefunction(handler.stream_stream):  # ours; that of reflection yields
            behaviour = _translated(handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(behaviour, *codecs)
        return handler


def _translated(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await behaviour(request, context)
        except CoordinatorError as error:
            metadata = ((ERROR_KEY, error_detail(error).SerializeToString()),)
            await context.abort(grpc.StatusCode[error.status], str(error), metadata)

    return call


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


def _crash_if_failed(owner: asyncio.Task[None]) -> None:
    """End the process if its owner ended: the journal is sound, a new process goes on from it."""
    if owner.cancelled() or (error := owner.exception()) is None:
        return
    if isinstance(error, CommandFailed):  # it could not even start now
        log.critical("coordinator ends", reason=str(error), advice=error.hint)
    else:
        log.critical("coordinator broken", exc_info=error)
    os._exit(1)
