"""Shell. The coordinator's memory across its own death.

A journal keeps the records of each run in order; a run's state is their fold.
The interface is small on purpose, so that a replicated store can take its place.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol, get_args

import msgspec

from coordinator.errors import JournalCorrupt, StateDirectoryInUse, StateDirectoryUnusable
from coordinator.records import Record, RunCreated
from coordinator.run_state import InvalidTransition, RunState

SCHEMA_VERSION = 1

# A run's records are replaced by one snapshot when this many have come since the
# last one: replaying stays fast and the file stays small, however long a run lives.
RECORDS_PER_SNAPSHOT = 5_000

_SNAPSHOT = "Snapshot"
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Record)}
# What rows of another hand make of reading and folding them.
_UNREADABLE = (
    sqlite3.Error,
    msgspec.MsgspecError,
    InvalidTransition,
    KeyError,
    TypeError,
    ValueError,
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add a record to a run."""

    run_id: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Replace all records of a run by the state they fold into."""

    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Remove a run."""

    run_id: str


Change = Append | Compact | Erase


class Journal(Protocol):
    """Where records are kept. One owner; calls never overlap."""

    def load(self) -> list[RunState]:
        """Return every run, in order of creation. Raises ``JournalCorrupt``."""
        ...

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock."""
        ...

    def clock_offset(self) -> float:
        """Return what to add to the monotonic clock so that it never runs backwards.

        Raises ``JournalCorrupt``.
        """
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class MemoryJournal:
    """A journal that ends with its process: for tests and embedded coordinators."""

    def load(self) -> list[RunState]:
        """Return nothing: there was no life before this one."""
        return []

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Forget the changes."""

    def clock_offset(self) -> float:
        """Return 0."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


class SqliteJournal:
    """A journal in one SQLite file of a private directory, safe against power loss.

    Every ``write`` is one transaction in WAL mode with ``synchronous=FULL``: it
    has reached the disk when the call returns.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = _lock_directory(directory)
        self._path = directory / "journal.sqlite3"
        try:
            self._database = self._open()
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise JournalCorrupt(str(self._path), str(error)) from error

    def load(self) -> list[RunState]:
        """Return every run, in order of creation. Raises ``JournalCorrupt``."""
        states: dict[str, RunState] = {}
        try:
            rows = self._database.execute("SELECT run_id, kind, body FROM records ORDER BY number")
            for run_id, kind, body in rows:
                _fold(states, run_id, kind, body)
        except _UNREADABLE as error:
            raise JournalCorrupt(str(self._path), f"{type(error).__name__}: {error}") from error
        return list(states.values())

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock."""
        with self._database:
            for change in changes:
                match change:
                    case Append():
                        self._append(change.run_id, type(change.record).__name__, change.record)
                    case Compact():
                        self._compact(change.state)
                    case Erase():
                        self._erase(change.run_id)
            self._remember("clock", str(now))

    def clock_offset(self) -> float:
        """Return what to add to the monotonic clock so that it never runs backwards.

        The monotonic clock goes on across a restart of the process, but starts
        anew at a reboot; then time goes on from the last write. Raises ``JournalCorrupt``.
        """
        boot_id = _boot_id()
        try:
            known = dict(self._database.execute("SELECT name, value FROM facts"))
            offset, clock = (float(known.get(name, 0.0)) for name in ("clock_offset", "clock"))
        except (sqlite3.Error, ValueError, msgspec.MsgspecError) as error:
            raise JournalCorrupt(str(self._path), str(error)) from error
        if not (isfinite(offset) and isfinite(clock)):
            raise JournalCorrupt(str(self._path), f"its clock is {offset} and {clock}")
        if boot_id != known.get("boot_id", boot_id):
            offset = max(0.0, clock - time.monotonic())
        with self._database:
            self._remember("boot_id", boot_id)
            self._remember("clock_offset", str(offset))
        return offset

    def close(self) -> None:
        """Close the file and let another coordinator have the directory."""
        self._database.close()
        os.close(self._lock)

    def _open(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)
        # One thread at a time uses it, though not always the same one.
        database = sqlite3.connect(self._path, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            message = f"it has version {version}, this coordinator reads {SCHEMA_VERSION}"
            raise sqlite3.DatabaseError(message)
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT,"
                " run_id TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL)"
            )
            database.execute("CREATE INDEX IF NOT EXISTS by_run ON records (run_id)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
            )
            database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        return database

    def _append(self, run_id: str, kind: str, body: Record) -> None:
        row = (run_id, kind, msgspec.json.encode(body))
        self._database.execute("INSERT INTO records (run_id, kind, body) VALUES (?, ?, ?)", row)

    def _compact(self, state: RunState) -> None:
        """Put a snapshot in the place of a run's first record, so that runs keep their order."""
        query = "SELECT MIN(number) FROM records WHERE run_id = ?"
        number = self._database.execute(query, (state.key,)).fetchone()[0]
        self._erase(state.key)
        row = (number, state.key, _SNAPSHOT, msgspec.json.encode(state))
        statement = "INSERT INTO records (number, run_id, kind, body) VALUES (?, ?, ?, ?)"
        self._database.execute(statement, row)

    def _erase(self, run_id: str) -> None:
        self._database.execute("DELETE FROM records WHERE run_id = ?", (run_id,))

    def _remember(self, name: str, value: str) -> None:
        statement = (
            "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        )
        self._database.execute(statement, (name, value))


def _fold(states: dict[str, RunState], run_id: str, kind: str, body: bytes) -> None:
    if kind == _SNAPSHOT:
        states[run_id] = msgspec.json.decode(body, type=RunState)
        return
    record: Record = msgspec.json.decode(body, type=_KINDS[kind])
    if isinstance(record, RunCreated):
        states[run_id] = RunState.created(record)
    else:
        states[run_id].apply(record)


def snapshots_due(sizes: dict[str, int], appended: Iterable[str]) -> list[str]:
    """Count appended records by run in ``sizes``; return the runs due for a snapshot."""
    due: list[str] = []
    for run_id in appended:
        sizes[run_id] = sizes.get(run_id, 0) + 1
        if sizes[run_id] >= RECORDS_PER_SNAPSHOT:
            sizes[run_id] = 0
            due.append(run_id)
    return due


def _lock_directory(directory: Path) -> int:
    """Create the directory if need be and lock it for the life of this process."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirectoryUnusable(str(directory), error.strerror or str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StateDirectoryInUse(str(directory)) from None
    return lock


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "unknown"
