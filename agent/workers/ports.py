"""Shell. Holds ports for the rounds this agent leads, if rank 0 makes the store itself.

A bound socket that does not listen, with ``SO_REUSEADDR``, keeps others from binding the port and
from being given it, while the store of rank 0 (which sets the same option) can bind and listen.
"""

from __future__ import annotations

import socket


class Ports:
    """Reserved ports by number."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def reserve(self) -> int:
        """Hold a port free on every address of each family; ``OSError`` if there is none left."""
        port, holder = bind_anywhere()
        self._sockets[port] = holder
        return port

    def keep_only(self, ports: frozenset[int] = frozenset()) -> None:
        """Let all other ports go."""
        for port in self._sockets.keys() - ports:
            self._sockets.pop(port).close()


def bind_anywhere() -> tuple[int, socket.socket]:
    """Return a free port of every address of each family, and a socket that is bound to it."""
    is_dual = socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if is_dual:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("", 0))
    except OSError:
        bound.close()
        raise
    return bound.getsockname()[1], bound


def bind_loopback(address: str) -> tuple[int, socket.socket]:
    """Return a free port of a loopback address, and a socket that is bound to it alone."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, 0))
    except OSError:
        bound.close()
        raise
    return bound.getsockname()[1], bound


def address_towards(host: str, port: int) -> str:
    """Return the address of this host from which ``host`` is reached; sends nothing.

    Workers of other hosts are most likely to reach it there. Raises ``OSError`` if
    the name does not resolve or there is no route.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
