"""Shell. Holds ports for the rounds this agent leads, if rank 0 makes the store itself.

A bound socket that does not listen, with ``SO_REUSEADDR``, keeps others from binding the port and
from being given it, while the store of rank 0 (which sets the same option) can bind and listen.
"""

from __future__ import annotations

import errno
import secrets
import socket


class Ports:
    """Reserved ports by number, of ``allowed``; all may be taken where that is ``None``."""

    def __init__(self, allowed: range | None = None) -> None:
        self._allowed = Rotation(allowed)
        self._sockets: dict[int, socket.socket] = {}

    def reserve(self) -> int:
        """Hold a port free on every address of each family; ``OSError`` if there is none left."""
        port, holder = self._allowed.bind()
        self._sockets[port] = holder
        return port

    def keep_only(self, ports: frozenset[int] = frozenset()) -> None:
        """Let all other ports go."""
        for port in self._sockets.keys() - ports:
            self._sockets.pop(port).close()


class Rotation:
    """Takes the ports of a range in turn: a round never gets the port of one shortly before it.

    The first is chosen at random, so that agents of one host rarely ask for the same.
    """

    def __init__(self, allowed: range | None = None) -> None:
        self._allowed = allowed
        self._next = secrets.randbelow(len(allowed)) if allowed else 0

    def bind(self, address: str = "") -> tuple[int, socket.socket]:
        """Return a free port, and a socket that is bound to it, at all addresses unless given.

        Raises ``OSError``, which names the range if none of it is free.
        """
        if self._allowed is None:
            return _bind(address, 0)
        size = len(self._allowed)
        for step in range(size):
            place = (self._next + step) % size
            try:
                bound = _bind(address, self._allowed[place])
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
