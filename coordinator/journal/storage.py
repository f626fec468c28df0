"""Shell. The disk below the journal: whose directory it is, of what kind, and why it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import psutil

from coordinator.errors import (
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalOutage,
    StateDirectoryInUse,
    StateDirectoryUnusable,
)

# Kinds of file systems that only one machine writes at a time and on which memory
# may be shared through a file. Any other may be a network's, and is taken for one.
LOCAL_KINDS = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs"}
    | {"overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# What may pass without the file having been touched. With any other result
# SQLite says that the file is not what it should be.
_PASSING = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    | {sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM}
    | {sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY}
)
# How much is written to find out whether there is room: more than a usual batch.
_PROBE_BYTES = 256 * 1024


def kind_of_file_system(directory: Path) -> str:
    """Return what the system calls the file system of a directory; empty if it does not say."""
    here = directory.resolve()
    kinds: dict[int, str] = {}  # by depth; a later mount may hide an earlier one
    with suppress(OSError):  # no /proc
        for mount in psutil.disk_partitions(all=True):
            point = Path(mount.mountpoint)
            if here.is_relative_to(point):
                kinds[len(point.parts)] = mount.fstype
    return kinds[max(kinds)] if kinds else ""


def lock_directory(directory: Path) -> int:
    """Create the directory if need be and lock it for the life of this process."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        kind = JournalFull if error.errno in _FULL else StateDirectoryUnusable
        raise kind(str(directory), _reason(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise StateDirectoryInUse(str(directory)) from None
        why = f"it cannot be locked: {_reason(error)}"  # a network file system without locks
        raise StateDirectoryUnusable(str(directory), why) from error
    return lock


def journal_error(error: sqlite3.Error | OSError, path: Path) -> JournalError:
    """Say what is wrong with the journal at ``path``.

    SQLite tells a full disk from others only sometimes and never says why it could
    not write, so the system is asked by writing beside it.
    """
    if isinstance(error, OSError):
        kind = JournalFull if error.errno in _FULL else JournalOutage
        return kind(str(path), _reason(error))
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code not in _PASSING:
        return JournalCorrupt(str(path), str(error))
    if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        try:
            _probe(path)
        except OSError as reason:
            return journal_error(reason, path)
    kind = JournalFull if code == sqlite3.SQLITE_FULL else JournalOutage
    return kind(str(path), str(error))


def _reason(error: OSError) -> str:
    limit = ", for a limit of this process (ulimit -f)" if error.errno == errno.EFBIG else ""
    return f"{error.strerror or error}{limit}"


def _probe(journal: Path) -> None:
    """Write as far into a file as the journal's files reach. Raises what keeps it from that."""
    files = (journal, journal.with_name(f"{journal.name}-wal"))
    size = max((file.stat().st_size for file in files if file.exists()), default=0)
    path = journal.with_name("probe")
    try:
        with path.open("wb") as file:
            file.seek(size)
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
