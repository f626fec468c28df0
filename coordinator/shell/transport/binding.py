"""Shell. Where a coordinator listens, and the address at which other machines reach it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from typing import Any

import grpc

from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import PortInUse
from drumbeat.coordinator.frontends.server import FrontEndServer, Listen
from drumbeat.coordinator.shell.transport.connections import (
    keep_threads,
    server_options,
    silence_max_s,
)
from drumbeat.coordinator.shell.transport.grpc_server import make_server
from drumbeat.text.addresses import HostPort, parse_host_port

_BIND_HINTS = {
    errno.EADDRNOTAVAIL: "--host has to be a name or an address of this machine; "
    "0.0.0.0 and :: stand for all",
    errno.EACCES: "choose a --port above 1023, the ports below belong to the system",
}


def bound(
    config: CoordinatorConfig,
    interceptor: grpc.aio.ServerInterceptor,
    identity: ServerIdentity | None,
) -> tuple[grpc.aio.Server | FrontEndServer, int]:
    """Return a server that has its port, and the port. Raises ``PortInUse``."""
    address = str(HostPort(config.host, config.port))
    try:
        _probe(config)
        if config.frontends:
            listen = Listen(config.host, config.port, server_options(config), silence_max_s(config))
            shared = FrontEndServer(config.frontends, listen, interceptor, identity)
            return shared, shared.bind(*_address(config))
        keep_threads()
        server = make_server([interceptor], server_options(config))
        if identity is None:
            return server, server.add_insecure_port(address)
        return server, server.add_secure_port(address, identity.server_credentials())
    except (OSError, RuntimeError) as error:
        raise bind_error(config.host, config.port, error) from error


def bind_error(host: str, port: int, error: OSError | RuntimeError) -> PortInUse:
    """Return what to tell the user, with a hint that fits what is wrong."""
    problem = PortInUse(host, port, getattr(error, "strerror", None) or str(error))
    is_unknown = isinstance(error, socket.gaierror)
    number = errno.EADDRNOTAVAIL if is_unknown else getattr(error, "errno", 0)
    problem.hint = _BIND_HINTS.get(number, problem.hint)
    return problem


def check_port(config: CoordinatorConfig) -> None:
    """Raise ``PortInUse`` if the port cannot be had at present."""
    try:
        _probe(config)
    except OSError as error:
        raise bind_error(config.host, config.port, error) from error


def _probe(config: CoordinatorConfig) -> None:
    """Bind and release the address, because gRPC's own error does not say what is wrong."""
    family, address = _address(config)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _address(config: CoordinatorConfig) -> tuple[int, Any]:
    """Return the family and the address to listen at. Blocks as long as the name service does."""
    addresses = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = addresses[0]
    return family, address


def advertised(config: CoordinatorConfig, port: int) -> HostPort:
    """Return the address that others are told, of a coordinator that listens on a port.

    Blocks as long as the name service does.
    """
    if config.advertise is not None:
        return parse_host_port(config.advertise, port)
    if not _is_unspecified(config.host):
        return HostPort(config.host, port)
    if config.journal is not None:
        for endpoint in config.journal.endpoints:
            if address := _address_towards(endpoint):
                return HostPort(address, port)
    return HostPort(socket.gethostname(), port)


def _is_unspecified(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _address_towards(where: HostPort) -> str:
    """Return which address of this host is used on the way to another; empty if there is no way."""
    with suppress(OSError):
        addresses = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in addresses:
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # nothing is sent
                return str(probe.getsockname()[0])
    return ""
