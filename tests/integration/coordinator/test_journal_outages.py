"""A journal that can't be written: what is said, what is kept, and whose it is in the end."""

import errno
import os
import resource
import sqlite3
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from drumbeat.coordinator.core.effects import Forget, Persist
from drumbeat.coordinator.core.model import FailureRecord, RunSpec, WorkerRanks
from drumbeat.coordinator.core.run.records import AgentAdmitted, FailureRecorded, RunCreated
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import (
    JournalCorrupt,
    JournalFull,
    JournalOutage,
    LostLeadership,
    StateDirectoryUnusable,
)
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal import sqlite as journal_module
from drumbeat.coordinator.journal.batches import Compact
from drumbeat.coordinator.journal.sqlite import SqliteFile
from tests.support.world import an_agent

SPEC = RunSpec(agents_min=1, agents_max=2)


def created(run_id: str) -> Persist:
    return Persist(run_id=run_id, record=RunCreated(run_id=run_id, spec=SPEC))


def admitted(run_id: str, name: str) -> Persist:
    return Persist(run_id=run_id, record=AgentAdmitted(agent=an_agent(name)))


def failed(sequence: int, message: str) -> FailureRecorded:
    worker = WorkerRanks(rank=0, local_rank=0, group_rank=0, role_rank=0, role="default")
    record = FailureRecord(
        incarnation="a.1", sequence=sequence, round_id=0, host="a", worker=worker, message=message
    )
    return FailureRecorded(record=record)


@contextmanager
def no_room() -> Iterator[None]:
    """Let no file of this process grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def opened(directory: Path) -> closing[SqliteFile]:
    return closing(SqliteFile(directory))


def names(journal: SqliteFile) -> list[str]:
    return [state.run_id for state in journal.load().runs.states.values()]


# What is said at the start.


def test_a_start_without_room_says_so_and_touches_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write([created("r")], now=1.0)
    with no_room(), pytest.raises(JournalFull, match="has no room to grow: File too large") as full:
        SqliteFile(tmp_path)
    assert "leave it where it is" in full.value.hint
    with opened(tmp_path) as journal:
        assert names(journal) == ["r"]
    assert not (tmp_path / "probe").exists()


def test_a_start_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.Path.mkdir", mkdir)
    with pytest.raises(JournalFull, match="No space left on device"):
        SqliteFile(tmp_path)


def test_a_journal_that_cannot_be_opened_is_not_called_corrupt(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").mkdir()
    with pytest.raises(JournalOutage, match="unable to open database file") as caught:
        SqliteFile(tmp_path)
    assert "leave it where it is" in caught.value.hint


def test_a_journal_that_another_program_holds_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path):
        pass
    monkeypatch.setattr(journal_module, "BUSY_TIMEOUT_S", 0.0)
    with sqlite3.connect(tmp_path / "journal.sqlite3") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalOutage, match="database is locked"):
            SqliteFile(tmp_path)
    other.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, JournalFull),
        (errno.EDQUOT, JournalFull),
        (errno.EROFS, JournalOutage),
        (errno.EACCES, JournalOutage),
        (errno.EIO, JournalOutage),
    ],
)
def test_what_the_system_says_counts_where_sqlite_is_vague(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[JournalOutage]
) -> None:
    vague = sqlite3.OperationalError("disk I/O error")
    vague.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE

    def fsync(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.os.fsync", fsync)
    error = journal_module.journal_error(vague, tmp_path / "journal.sqlite3")
    assert type(error) is expected
    assert os.strerror(code) in str(error)


def test_a_file_without_sense_is_corrupt_even_without_room(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").write_text("this is no database, but long enough\n" * 50)
    with no_room(), pytest.raises(JournalCorrupt, match=r"journal\.sqlite3.*not a database"):
        SqliteFile(tmp_path)
    (tmp_path / "journal.sqlite3").unlink()
    SqliteFile(tmp_path).close()  # the refusal let the lock go


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_directory_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.fcntl.flock", flock)
    with pytest.raises(StateDirectoryUnusable, match="it cannot be locked"):
        SqliteFile(tmp_path)


# While it runs.


def test_a_write_without_room_fails_whole_and_succeeds_later(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write([created("r")], now=1.0)
        with no_room():
            for _ in range(3):
                with pytest.raises(JournalFull, match="has no room to grow"):
                    journal.write([created("s"), admitted("s", "a")], now=2.0)
            assert names(journal) == ["r"]  # what it holds can be read all the time
        journal.write([created("s"), admitted("s", "a")], now=2.0)
        assert names(journal) == ["r", "s"]
    with opened(tmp_path) as journal:
        assert names(journal) == ["r", "s"]


def test_a_write_beyond_the_room_of_the_database_fails_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write([created("r")], now=1.0)
        pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
        journal._database.execute(f"PRAGMA max_page_count={pages + 2}")
        long = [Persist(run_id="r", record=failed(n, "x" * 50_000)) for n in range(1, 9)]
        with pytest.raises(JournalFull, match="database or disk is full"):
            journal.write(long, now=2.0)
        journal._database.execute("PRAGMA max_page_count=1000000")
        journal.write(long, now=2.0)
        assert [state.failures_count for state in journal.load().runs.states.values()] == [8]


# Snapshots.


def test_a_large_snapshot_is_written_in_bounded_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PART_BYTES_MAX", 1_000)
    state = RunState.created(RunCreated(run_id="r", spec=SPEC))
    for sequence in range(1, 9):
        state.apply(failed(sequence, "\x01" * 500))
    with opened(tmp_path) as journal:
        journal.write([created("r"), created("s"), Compact(state)], now=1.0)
        journal.write([admitted("r", "a"), admitted("s", "b")], now=2.0)
        sizes = [row[0] for row in journal._database.execute("SELECT LENGTH(value) FROM journal")]
        assert max(sizes) == 1_000
        assert len(sizes) > 20
        assert journal.load().runs._sizes == {"r": 1, "s": 1}
        state.apply(AgentAdmitted(agent=an_agent("a")))
        assert names(journal) == ["r", "s"]
        assert journal.load().runs.states["r"] == state
        journal.write([Compact(state), Forget(run_id="s")], now=3.0)
        assert list(journal.load().runs.states.values()) == [state]
        assert journal.load().runs._sizes == {"r": 0}


# Several hosts.

Mount = namedtuple("Mount", "mountpoint fstype")  # noqa: PYI024 - as psutil has it


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ([Mount("/", "ext4")], "ext4"),
        ([Mount("/", "ext4"), Mount("/home", "nfs4"), Mount("/home/u/x", "xfs")], "nfs4"),
        ([Mount("/home/u", "lustre"), Mount("/home/u", "tmpfs"), Mount("/", "xfs")], "tmpfs"),
        ([Mount("/ho", "nfs")], ""),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(
    monkeypatch: pytest.MonkeyPatch, mounts: list[Mount], kind: str
) -> None:
    monkeypatch.setattr(
        "drumbeat.coordinator.journal.sqlite.psutil.disk_partitions", lambda **_: mounts
    )
    assert journal_module.kind_of_file_system(Path("/home/u/state")) == kind


def test_a_system_that_does_not_tell_its_mounts_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_partitions(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(
        "drumbeat.coordinator.journal.sqlite.psutil.disk_partitions", disk_partitions
    )
    with opened(tmp_path) as journal:
        assert not journal.is_local


def on(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(journal_module, "kind_of_file_system", lambda _: kind)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs", ""])
def test_a_network_file_system_gets_no_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also for a journal that has one, and with nothing lost either way."""
    on(monkeypatch, "ext4")
    with opened(tmp_path) as journal:
        journal.write([created("r")], now=1.0)
        assert (tmp_path / "journal.sqlite3-wal").exists()
    on(monkeypatch, kind)
    with opened(tmp_path) as journal:
        assert names(journal) == ["r"]
        journal.write([created("s")], now=1.0)
        assert not journal.is_local
        files = {path.name for path in tmp_path.iterdir()}
        assert files == {"journal.sqlite3", "journal.last-write", "lock"}
        with no_room(), pytest.raises(JournalFull):
            journal.write([created("lost")], now=1.0)
        journal.write([created("t")], now=1.0)
    on(monkeypatch, "ext4")
    with opened(tmp_path) as journal:
        assert names(journal) == ["r", "s", "t"]


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_who_was_replaced_by_another_host_writes_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The lock of the directory may be worth nothing across hosts."""
    on(monkeypatch, kind)
    monkeypatch.setattr("drumbeat.coordinator.journal.sqlite.fcntl.flock", lambda *_: None)
    with opened(tmp_path) as first:
        first.write([created("r")], now=1.0)
        with opened(tmp_path) as second:
            with pytest.raises(LostLeadership, match=str(tmp_path)):
                first.write([created("lost")], now=2.0)
            second.write([created("s")], now=2.0)
            assert names(second) == ["r", "s"]
