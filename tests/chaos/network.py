"""Hosts of a round: namespaces of network and name in this process's hands, and one wire.

Needs root, ``/dev/net/tun`` and namespaces; ``missing()`` says what there is not.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PR_SET_PDEATHSIG = 1
_MTU = 9000
_KINDS = {"net": CLONE_NEWNET, "uts": CLONE_NEWUTS}
_LIBC = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """Return why there can be no networks of our own here; empty: there can."""
    if os.geteuid() != 0:
        return "only root makes namespaces"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    tried = subprocess.run(
        ["unshare", "-n", "-u", "-m", "-p", "--fork", "ip", "link", "set", "lo", "up"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


def unshare(kinds: int) -> None:
    """Give this process, or its children, namespaces of their own. Raises ``OSError``."""
    if _LIBC.unshare(kinds):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def mount(path: Path, *options: str, source: str = "none") -> None:
    """Mount something in the namespace of this process."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *options, source, str(path)], check=True)


def enter_namespaces() -> None:
    """Go on in a child, the second process of new namespaces of processes and mounts.

    This process ends as the child does. The first process of the namespace reaps orphans, and
    with it everything ends. To be called before there are threads.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    unshare(CLONE_NEWPID | CLONE_NEWNS)
    if first := os.fork():
        os._exit(_exit_code(os.waitpid(first, 0)[1]))
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if child := os.fork():
        while True:
            pid, status = os.wait()
            if pid == child:
                os._exit(_exit_code(status))
    mount(Path("/proc"), "-t", "proc")


def _exit_code(status: int) -> int:
    return os.waitstatus_to_exitcode(status) & 0xFF


class Host:
    """One host: the namespaces that its processes are started in."""

    def __init__(self, number: int, name: str, namespaces: Mapping[str, int]) -> None:
        self.number, self.name = number, name
        self.address = address_of(number)
        self._namespaces = namespaces

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with to run there."""
        paths = (
            f"--{kind}=/proc/{os.getpid()}/fd/{descriptor}"
            for kind, descriptor in self._namespaces.items()
        )
        return ("nsenter", *paths, "--")


def address_of(number: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{number}"


class Network:
    """All hosts and the wire between them; a context manager.

    To be made before there are threads: this process stays on the first host, and makes the
    namespaces of the others in passing.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._tuns: list[int] = []
        self.hosts: dict[str, Host] = {}
        names = list(names)
        for number, name in reversed(list(enumerate(names, start=1))):
            self.hosts[name] = self._make(number, name)
        self._tuns.reverse()
        self._links: dict[tuple[str, str], dict[str, float]] = {}

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        passed = [theirs.fileno(), *self._tuns]
        self._wire = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.wire", *map(str, passed)], pass_fds=passed
        )
        theirs.close()
        for tun in self._tuns:
            os.close(tun)
        self._apply()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._control.close()
        self._wire.wait()

    def _make(self, number: int, name: str) -> Host:
        unshare(CLONE_NEWNET | CLONE_NEWUTS)
        socket.sethostname(name)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"wire", _IFF_TUN | _IFF_NO_PI))
        self._tuns.append(tun)
        commands = (
            "link set lo up\n"
            f"link set wire mtu {_MTU} up\n"
            f"address add {address_of(number)}/24 dev wire\n"
        )
        subprocess.run(["ip", "-batch", "-"], input=commands.encode(), check=True)
        namespaces = {
            kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS
        }
        return Host(number, name, namespaces)

    def impair(self, links: Iterable[tuple[str, str]], fault: Mapping[str, float]) -> None:
        """Let links have a fault, in one direction each; an empty one heals them."""
        for link in links:
            self._links.pop(link, None)
            if fault:
                self._links[link] = dict(fault)
        self._apply()

    def heal(self) -> None:
        """Have no fault on any link."""
        self._links.clear()
        self._apply()

    def _apply(self) -> None:
        rules: list[Any] = [
            (self.hosts[source].number, self.hosts[to].number, fault)
            for (source, to), fault in self._links.items()
        ]
        self._control.sendall(json.dumps(rules).encode() + b"\n")
        answer = self._control.recv(64)
        assert answer == b"done\n", "the wire has ended"
