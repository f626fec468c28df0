"""Pure. Addresses as they are written and read: ``host``, ``host:port``, ``[ipv6]:port``."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

PORT_DEFAULT = 29400  # torchrun's rendezvous port, so that firewalls opened for it fit
COORDINATORS_MAX = 16  # of one cluster; two or three are enough
ALLOWED = "HOST:PORT, HOST or [IPV6]:PORT, with a port from 1 to 65535"
_HOST_PORT = re.compile(
    r"(?:\[([^]]*)\]|([A-Za-z0-9_][A-Za-z0-9_.-]{0,252}))(?::([0-9]{1,5}))?", re.ASCII
)


class HostPort(NamedTuple):
    """An address to connect to; ``str()`` gives what gRPC takes, with IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(given: str, port_default: int = PORT_DEFAULT) -> HostPort:
    """Read ``host``, ``host:port``, ``[ipv6]`` or ``[ipv6]:port``. ``ValueError`` for any other."""
    match = _HOST_PORT.fullmatch(str.strip(given))
    in_brackets, name, digits = match.groups() if match else ("", "", "")
    try:
        host, port = name or str(ipaddress.IPv6Address(in_brackets)), int(digits or port_default)
    except ValueError:
        host, port = "", 0
    if not 1 <= port <= 65535:
        raise ValueError(f"{given!r} is not an address: give {ALLOWED}")
    return HostPort(host, port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``: 127.0.0.0/8, ::1 or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def parse_addresses(given: str) -> tuple[str, ...]:
    """Read addresses that stand between commas, as ``parse_host_port``, each as gRPC takes it."""
    parts = [part.strip() for part in str.split(given, ",")]
    if len(parts) > 1 and not all(parts):
        raise ValueError(f"{given!r} has an empty address: give one between two commas")
    addresses = [str(parse_host_port(part)) for part in parts]
    if twice := [address for address in addresses if addresses.count(address) > 1]:
        raise ValueError(f"{twice[0]} is given twice: give each address once")
    if len(addresses) > COORDINATORS_MAX:
        problem = f"{len(addresses)} addresses are given, allowed are up to {COORDINATORS_MAX}"
        raise ValueError(f"{problem}: those of one cluster")
    return tuple(addresses)
