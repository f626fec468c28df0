"""Shell. The coordinator's memory across its own death.

A journal keeps the records of each run in order; a run's state is their fold.
The interface is small on purpose, so that a replicated store can take its place.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol, get_args

import msgspec

from coordinator.core.run.records import Record, RunCreated
from coordinator.core.run.state import InvalidTransition, RunState
from coordinator.errors import JournalCorrupt, StateDirectoryInUse
from coordinator.journal.storage import (
    LOCAL_KINDS,
    journal_error,
    kind_of_file_system,
    lock_directory,
)

SCHEMA_VERSION = 1

# A run's records are replaced by one snapshot when this many have come since the
# last one: replaying stays fast and the file stays small, however long a run lives.
RECORDS_PER_SNAPSHOT = 5_000
# A snapshot is as large as its run; in rows of this size it passes no limit of SQLite.
SNAPSHOT_PART_BYTES = 1024 * 1024
# How long a write waits for another program that reads or copies the file.
BUSY_TIMEOUT_S = 5.0
# What the write-ahead log keeps on disk after a write that made it larger.
_LOG_BYTES_MAX = 64 * 1024 * 1024

_SNAPSHOT = "Snapshot"
_SNAPSHOT_PART = "SnapshotPart"  # the snapshot goes on in the run's next row
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Record)}
# What comes of reading and folding rows that this coordinator did not write.
_UNREADABLE = (
    msgspec.MsgspecError,
    InvalidTransition,
    KeyError,
    TypeError,
    ValueError,
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REMEMBER = "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


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
        """Return every run, in order of creation. Raises ``JournalError``."""
        ...

    def load_run(self, run_id: str) -> RunState | None:
        """Return one run, ``None`` if there is none. Raises ``JournalError``."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return how many records each run has since its last snapshot. Raises ``JournalError``."""
        ...

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock.

        Raises ``JournalOutage`` if that is impossible now and may be possible later, and
        ``JournalCorrupt`` or ``StateDirectoryInUse`` if it never will be.
        """
        ...

    def clock_offset(self) -> float:
        """Return what to add to the monotonic clock so that it never runs backwards.

        Raises ``JournalError``.
        """
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class MemoryJournal:
    """A journal that ends with its process: for tests and embedded coordinators."""

    def __init__(self) -> None:
        self._states: dict[str, RunState] = {}

    def load(self) -> list[RunState]:
        """Return every run, in order of creation."""
        return copy.deepcopy(list(self._states.values()))

    def load_run(self, run_id: str) -> RunState | None:
        """Return one run, ``None`` if there is none."""
        return copy.deepcopy(self._states.get(run_id))

    def sizes(self) -> dict[str, int]:
        """Return 0 for each run: only the fold of its records is kept."""
        return dict.fromkeys(self._states, 0)

    def write(self, changes: Sequence[Change], *, now: float) -> None:  # noqa: ARG002
        """Fold the changes in."""
        for change in changes:
            match change:
                case Append():
                    _apply(self._states, change.run_id, change.record)
                case Erase():
                    self._states.pop(change.run_id, None)

    def clock_offset(self) -> float:
        """Return 0."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


class SqliteJournal:
    """A journal in one SQLite file of a private directory, safe against power loss.

    Every ``write`` is one transaction with ``synchronous=EXTRA``: it has reached the
    disk when the call returns. On a local disk it goes to a write-ahead log. That needs
    memory that all who open the file share, which a network file system does not have:
    there SQLite keeps a rollback journal, and each transaction first makes sure that no
    coordinator on another host has taken the file over, whatever its locks are worth.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = lock_directory(directory)
        self._directory = directory
        self._path = directory / "journal.sqlite3"
        self._owner = uuid.uuid4().hex
        self.is_local = kind_of_file_system(directory) in LOCAL_KINDS
        """Whether a write-ahead log is safe there."""
        try:
            with self._errors():
                self._path.touch(mode=0o600)
                # One thread at a time uses it, though not always the same one.
                self._database = sqlite3.connect(
                    self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                )
        except BaseException:
            os.close(self._lock)
            raise
        try:
            with self._errors():
                self._prepare(self._database)
        except BaseException:
            self.close()
            raise

    def load(self) -> list[RunState]:
        """Return every run, in order of creation. Raises ``JournalError``."""
        query = "SELECT run_id, kind, body FROM records ORDER BY number"
        return list(self._read(query, ()).values())

    def load_run(self, run_id: str) -> RunState | None:
        """Return one run, ``None`` if there is none. Raises ``JournalError``."""
        query = "SELECT run_id, kind, body FROM records WHERE run_id = ? ORDER BY number"
        return self._read(query, (run_id,)).get(run_id)

    def sizes(self) -> dict[str, int]:
        """Return how many records each run has since its last snapshot. Raises ``JournalError``."""
        query = (
            "SELECT run_id, COUNT(*) FILTER (WHERE kind NOT IN (?, ?)) FROM records GROUP BY run_id"
        )
        with self._errors():
            return dict(self._database.execute(query, (_SNAPSHOT, _SNAPSHOT_PART)))

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock.

        Raises ``JournalOutage`` if that is impossible now and may be possible later, and
        ``JournalCorrupt`` or ``StateDirectoryInUse`` if it never will be.
        """
        with self._transaction():
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
        anew at a reboot; then time goes on from the last write. Raises ``JournalError``.
        """
        boot_id = _boot_id()
        try:
            with self._errors():
                known = dict(self._database.execute("SELECT name, value FROM facts"))
            offset, clock = (float(known.get(name, 0.0)) for name in ("clock_offset", "clock"))
        except ValueError as error:
            raise JournalCorrupt(str(self._path), str(error)) from error
        if not (isfinite(offset) and isfinite(clock)):
            raise JournalCorrupt(str(self._path), f"its clock is {offset} and {clock}")
        if boot_id != known.get("boot_id", boot_id):
            offset = max(0.0, clock - time.monotonic())
        with self._transaction():
            self._remember("boot_id", boot_id)
            self._remember("clock_offset", str(offset))
        return offset

    def close(self) -> None:
        """Close the file and let another coordinator have the directory."""
        self._database.close()
        os.close(self._lock)

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make the file a journal if it is new, and this coordinator's."""
        database.execute(f"PRAGMA journal_mode={'WAL' if self.is_local else 'DELETE'}")
        database.execute(f"PRAGMA journal_size_limit={_LOG_BYTES_MAX}")
        database.execute("PRAGMA synchronous=EXTRA")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            message = f"it has version {version}, this coordinator reads {SCHEMA_VERSION}"
            raise JournalCorrupt(str(self._path), message)
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT,"
                " run_id TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL)"
            )
            database.execute("CREATE INDEX IF NOT EXISTS by_run ON records (run_id)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
            )
            if version != SCHEMA_VERSION:
                database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            database.execute(_REMEMBER, ("owner", self._owner))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say of what goes wrong with SQLite or the disk what it means for the journal."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise journal_error(error, self._path) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make what is done within durable, all or none, unless another coordinator came."""
        with self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            query = "SELECT value FROM facts WHERE name = 'owner'"
            if self._database.execute(query).fetchone() != (self._owner,):
                raise StateDirectoryInUse(str(self._directory))
            yield

    def _read(self, query: str, arguments: tuple[str, ...]) -> dict[str, RunState]:
        """Fold rows of the journal, by run. Raises ``JournalError``."""
        states: dict[str, RunState] = {}
        order: dict[str, None] = {}  # of first rows: a snapshot's end may come later
        parts: dict[str, list[bytes]] = {}
        try:
            with self._errors():
                for run_id, kind, body in self._database.execute(query, arguments):
                    order.setdefault(run_id)
                    if kind == _SNAPSHOT_PART:
                        parts.setdefault(run_id, []).append(body)
                    elif kind == _SNAPSHOT:
                        whole = b"".join([*parts.pop(run_id, ()), body])
                        states[run_id] = msgspec.json.decode(whole, type=RunState)
                    else:
                        record: Record = msgspec.json.decode(body, type=_KINDS[kind])
                        _apply(states, run_id, record)
        except _UNREADABLE as error:
            raise JournalCorrupt(str(self._path), f"{type(error).__name__}: {error}") from error
        if parts:
            raise JournalCorrupt(str(self._path), f"snapshots without their end: {sorted(parts)}")
        return {run_id: states[run_id] for run_id in order}

    def _append(self, run_id: str, kind: str, body: Record) -> None:
        row = (run_id, kind, msgspec.json.encode(body))
        self._database.execute("INSERT INTO records (run_id, kind, body) VALUES (?, ?, ?)", row)

    def _compact(self, state: RunState) -> None:
        """Put a snapshot in the place of a run's first record, so that runs keep their order.

        If it has several parts, the others come last: only the order within a run counts then.
        """
        query = "SELECT MIN(number) FROM records WHERE run_id = ?"
        number = self._database.execute(query, (state.key,)).fetchone()[0]
        self._erase(state.key)
        body = memoryview(msgspec.json.encode(state))
        statement = "INSERT INTO records (number, run_id, kind, body) VALUES (?, ?, ?, ?)"
        while body:
            part, body = body[:SNAPSHOT_PART_BYTES], body[SNAPSHOT_PART_BYTES:]
            kind = _SNAPSHOT_PART if body else _SNAPSHOT
            self._database.execute(statement, (number, state.key, kind, part))
            number = None

    def _erase(self, run_id: str) -> None:
        self._database.execute("DELETE FROM records WHERE run_id = ?", (run_id,))

    def _remember(self, name: str, value: str) -> None:
        self._database.execute(_REMEMBER, (name, value))


def _apply(states: dict[str, RunState], run_id: str, record: Record) -> None:
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


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "unknown"
