"""Shell. Where an agent keeps files of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from agent.errors import LogDirectoryUnusable

SOCKET_PATH_BYTES_MAX = 107
"""Longest path of a unix socket on Linux."""

SHORT_TEMPORARY = "/tmp"  # noqa: S108 - a private directory is made in it
"""Where paths of sockets are short enough, if that of the temporary directory is not."""

_BELOW_AGENT_BYTES = 40
"""Room for the name of an agent's directory, and of what is in it."""

_LOCK = "lock"
_NEW = ".new-"


def spool_directory(run_id: str) -> Path:
    """Return this user's private directory for undelivered failure records of a run.

    On the host's own temporary file system, so that a later agent of the same run
    on the same host finds what an earlier one could not deliver.
    Raises ``LogDirectoryUnusable`` if somebody else made it.
    """
    base = _base_directory(tempfile.gettempdir())
    try:
        directory = base / "spool" / run_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LogDirectoryUnusable(str(base), error.strerror or str(error)) from error
    return directory


class AgentDirectory:
    """This agent's own private directory, until ``close``; short enough for a unix socket.

    Whoever makes one removes those of agents that are no more: nobody holds their lock.
    Raises ``LogDirectoryUnusable``.
    """

    def __init__(self) -> None:
        temporary = tempfile.gettempdir()
        length = len(os.fsencode(temporary)) + len(f"/drumbeat-{os.getuid()}/agents/")
        if length + _BELOW_AGENT_BYTES > SOCKET_PATH_BYTES_MAX:
            temporary = SHORT_TEMPORARY
        base = _base_directory(temporary)
        try:
            parent = base / "agents"
            parent.mkdir(mode=0o700, exist_ok=True)
            _remove_abandoned(parent)
            # Locked before it has its name: without a lock it would pass for abandoned.
            made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
            self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.path = made.rename(parent / made.name.removeprefix(_NEW))
        except OSError as error:
            raise LogDirectoryUnusable(str(base), error.strerror or str(error)) from error

    def close(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.iterdir():
        if directory.name.startswith(_NEW):
            continue  # about to be locked
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being removed
        try:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def _base_directory(temporary: str) -> Path:
    """Return this user's private directory. Raises ``LogDirectoryUnusable``."""
    base = Path(temporary) / f"drumbeat-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or base.is_symlink():
            raise LogDirectoryUnusable(str(base), "it is not a private directory of this user")
    except OSError as error:
        raise LogDirectoryUnusable(str(base), error.strerror or str(error)) from error
    return base
