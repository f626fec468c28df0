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
    mounts = []
    with suppress(OSError):  # no /proc
        mounts = psutil.disk_partitions(all=True)
    kind, depth = "", -1
    for mount in mounts:  # a later one may hide an earlier one
        point = Path(mount.mountpoint)
        if here.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = mount.fstype, len(point.parts)
    return kind


def lock_directory(directory: Path) -> int:
    """Create the directory if need be and lock it for the life of this process."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _FULL:
            raise JournalFull(str(directory), _reason(error)) from error
        raise StateDirectoryUnusable(str(directory), _reason(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StateDirectoryInUse(str(directory)) from None
    except OSError as error:  # a network file system without locks
        os.close(lock)
        why = f"it cannot be locked: {_reason(error)}"
        raise StateDirectoryUnusable(str(directory), why) from error
    return lock


def journal_error(error: sqlite3.Error | OSError, path: Path) -> JournalError:
    """Say what is wrong with the journal at ``path``.

    SQLite tells a full disk from others only sometimes and never says why it could
    not write, so the system is asked by writing beside it.
    """
    if isinstance(error, OSError):
        return _of_system(error, path)
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code & 0xFF not in _PASSING:
        return JournalCorrupt(str(path), str(error))
    if code & 0xFF not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        try:
            _probe(path.parent)
        except OSError as reason:
            return _of_system(reason, path)
    kind = JournalFull if code & 0xFF == sqlite3.SQLITE_FULL else JournalOutage
    return kind(str(path), str(error))


def _of_system(error: OSError, path: Path) -> JournalError:
    kind = JournalFull if error.errno in _FULL else JournalOutage
    return kind(str(path), _reason(error))


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        return f"{reason}, for a limit of this process (ulimit -f)"
    return reason


def _probe(directory: Path) -> None:
    """Write as far into a file as the journal's files reach. Raises what keeps it from that."""
    sizes = [0]
    for name in ("journal.sqlite3", "journal.sqlite3-wal"):
        with suppress(FileNotFoundError):
            sizes.append((directory / name).stat().st_size)
    path = directory / "probe"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = max(sizes) + _PROBE_BYTES
        offset = max(sizes)
        while offset < end:
            offset += os.pwrite(file, bytes(end - offset), offset)
        os.fsync(file)
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
