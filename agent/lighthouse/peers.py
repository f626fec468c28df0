"""Shell. Which process is at the other end of a connection over loopback; proc_pid_net(5)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

_LOOPBACK = "0100007F"
_ESTABLISHED = "01"


def is_of_descendant(port: int, own_port: int) -> bool:
    """Return whether a process below this one holds the connection from ``port``. Blocks.

    Linear in processes of this host and open files of those below this one.
    """
    if (inode := _inode_of(port, own_port)) is None:
        return False
    name = f"socket:[{inode}]"
    return any(_holds(process.pid, name) for process in psutil.Process().children(recursive=True))


def _inode_of(port: int, own_port: int) -> str | None:
    local, remote = (f"{_LOOPBACK}:{number:04X}" for number in (port, own_port))
    for table in ("tcp", "tcp6"):  # some programs use sockets of IPv6 for addresses of IPv4
        path = Path(f"/proc/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            is_it = fields[1].endswith(local) and fields[2].endswith(remote)
            if is_it and fields[3] == _ESTABLISHED:
                return fields[9]
    return None


def _holds(pid: int, name: str) -> bool:
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(fd.readlink()) == name:
                    return True
    return False
