"""Shell. Files that a user names: tokens, keys and certificates.

Links are followed, since secrets of Kubernetes are links; what counts is the file they lead to.
Reading blocks as long as files do.
"""

from __future__ import annotations

import errno
import os
import stat

from drumbeat.access.problem import AccessProblem
from drumbeat.text.format import one_line

TOKEN_BYTES_MAX = 4096
PEM_BYTES_MAX = 1024 * 1024  # a system's collection of all authorities has a quarter of it

# What a file system that is away for a moment does not answer.
_FINAL = frozenset(
    {
        errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
        errno.ENXIO, errno.EPERM,
    }
)  # fmt: skip


def read_private(path: str, what: str, *, bytes_max: int = TOKEN_BYTES_MAX) -> str:
    """Return the text of a file that has a secret. Raises ``AccessProblem``.

    Others must not be able to read it. PostgreSQL's rule: at most 0600 for one of this user's,
    0640 for one of root's, which lets secrets of Kubernetes and groups of services in.
    """
    return _read(path, what, bytes_max, is_private=True)


def read_public(path: str, what: str) -> str:
    """Return the text of a file that everyone may know. Raises ``AccessProblem``."""
    return _read(path, what, PEM_BYTES_MAX, is_private=False)


def _read(path: str, what: str, bytes_max: int, *, is_private: bool) -> str:
    name = f"the {what} {one_line(path)}"
    try:
        with open(path, "rb", opener=_open) as file:
            _check(os.fstat(file.fileno()), name, path, is_private=is_private)
            content = file.read(bytes_max + 1)
        text = content.decode()
    except UnicodeDecodeError as error:
        raise AccessProblem(f"{name} is not text", f"write the {what} itself into it") from error
    except (OSError, ValueError) as error:  # a path with a zero byte is no value
        raise _unreadable(error, name) from error
    if len(content) > bytes_max:
        raise AccessProblem(
            f"{name} is larger than {bytes_max} bytes", f"name a file that has the {what} alone"
        )
    if not text.strip():
        raise AccessProblem(f"{name} is empty", f"write the {what} itself into it")
    return text


def _open(path: str, flags: int) -> int:
    # A pipe that no process writes to must not make us wait.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _check(status: os.stat_result, name: str, path: str, *, is_private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        hint = "it is read again at each connection, which a pipe or device cannot answer"
        raise AccessProblem(f"{name} is no regular file", hint)
    mode = stat.S_IMODE(status.st_mode)
    allowed, of_kubernetes = 0o600, ""
    if status.st_uid == 0:
        allowed, of_kubernetes = 0o640, ", or give the secret of Kubernetes defaultMode: 0440"
    if is_private and mode & 0o077 & ~allowed:
        raise AccessProblem(
            f"{name} is open to other users: its mode is {mode:04o}",
            f"chmod {allowed:o} {one_line(path)}{of_kubernetes}; others may know it by now",
        )


def _unreadable(error: OSError | ValueError, name: str) -> AccessProblem:
    number = error.errno if isinstance(error, OSError) else errno.ENOENT
    if number == errno.ENOENT:
        return AccessProblem(f"{name} does not exist", "its path is relative to where this started")
    if number == errno.EISDIR:
        return AccessProblem(f"{name} is a directory", "name the file in it")
    reason = os.strerror(number) if number else str(error)
    hint = "the user that this runs as has to be able to read it"
    return AccessProblem(
        f"{name} cannot be read: {reason}", hint, is_final=number is not None and number in _FINAL
    )
