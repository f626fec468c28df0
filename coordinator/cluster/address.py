"""Shell. Where a coordinator is reached from other machines."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

from drumbeat.command.settings import HostPort, parse_host_port
from drumbeat.coordinator.config import CoordinatorConfig


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
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # nothing is sent
                return str(probe.getsockname()[0])
    return ""
