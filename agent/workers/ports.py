"""Shell. Ports held for the rounds this agent leads.

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
        is_dual = socket.has_dualstack_ipv6()
        holder = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if is_dual:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
        except OSError:
            holder.close()
            raise
        port: int = holder.getsockname()[1]
        self._sockets[port] = holder
        return port

    def keep_only(self, ports: frozenset[int] = frozenset()) -> None:
        """Let all other ports go."""
        for port in self._sockets.keys() - ports:
            self._sockets.pop(port).close()


def address_towards(host: str, port: int) -> str:
    """Return the address of this host from which ``host`` is reached; sends nothing.

    Workers of other hosts are most likely to reach it there. Raises ``OSError`` if
    the name does not resolve or there is no route.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
