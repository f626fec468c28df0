"""Shell. A journal in one SQLite file, with the same keys and values as a journal on etcd.

A file that is not whole is refused: no damage may lose records silently.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import psutil
import structlog
from msgspec import Struct
from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.command.console import close_console
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.effects import Effect
from drumbeat.coordinator.journal import layout, stored
from drumbeat.coordinator.journal.batches import Change, Operation, plan
from drumbeat.coordinator.journal.etcd.model import KeyValue, Put
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import Head, Home, Unreadable
from drumbeat.text.format import count, one_line

log = structlog.get_logger()

FILE = "journal.sqlite3"
# The latest confirmed write, in a file beside the journal. It shows that a journal lost its end,
# for example by one wrong bit in the write-ahead log.
LAST_WRITE = "journal.last-write"
# The certificate authority is made after the journal: alone, it shows that the journal is lost.
_AUTHORITY = "ca.key"

# How long a write waits for another program that reads or copies the file.
BUSY_TIMEOUT_S = 5.0
# How long ``close`` waits for a disk that does not answer.
PATIENCE_S = 5.0
# Size to which the write-ahead log is cut after a write that made it larger.
_LOG_BYTES_MAX = 64 * 1024 * 1024

# File systems that only one machine writes at a time, and on which files can be shared memory. All
# others may be network file systems, and are treated as such.
LOCAL_KINDS = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs"}
    | {"overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Results of SQLite that may pass by themselves. All others mean that the file is damaged.
_PASSING = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    | {sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM}
    | {sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY}
)
# Bytes that are written to see whether there is room: more than a usual batch.
_PROBE_BYTES = 256 * 1024

Result = TypeVar("Result")

KEYS = Keys("journal")

# Values by key, with the numbers of the writes that created and last changed them.
_SCHEMA = """CREATE TABLE IF NOT EXISTS journal (key TEXT PRIMARY KEY, value BLOB NOT NULL,
    created INTEGER NOT NULL, changed INTEGER NOT NULL) WITHOUT ROWID"""
# Casts: one wrong bit can make a value of another type.
_READ = """SELECT key, CAST(value AS BLOB), CAST(created AS INTEGER), CAST(changed AS INTEGER)
    FROM journal ORDER BY key"""
_GET = "SELECT value FROM journal WHERE key = ?"
_PUT = """INSERT INTO journal VALUES (?1, ?2, ?3, ?3)
    ON CONFLICT DO UPDATE SET value = excluded.value, changed = excluded.changed"""
_DELETE = "DELETE FROM journal WHERE key = ?1 OR (key > ?1 AND key < ?2)"
_LAST_WRITE_BYTES = 512
_HINT = (
    "restore the whole directory from a backup, or save what can be read with `coordinator journal "
    "export` and import it into a new directory; then check the tokens: one that was revoked may "
    "be valid again"
)


class LastWrite(Struct, frozen=True):
    """The latest confirmed write."""

    sequence: int
    wall: float


class Inspection(NamedTuple):
    """A journal as it is in its files."""

    pairs: list[KeyValue]
    problem: Unreadable | None  # why a coordinator refuses it


def inspect(directory: Path, *, may_be_new: bool = False) -> Inspection:
    """Read a journal, however damaged, and change nothing. Raises ``JournalOutage``.

    ``may_be_new``: it is no problem if the journal is missing although there was one.
    """
    path, pairs = directory / FILE, list[KeyValue]()
    try:
        if path.exists() and path.stat().st_size:
            # A connection that may write copies the log into the file when it is closed.
            mode = "ro" if path.with_name(f"{FILE}-wal").exists() else "rw"
            database = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
            with closing(database):
                _read_rows(database, pairs)
    except Unreadable as problem:
        return Inspection(pairs, problem)
    except (sqlite3.Error, OSError) as error:
        known = journal_error(error, path)
        if not isinstance(known, errors.JournalCorrupt):
            raise known from error
        return Inspection(pairs, Unreadable(str(error)))
    if not pairs and may_be_new:
        return Inspection(pairs, None)
    return Inspection(pairs, _lost_end(directory, pairs))


def _read_rows(database: sqlite3.Connection, pairs: list[KeyValue]) -> None:
    """Read all rows that can be read. Raises ``Unreadable`` or ``sqlite3.Error`` after that."""
    database.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
    database.text_factory = lambda text: text.decode(errors="backslashreplace")
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if tables and "journal" not in tables:
        before = f"it is of a format before {layout.FORMAT}, which this release does not read"
        raise Unreadable(before if "records" in tables else "it has no table named journal")
    if tables:
        for row in database.execute(_READ):
            pairs.append(KeyValue(*row))  # noqa: PERF401 - rows before an error are kept
        (result,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if result != "ok":
            raise Unreadable(f"its structure is damaged: {one_line(result)}")


def _lost_end(directory: Path, pairs: list[KeyValue]) -> Unreadable | None:
    """Return how a journal lacks confirmed writes, if it does."""
    head, last = Head.none(), _read_last_write(directory)
    for pair in pairs:
        if pair.key == KEYS.head:
            try:
                head = layout.decode_head(KEYS, pair.value)
            except Unreadable as problem:
                return problem
    if pairs and not head.sequence:
        return Unreadable(layout.HEAD_MISSING)
    if last is not None and head.sequence < last.sequence:
        lost = count(last.sequence - head.sequence, "write")
        when, until = (time_of(wall) for wall in (last.wall, head.wall))
        own = f"and its own is number {head.sequence} of {until}" if pairs else "and it is empty"
        what = f"number {last.sequence} of {when} was the last write, {own}"
        return Unreadable(f"{lost} lost: {what}; {_LOST}")
    if not pairs and (directory / _AUTHORITY).exists():
        return Unreadable(f"it is missing or empty, though {_AUTHORITY} was made after it; {_LOST}")
    return None


_LOST = "runs, rounds, tokens and revocations since then are not in it"


def _read_last_write(directory: Path) -> LastWrite | None:
    """Return the latest confirmed write; ``None`` if it is unknown."""
    path = directory / LAST_WRITE
    try:
        value = path.read_bytes().rstrip()
        last: LastWrite = layout.opened(layout.unseal(value).check(LAST_WRITE), LastWrite)
    except FileNotFoundError:
        return None
    except (OSError, Unreadable) as error:
        lost = "whether the journal has lost its end cannot be told this time"
        why = str(error)
        log.warning("a file of the journal is damaged", path=str(path), reason=why, lost=lost)
        return None
    return last


def time_of(wall: float) -> str:
    """Return a date and time in UTC as text; ``wall`` is in seconds since 1970."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class SqliteFile:
    """A SQLite file in a private directory, safe against power loss. Blocks.

    Every ``write`` is one transaction with ``synchronous=EXTRA``: it has reached the disk when
    the call returns. A write-ahead log needs shared memory, which a network file system does not
    have: there SQLite keeps a rollback journal. Each transaction makes sure that no coordinator
    on another host has taken the file over, whatever the file system's locks are worth.

    ``head`` has the term of every coordinator that uses it, and the offset of the clock: after a
    reboot that goes on from the latest write.
    """

    def __init__(
        self, directory: Path, *, may_be_new: bool = False, host: stored.Host | None = None
    ) -> None:
        """Open a journal, or make one. Raises ``CommandFailed`` if it is not whole."""
        self._directory, self._host = directory, host or stored.this_host()
        self._path = directory / FILE
        self._owner = uuid.uuid4().hex.encode()
        self._homes: dict[str, Home] | None = None  # read when they are needed
        with ExitStack() as opened:
            opened.callback(os.close, lock_directory(directory))
            # Whether a write-ahead log is safe on this file system.
            self.is_local = kind_of_file_system(directory) in LOCAL_KINDS
            if (problem := inspect(directory, may_be_new=may_be_new).problem) is not None:
                raise stored.unreadable(str(self._path), problem, _HINT)
            with self._errors():
                self._path.touch(mode=0o600)
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._last_write = os.open(directory / LAST_WRITE, flags, 0o600)
                opened.callback(os.close, self._last_write)
                # One thread at a time uses it, not always the same one.
                self._database = sqlite3.connect(
                    self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                )
                opened.callback(self._database.close)
                self._prepare()
            self._opened = opened.pop_all()

    def load(self) -> stored.Loaded:
        """Read everything. Raises ``CommandFailed``."""
        with self._errors():
            rows = self._database.execute(_READ)
            loaded = stored.load(KEYS, [KeyValue(*row) for row in rows])
        self._homes = {run.key: run.home for run in loaded.contents.runs}
        return loaded

    def write(self, changes: Sequence[Change], *, now: float) -> None:
        """Make the changes durable, all or none; ``now`` is the coordinator's clock.

        Raises ``JournalOutage`` for what may pass, else ``JournalCorrupt`` or ``LostLeadership``.
        """
        if self._homes is None:
            self.load()
        assert self._homes is not None, "just read"
        number = self.head.batch + 1
        batch = plan(changes, number=number, keys=KEYS, homes=self._homes, release=VERSION)
        operations = [operation for group in batch.transactions for operation in group]
        self._commit(
            replace(self.head, batch=number, clock=now, wall=self._host.wall()), operations
        )
        self._homes = batch.homes

    def go_on(self, *, clock: float, term: int) -> None:
        """Set the coordinator's clock and the term. Raises ``CommandFailed``."""
        offset = clock - self._host.monotonic()
        self._commit(replace(self.head, clock=clock, offset=offset, term=term))

    def close(self) -> None:
        """Close the file and let another coordinator have the directory."""
        self._opened.close()

    def _prepare(self) -> None:
        """Make a new file a journal, and take it over for this coordinator."""
        database = self._database
        database.execute(f"PRAGMA journal_mode={'WAL' if self.is_local else 'DELETE'}")
        database.execute(f"PRAGMA journal_size_limit={_LOG_BYTES_MAX}")
        database.execute("PRAGMA synchronous=EXTRA")
        database.execute(_SCHEMA)
        row = database.execute(_GET, (KEYS.head,)).fetchone()
        before = Head.none() if row is None else layout.decode_head(KEYS, row[0])
        self.head = self._host.take_over(before, counts_downtime=False)
        with database:
            database.execute(_PUT, (KEYS.leader, self._owner, self.head.sequence))
        self._commit(self.head)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into errors of the journal."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise journal_error(error, self._path) from error

    def _commit(self, head: Head, operations: Iterable[Operation] = ()) -> None:
        """Do the next write, all or nothing. Raises ``LostLeadership``."""
        head = replace(head, sequence=self.head.sequence + 1)
        value = layout.encode_head(KEYS, head, release=VERSION)
        with self._errors(), self._database as database:
            database.execute("BEGIN IMMEDIATE")
            if database.execute(_GET, (KEYS.leader,)).fetchone() != (self._owner,):
                raise errors.LostLeadership(str(self._directory))
            for operation in (*operations, Put(KEYS.head, value)):
                if isinstance(operation, Put):
                    row = (operation.key, operation.value, head.sequence)
                    database.execute(_PUT, row)
                else:
                    database.execute(_DELETE, (operation.key, operation.end))
        self.head = head
        last = msgspec.json.encode(LastWrite(head.sequence, head.wall))
        sealed, _ = layout.seal(LAST_WRITE, last, release=VERSION)
        # Not synchronized: after a power loss it may be behind the journal, never ahead.
        with suppress(OSError):
            os.pwrite(self._last_write, sealed.ljust(_LAST_WRITE_BYTES), 0)


class SqliteJournal(stored.StoredJournal):
    """A ``SqliteFile`` in a thread, so that the event loop does not wait for the disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__(KEYS)
        self._file = SqliteFile(directory)
        self.is_local = self._file.is_local
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def load(self) -> float:
        """Read everything; return the offset of the clock."""
        self._adopt(await self._call(self._file.load))
        self.term = self._file.head.term
        return self._file.head.offset

    async def write(self, effects: Sequence[Effect], *, now: float) -> None:
        """Make changes durable. A write that is cancelled may still succeed."""
        if changes := self.changes(effects):
            await self._call(partial(self._file.write, changes, now=now))
            self.take(changes)

    async def close(self) -> None:
        """Close the file once the call in progress, if any, has returned.

        If it does not return in time, this ends the process, which could not end otherwise.
        """
        closed = self._thread.submit(self._file.close)
        self._thread.shutdown(wait=False)
        try:
            closed.result(timeout=PATIENCE_S)
        except TimeoutError:
            log.critical("coordinator ends", reason="the disk of the journal does not answer")
            close_console()
            os._exit(1)

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def kind_of_file_system(directory: Path) -> str:
    """Return the type of the file system of a directory; empty if it is unknown."""
    here = directory.resolve()
    kinds: dict[int, str] = {}  # by depth; a later mount may hide an earlier one
    with suppress(OSError):  # no /proc
        for mount in psutil.disk_partitions(all=True):
            point = Path(mount.mountpoint)
            if here.is_relative_to(point):
                kinds[len(point.parts)] = mount.fstype
    return kinds[max(kinds)] if kinds else ""


def lock_directory(directory: Path) -> int:
    """Create the directory if it is missing, and lock it for the life of this process."""
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
    """Return the error of the journal that an error of SQLite or the system means.

    SQLite does not always recognize a full disk, and never says why it could not write. So this
    writes a file beside the journal to see what the system says.
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
    """Write a file as large as the journal's files. Raises the system's error."""
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
