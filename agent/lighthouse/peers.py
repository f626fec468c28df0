"""Shell. Which process is at the other end of a connection over loopback."""

from __future__ import annotations

import psutil

_LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1")  # some programs use sockets of IPv6 for IPv4


def is_of_descendant(port: int, own_port: int) -> bool:
    """Return whether a process below this one holds the connection from ``port``. Blocks.

    Linear in processes of this host and open files of this user.
    """
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    ends = [((ip, port), (ip, own_port)) for ip in _LOOPBACK]
    return any(
        connection.pid in below and (connection.laddr, connection.raddr) in ends
        for connection in psutil.net_connections("tcp")
    )
