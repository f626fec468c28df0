"""Shell. How a coordinator lets its own user in on its own host: a file that only that user reads.

It has a token, or the word ``insecure``. It lies where both sides look whatever their environments
say, so not below ``$XDG_RUNTIME_DIR`` or ``$XDG_STATE_HOME``; and first in the home directory,
because ``/run/user`` ends with the user's last login, which a coordinator may outlive.

Against other users of the host: the directory and the file have to be this user's own, open to no
other, and no links; everything is done below the directory that was opened and looked at. Who
can write further up, in a home that a group may write to, can take the directory away, and cannot
put one in its place that would be read.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from drumbeat.access.problem import AccessProblem
from drumbeat.access.token import parse_token
from drumbeat.text.addresses import HostPort

INSECURE = "insecure"
FILES_MAX = 256  # in a directory; which of them are of another host's boot cannot be told
TEXT_BYTES_MAX = 1024
LISTENERS_BYTES_MAX = 256 * 1024  # of the kernel's table, with 150 a line

_NAME = re.compile(r"[0-9]{1,5}-[0-9a-f]{16}(\.[0-9a-f]{8})?", re.ASCII)
_LISTENS = b"0A"  # TCP_LISTEN
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


def publish(port: int, text: str) -> Path | None:
    """Write what lets this user in to the coordinator that listens on a port; return the file.

    None if there is no place for it: its user needs a token then, as all others. What an earlier
    coordinator left for this port is replaced: one that was killed cannot take its file back,
    and no coordinator knows the token in it any more. Blocks as long as files do.
    """
    name = _name(port)
    for base, below in _places():
        with suppress(OSError), _opened(_make(base, below)) as folder:
            _write(folder, name, text)
            _forget_oldest(folder, name)
            return base / below / name
    return None


def withdraw(path: Path, text: str) -> None:
    """Remove the file, unless it is another coordinator's by now.

    To be called while the port is still taken, so that there is no other one. Blocks as long as
    files do.
    """
    with suppress(OSError, ValueError), _opened(path.parent) as folder:
        if _read(folder, path.name) == text:
            os.unlink(path.name, dir_fd=folder)


def find(port: int) -> str | None:
    """Return what the coordinator of this user on this host has written for a port, if any has.

    A token's text, or ``insecure``. Blocks as long as files do.
    """
    name = _name(port)
    for base, below in _places():
        with suppress(OSError, ValueError), _opened(base / below) as folder:
            text = _read(folder, name)
            return text if text == INSECURE else parse_token(text).text()
    return None


def is_this_host(where: HostPort) -> bool:
    """Whether an address is one of this host's. Blocks as long as the name service does.

    Raises ``AccessProblem`` if it does not know the name.
    """
    try:
        addresses = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:  # the latter for what no name can be
        reason = getattr(error, "strerror", "") or error
        problem = f"the host {where.host} is not known: {reason}"
        raise AccessProblem(problem, "--coordinator takes HOST:PORT", is_final=False) from error
    return any(_is_own_address(family, address) for family, *_, address in addresses)


def is_listened_at(port: int) -> bool:
    """Whether any user of this host listens on a port."""
    return any(at == port for at, _ in _listeners())


def is_of_another_user(port: int) -> bool:
    """Whether another user of this host listens on a port."""
    return any(at == port and user != os.geteuid() for at, user in _listeners())


def _listeners() -> Iterator[tuple[int, int]]:
    """Return at which ports of this host which users listen."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError), Path("/proc/net", table).open("rb") as file:
            # Those that listen come first.
            for line in file.read(LISTENERS_BYTES_MAX).splitlines()[1:]:
                _, address, _, state, _, _, _, user, *_ = *line.split(), *(b"",) * 8
                if state == _LISTENS and user:
                    yield int(address.rpartition(b":")[2], 16), int(user)


def _places() -> list[tuple[Path, str]]:
    """Return where the directory may be, the best first: below what has to be there already."""
    user = os.geteuid()
    homes: list[str] = []
    with suppress(KeyError):  # a container's user may have no entry
        homes.append(pwd.getpwuid(user).pw_dir)
    with suppress(RuntimeError):
        homes.append(str(Path.home()))
    return [
        *((Path(home), ".local/state/drumbeat/access") for home in homes if home.startswith("/")),
        (Path(f"/run/user/{user}"), "drumbeat"),
        (Path("/tmp"), f"drumbeat-{user}"),  # noqa: S108 - another user may be first: not used then
    ]


def _name(port: int) -> str:
    """Return the file's name: hosts may share a home, and ports are of a network namespace."""
    where = b""
    with suppress(OSError):
        where = _BOOT.read_bytes()
    with suppress(OSError):
        where += b"%d" % _NETWORK.stat().st_ino
    return f"{port}-{hashlib.blake2s(where, digest_size=8).hexdigest()}"


def _make(base: Path, below: str) -> Path:
    path = base
    for part in Path(below).parts:
        path /= part
        path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    """Open a directory of ours. Raises ``OSError`` if it is none."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str) -> str:
    """Return the text of a file of ours. Raises ``OSError`` or ``ValueError`` if it is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, dir_fd=folder)
    try:
        _check(file)
        return os.read(file, TEXT_BYTES_MAX).decode("ascii")
    finally:
        os.close(file)


def _write(folder: int, name: str, text: str) -> None:
    made = f"{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(made, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(file, 0o600)  # a umask may have taken something away
            _check(file)  # some file systems have one owner and mode for all
            os.write(file, text.encode("ascii"))
        finally:
            os.close(file)
        os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise


def _check(file: int) -> None:
    status = os.fstat(file)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o077:
        raise PermissionError


def _forget_oldest(folder: int, written: str) -> None:
    """Keep the directory small; a coordinator whose file goes so still takes tokens.

    Those that nothing listens for on this host go first, and those that something does go last.
    """
    names = [name for name in os.listdir(folder) if _NAME.fullmatch(name) and name != written]
    if (surplus := len(names) + 1 - FILES_MAX) <= 0:
        return
    ports = {port for port, _ in _listeners()}
    here = written.partition("-")[2]
    ranked: list[tuple[int, float, str]] = []
    for name in names:
        port, _, where = name.partition(".")[0].partition("-")
        rank = 1 if where != here else 2 if int(port) in ports else 0
        with suppress(OSError):
            mtime = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            ranked.append((rank, mtime, name))
    for _, _, name in sorted(ranked)[:surplus]:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _is_own_address(family: int, address: tuple[Any, ...]) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address[0], 0, *address[2:]))  # only those of this host can be bound
        return True
    return False
