"""Shell. A journal in one SQLite file: records of each run in order or their snapshot; tokens."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import psutil
import structlog

from coordinator import errors
from coordinator.access.token_table import KeptToken, TokenTable
from coordinator.core.effects import Effect, Forget, KeepDrain, KeepForgets, KeepToken, Persist
from coordinator.core.model import KeptDrain
from coordinator.core.run.records import Record
from coordinator.core.run.state import InvalidTransition, RunState
from coordinator.journal.changes import Change, Compact
from coordinator.journal.journal import Journal, JournaledRuns

log = structlog.get_logger()

FILE = "journal.sqlite3"
SCHEMA_VERSION = 1

# A snapshot is as large as its run; in rows of this size it passes no limit of SQLite.
SNAPSHOT_PART_BYTES = 1024 * 1024
# How long a write waits for another program that reads or copies the file.
BUSY_TIMEOUT_S = 5.0
# How long the end of the process waits for a disk that does not answer.
PATIENCE_S = 5.0
# What the write-ahead log keeps on disk after a write that made it larger.
_LOG_BYTES_MAX = 64 * 1024 * 1024

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

Result = TypeVar("Result")

_SNAPSHOT = "Snapshot"
_SNAPSHOT_PART = "SnapshotPart"  # the snapshot goes on in the run's next row
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Record)}
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_run ON records (run_id);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version={SCHEMA_VERSION};
"""
# Not in the schema above: files of before have none, and coordinators of before pass it over.
_TOKENS = "CREATE TABLE IF NOT EXISTS tokens (token_id TEXT PRIMARY KEY, body BLOB NOT NULL)"
_KEEP = "INSERT INTO tokens VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body"
_DROP = "DELETE FROM tokens WHERE token_id = ?"
# As above.
_DRAINS = """CREATE TABLE IF NOT EXISTS drains (run_id TEXT NOT NULL, name TEXT NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (run_id, name))"""
_KEEP_DRAIN = "INSERT OR REPLACE INTO drains VALUES (?, ?, ?)"
_DROP_DRAIN = "DELETE FROM drains WHERE run_id = ? AND name = ?"
# The number None stands for the next one.
_INSERT = "INSERT INTO records (number, run_id, kind, body) VALUES (?, ?, ?, ?)"
_ERASE = "DELETE FROM records WHERE run_id = ?"
_FORGETS = "forgets"  # the fact that has the ids of calls
_REMEMBER = "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


class SqliteFile:
    """A SQLite file in a private directory, safe against power loss. Blocks.

    Every ``write`` is one transaction with ``synchronous=EXTRA``: it has reached the disk when
    the call returns. A write-ahead log needs shared memory, which a network file system does not
    have: there SQLite keeps a rollback journal. Each transaction makes sure that no coordinator
    on another host has taken the file over, whatever the file system's locks are worth.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._owner = uuid.uuid4().hex
        with ExitStack() as opened:
            opened.callback(os.close, lock_directory(directory))
            # Whether a write-ahead log is safe there.
            self.is_local = kind_of_file_system(directory) in LOCAL_KINDS
            with self._errors():
                self._path.touch(mode=0o600)
                # One thread at a time uses it, though not always the same one.
                self._database = sqlite3.connect(
                    self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                )
                opened.callback(self._database.close)
                self._prepare()
            self._opened = opened.pop_all()

    def load(self) -> JournaledRuns:
        """Return every run, in order of creation. Raises ``CommandFailed``."""
        runs = JournaledRuns()
        order: dict[str, None] = {}  # of first rows: a snapshot's end may come later
        parts: dict[str, list[bytes]] = {}
        query = "SELECT number, run_id, kind, body FROM records ORDER BY number"
        where = ""
        try:
            with self._errors():
                for number, key, kind, body in self._database.execute(query):
                    where = f"record {number}, of run {key}: "
                    order.setdefault(key)
                    if kind == _SNAPSHOT_PART:
                        parts.setdefault(key, []).append(body)
                    elif kind == _SNAPSHOT:
                        whole = b"".join([*parts.pop(key, ()), body])
                        runs.put(msgspec.json.decode(whole, type=RunState))
                    else:
                        record: Record = msgspec.json.decode(body, type=_KINDS[kind])
                        runs.take([Persist(run_id=key, record=record)])
        # What comes of reading and folding rows that this coordinator did not write.
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError, InvalidTransition) as error:
            raise self._corrupt(f"{where}{type(error).__name__}: {error}") from error
        if parts:
            raise self._corrupt(f"snapshots without their end: {sorted(parts)}")
        runs.states = {key: runs.states[key] for key in order}
        return runs

    def load_tokens(self) -> TokenTable:
        """Return every token, in order of creation. Raises ``CommandFailed``."""
        table = TokenTable()
        query = "SELECT token_id, body FROM tokens ORDER BY rowid"
        try:
            with self._errors():
                for token_id, body in self._database.execute(query):
                    table.put(token_id, msgspec.json.decode(body, type=KeptToken))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise self._corrupt(f"{type(error).__name__}: {error}") from error
        if strays := [key for key, token in table.tokens.items() if token.token_id != key]:
            raise self._corrupt(f"tokens under the ids of others: {strays}")
        return table

    def load_drains(self) -> dict[tuple[str, str], KeptDrain]:
        """Return every drain, in the order of their last changes. Raises ``CommandFailed``."""
        query = "SELECT body FROM drains ORDER BY rowid"
        try:
            with self._errors():
                rows = self._database.execute(query)
                drains = [msgspec.json.decode(body, type=KeptDrain) for (body,) in rows]
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise self._corrupt(f"{type(error).__name__}: {error}") from error
        return {drain.key: drain for drain in drains}

    def load_forgets(self) -> tuple[str, ...]:
        """Return the ids of the calls that made runs forgotten. Raises ``CommandFailed``."""
        query = "SELECT value FROM facts WHERE name = ?"
        try:
            with self._errors():
                rows = self._database.execute(query, (_FORGETS,)).fetchall()
                return msgspec.json.decode(rows[0][0], type=tuple[str, ...]) if rows else ()
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise self._corrupt(f"{type(error).__name__}: {error}") from error

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock.

        Raises ``JournalOutage`` if that is impossible now and may be possible later, and
        ``JournalCorrupt`` or ``LostLeadership`` if it never will be.
        """
        with self._transaction():
            for change in changes:
                match change:
                    case Persist(run_id=key, record=record):
                        row = (None, key, type(record).__name__, msgspec.json.encode(record))
                        self._database.execute(_INSERT, row)
                    case Forget(run_id=key):
                        self._database.execute(_ERASE, (key,))
                    case KeepToken(token_id=token_id, token=None):
                        self._database.execute(_DROP, (token_id,))
                    case KeepToken(token_id=token_id, token=token):
                        body = msgspec.json.encode(token)
                        self._database.execute(_KEEP, (token_id, body))
                    case KeepDrain(drain=drain, is_kept=True):
                        body = msgspec.json.encode(drain)
                        self._database.execute(_KEEP_DRAIN, (*drain.key, body))
                    case KeepDrain(drain=drain):
                        self._database.execute(_DROP_DRAIN, drain.key)
                    case KeepForgets(calls=calls):
                        listed = msgspec.json.encode(calls).decode()
                        self._database.execute(_REMEMBER, (_FORGETS, listed))
                    case Compact(state):
                        self._compact(state)
            self._database.execute(_REMEMBER, ("clock", str(now)))

    def clock_offset(self) -> float:
        """Return what to add to the monotonic clock so that it never runs backwards.

        The monotonic clock goes on across a restart of the process, but starts
        anew at a reboot; then time goes on from the last write. Raises ``CommandFailed``.
        """
        boot_id = _boot_id()
        try:
            with self._errors():
                known = dict(self._database.execute("SELECT name, value FROM facts"))
            offset, clock = (float(known.get(name, 0.0)) for name in ("clock_offset", "clock"))
        except ValueError as error:
            raise self._corrupt(str(error)) from error
        if not (isfinite(offset) and isfinite(clock)):
            raise self._corrupt(f"its clock is {offset} and {clock}")
        if boot_id != known.get("boot_id", boot_id):
            offset = max(0.0, clock - time.monotonic())
        with self._transaction():
            facts = (("boot_id", boot_id), ("clock_offset", str(offset)))
            self._database.executemany(_REMEMBER, facts)
        return offset

    def load_term(self) -> int:
        """Return the term of all coordinators that use this journal. Raises ``CommandFailed``."""
        query = "SELECT value FROM facts WHERE name = 'term'"
        try:
            with self._errors():
                rows = self._database.execute(query).fetchall()
            return int(rows[0][0]) if rows else Journal.term
        except ValueError as error:
            raise self._corrupt(f"its term is none: {error}") from error

    def go_on(self, *, clock: float, term: int) -> None:
        """Let the coordinator's clock show this now, in this term. Raises ``CommandFailed``."""
        facts = {
            "boot_id": _boot_id(),
            "clock_offset": str(clock - time.monotonic()),
            "clock": str(clock),
            "term": str(term),
        }
        with self._transaction():
            self._database.executemany(_REMEMBER, facts.items())

    def count_records(self) -> int:
        """Return how many records and parts of snapshots there are. Raises ``CommandFailed``."""
        with self._errors():
            count: int = self._database.execute("SELECT COUNT(*) FROM records").fetchone()[0]
        return count

    def size_bytes(self) -> int:
        """Return the size of its files. Raises ``CommandFailed``."""
        with self._errors():
            log_file = self._path.with_name(f"{FILE}-wal")
            return sum(each.stat().st_size for each in (self._path, log_file) if each.exists())

    def close(self) -> None:
        """Close the file and let another coordinator have the directory."""
        self._opened.close()

    def _prepare(self) -> None:
        """Make the file a journal if it is new, and this coordinator's."""
        database = self._database
        database.execute(f"PRAGMA journal_mode={'WAL' if self.is_local else 'DELETE'}")
        database.execute(f"PRAGMA journal_size_limit={_LOG_BYTES_MAX}")
        database.execute("PRAGMA synchronous=EXTRA")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            database.executescript(_SCHEMA)
        elif version != SCHEMA_VERSION:
            why = f"it has version {version}, this coordinator reads {SCHEMA_VERSION}"
            raise self._corrupt(why)
        with database:
            database.execute(_TOKENS)
            database.execute(_DRAINS)
            database.execute(_REMEMBER, ("owner", self._owner))

    def _corrupt(self, why: str) -> errors.JournalCorrupt:
        return errors.JournalCorrupt(str(self._path), why)

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
                raise errors.LostLeadership(str(self._directory))
            yield

    def _compact(self, state: RunState) -> None:
        """Put a snapshot in the place of a run's first record: runs keep their order.

        Further parts come last: only the order within a run counts then.
        """
        query = "SELECT MIN(number) FROM records WHERE run_id = ?"
        number = self._database.execute(query, (state.key,)).fetchone()[0]
        self._database.execute(_ERASE, (state.key,))
        body = memoryview(msgspec.json.encode(state))
        while body:
            part, body = body[:SNAPSHOT_PART_BYTES], body[SNAPSHOT_PART_BYTES:]
            kind = _SNAPSHOT_PART if body else _SNAPSHOT
            self._database.execute(_INSERT, (number, state.key, kind, part))
            number = None


class SqliteJournal(Journal):
    """A ``SqliteFile`` behind a thread: SQLite waits for the disk, the event loop does not."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._file = SqliteFile(directory)
        self.is_local = self._file.is_local
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def load(self) -> float:
        """Read everything; return the offset of the clock."""
        self.runs = await self._call(self._file.load)
        self.tokens = await self._call(self._file.load_tokens)
        self.drains = await self._call(self._file.load_drains)
        self.forgets = await self._call(self._file.load_forgets)
        self.term = await self._call(self._file.load_term)
        return await self._call(self._file.clock_offset)

    async def write(self, effects: Sequence[Effect], *, now: float) -> None:
        """Make durable what is to be kept. A write that is given up may still succeed."""
        if changes := self.changes(effects):
            await self._call(partial(self._file.write, changes, now=now))
            self.take(changes)

    async def close(self) -> None:
        """Close the file once the call in progress, if any, has returned.

        If it does not, the process ends here: with a thread that waits for a disk it can't else.
        """
        closed = self._thread.submit(self._file.close)
        self._thread.shutdown(wait=False)
        try:
            closed.result(timeout=PATIENCE_S)
        except TimeoutError:
            log.critical("coordinator ends", reason="the disk of the journal does not answer")
            os._exit(1)

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "unknown"


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
        kind = errors.JournalFull if error.errno in _FULL else errors.StateDirectoryUnusable
        raise kind(str(directory), _reason(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise errors.StateDirectoryInUse(str(directory)) from None
        why = f"it cannot be locked: {_reason(error)}"  # a network file system without locks
        raise errors.StateDirectoryUnusable(str(directory), why) from error
    return lock


def journal_error(error: sqlite3.Error | OSError, path: Path) -> errors.CommandFailed:
    """Say what is wrong with the journal at ``path``.

    SQLite tells a full disk from others only sometimes and never says why it could
    not write, so the system is asked by writing beside it.
    """
    if isinstance(error, OSError):
        kind = errors.JournalFull if error.errno in _FULL else errors.JournalOutage
        return kind(str(path), _reason(error))
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code not in _PASSING:
        return errors.JournalCorrupt(str(path), str(error))
    if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        try:
            _probe(path)
        except OSError as reason:
            return journal_error(reason, path)
    kind = errors.JournalFull if code == sqlite3.SQLITE_FULL else errors.JournalOutage
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
