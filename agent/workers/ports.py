"""Shell. Holds ports for the rounds this agent leads, if rank 0 makes the store itself.

A bound socket that does not listen, with ``SO_REUSEADDR``, keeps others from binding the port and
from being given it, while the store of rank 0 (which sets the same option) can bind and listen.
"""

from __future__ import annotations

import errno
import secrets
import socket
from typing import Any


class Ports:
    """Reserved ports by number, of ``allowed``; all may be taken where that is ``None``.

    They are free at ``address``; empty: at every address of each family. A range is gone through,
    so that a round never gets the port of one shortly before it, from a random port on, so that
    agents of one host rarely ask for the same.
    """

    def __init__(self, allowed: range | None = None, address: str = "") -> None:
        self._allowed, self._address = allowed, address
        self._next = secrets.randbelow(len(allowed)) if allowed else 0
        self._held: dict[int, Any] = {}  # what is closed with a port

    def reserve(self) -> int:
        """Hold a free port. Raises ``OSError``, which names the range if none of it is free."""
        port, bound = self._bind_next()
        self._held[port] = self._hold(bound)
        return port

    def keep_only(self, ports: frozenset[int] = frozenset()) -> None:
        """Let all other ports go, with their connections."""
        for port in self._held.keys() - ports:
            self._held.pop(port).close()

    def _hold(self, bound: socket.socket) -> Any:
        return bound

    def _bind_next(self) -> tuple[int, socket.socket]:
        if self._allowed is None:
            return _bind(self._address, 0)
        size = len(self._allowed)
        for step in range(size):
            place = (self._next + step) % size
            try:
                bound = _bind(self._address, self._allowed[place])
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            self._next = (place + 1) % size
            return bound
        first, last = self._allowed[0], self._allowed[-1]
        raise OSError(errno.EADDRINUSE, f"no port of --port-range {first}-{last} is free")


def _bind(address: str, port: int) -> tuple[int, socket.socket]:
    """Bind a port of one address, or of every address of each family; 0: any port."""
    is_dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if is_dual:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address, port))
        # Not before: of two that had it, both could bind the same port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
