"""The journal on a real disk: what is written is what is read, and half-written never is."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from coordinator.core.effects import Forget, Persist
from coordinator.core.inprocess.rank_rules import SHIFT_RANKS, Cut
from coordinator.core.inprocess.records import (
    InprocessSpec,
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
)
from coordinator.core.model import (
    AgentIdentity,
    FailureRecord,
    FailureReport,
    Hang,
    HangKind,
    RunSpec,
    Verdict,
    VerdictCause,
    WorkerRanks,
)
from coordinator.core.progress.adaptive_timeouts import LearnedLimit
from coordinator.core.progress.goodput import Cause, Found, Marks, ProgressNoted
from coordinator.core.progress.worker_progress import Standing, Standings, WorkerProgress
from coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    EndingStarted,
    FailureRecorded,
    GroupSucceeded,
    LimitsLearned,
    Record,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from coordinator.core.run.state import RunState
from coordinator.errors import JournalCorrupt, StateDirectoryInUse, StateDirectoryUnusable
from coordinator.journal import sqlite as journal_module
from coordinator.journal.changes import Change, Compact
from coordinator.journal.sqlite import SCHEMA_VERSION, SqliteFile
from drumbeat.inprocess import InterruptionKind
from tests.support.inprocess.rules import active_max, group_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = RunSpec(agents_min=1, agents_max=2, restarts_max=3, exit_barrier_timeout_s=7.5)
ALICE = AgentIdentity(
    incarnation="a1", host="alice", address="10.0.0.1", role="default", local_world_size=2
)
BOB = replace(ALICE, incarnation="b1", host="bob", address="10.0.0.2", local_world_size=3)
FAILURE = FailureRecord(
    incarnation="a1",
    sequence=1,
    round_id=0,
    host="alice",
    worker=WorkerRanks(rank=3, local_rank=0, group_rank=1, role_rank=3, role="default"),
    happened_at=12.5,
    pid=4711,
    exit_code=-9,
    signal_name="SIGKILL",
    message='quotes " and \\ and \u2028 and \U0001f941',
    traceback="Traceback:\n  line\n",
)
HUNG = replace(
    FAILURE,
    hang=Hang(
        kind=HangKind.SECTION,
        scope="save",
        limit_s=60.0,
        elapsed_s=60.25,
        progress=WorkerProgress(local_rank=0, step=-1, heartbeat_age_s=0.5, scopes_open=2),
        stacks="File x\n",
        evidence="state D",
    ),
)
INTERRUPTED = replace(
    FAILURE, sequence=2, exit_code=0, interruption=InterruptionKind.EXCEPTION, iteration=3
)
WHERE = Standings(
    shown=(Standing(rank=3, host="alice", progress=WorkerProgress(local_rank=0, scope="é")),),
    count=5,
)
REPORT = FailureReport(
    root_causes=(HUNG,),
    victims=(),
    victims_count=4,
    world_size=5,
    standings=WHERE.shown,
    standings_count=5,
)

VERDICT = Verdict(
    cause=VerdictCause.WORKER_FAILED, reason="over", restart_count=1, round_id=1, report=REPORT
)
MARKS = Marks(began=8_000_000_000, step_first=0, step=3, away=((8_500_000_000, 9_000_000_000),))


def started(round_id: int) -> RoundStarted:
    return RoundStarted(
        round_id=round_id,
        participants=("b1", "a1"),
        master_addr="10.0.0.2",
        master_port=4000 + round_id,
        reason="both are there",
    )


def iterations(round_id: int) -> list[Record]:
    """One iteration that is interrupted and one that is completed."""
    spec = InprocessSpec(rules=(group_sizes([2, 300]), SHIFT_RANKS, active_max(3)))
    place: dict[str, Any] = {
        "round_id": round_id,
        "active_world_size": 3,
        "master_addr": "10.0.0.2",
    }
    return [
        IterationBegan(**place, iteration=0, master_port=4100, spec=spec),
        IterationInterrupted(round_id=round_id, iteration=0, reason="é"),
        IterationBegan(
            **place,
            iteration=1,
            master_port=4101,
            cuts=(Cut(removed=(4,), is_filled=True),),
        ),
        IterationCompleted(round_id=round_id, iteration=1),
    ]


def story(run_id: str) -> list[Record]:
    """Every kind of record, in an order that a run can have, each a second after the last."""
    records: list[Record] = [
        RunCreated(run_id=run_id, spec=SPEC, failures_kept_max=10),
        AgentAdmitted(agent=ALICE),
        AgentAdmitted(agent=BOB),
        started(0),
        *iterations(0),
        GroupSucceeded(round_id=0, incarnation="b1"),
        FailureRecorded(record=HUNG),
        FailureRecorded(record=INTERRUPTED),
        ProgressNoted(marks=MARKS, found=Found(cause=Cause.HANG, host="é", since=9_500_000_000)),
        RoundEnded(cause=RoundEnd.WORKER_FAILED, reason="failed"),
        started(1),
        *iterations(1)[:1],
        AgentRemoved(incarnation="a1", reason="it left", is_excused=True),
        LimitsLearned(limits=(LearnedLimit(section="save", limit_s=9.5, settled_s=8.0),)),
        EndingStarted(reason="over", where=WHERE),
        RunEnded(verdict=VERDICT),
    ]
    return [
        replace(record, at_s=number + 1.0) if hasattr(record, "at_s") else record
        for number, record in enumerate(records)
    ]


def fold(records: list[Record]) -> RunState:
    first, *rest = records
    assert isinstance(first, RunCreated)
    state = RunState.created(first)
    for record in rest:
        state.apply(record)
    return state


def appends(records: list[Record], run_id: str) -> list[Change]:
    return [Persist(run_id=run_id, record=record) for record in records]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteFile]:
    opened = SqliteFile(tmp_path / "state")
    yield opened
    opened.close()


def reload(directory: Path) -> list[RunState]:
    again = SqliteFile(directory)
    try:
        return list(again.load().states.values())
    finally:
        again.close()


@pytest.mark.parametrize("count", range(1, len(story("r")) + 1))
def test_every_prefix_of_a_run_is_read_as_it_was_folded(tmp_path: Path, count: int) -> None:
    records = story("r")[:count]
    journal = SqliteFile(tmp_path)
    journal.write(appends(records, "r"), now=1.0)
    journal.close()
    (state,) = reload(tmp_path)
    expected = fold(records)
    assert state == expected
    assert list(state.group_ranks()) == list(expected.group_ranks())  # order is rank order


def test_runs_come_back_in_the_order_of_their_creation(journal: SqliteFile) -> None:
    ids = ["zeta", "alpha", "mid"]
    for run_id in ids:
        journal.write(appends(story(run_id)[:2], run_id), now=1.0)
    assert [state.run_id for state in journal.load().states.values()] == ids
    journal.write([Compact(fold(story("zeta")[:2]))], now=2.0)
    assert [state.run_id for state in journal.load().states.values()] == ids


def test_a_snapshot_replaces_the_records_and_more_can_follow(tmp_path: Path) -> None:
    records = story("r")
    journal = SqliteFile(tmp_path)
    journal.write(appends(records[:8], "r"), now=1.0)
    journal.write([Compact(fold(records[:8])), *appends(records[8:], "r")], now=2.0)
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite3") as database:
        kinds = [row[0] for row in database.execute("SELECT kind FROM records ORDER BY number")]
    database.close()
    assert kinds == ["Snapshot", *(type(record).__name__ for record in records[8:])]
    assert reload(tmp_path) == [fold(records)]


def test_erasing_a_run_leaves_the_others(journal: SqliteFile) -> None:
    for run_id in ("kept", "gone"):
        journal.write(appends(story(run_id), run_id), now=1.0)
    journal.write([Forget(run_id="gone")], now=2.0)
    assert list(journal.load().states.values()) == [fold(story("kept"))]


def test_a_write_that_fails_leaves_nothing_of_it(journal: SqliteFile) -> None:
    good = Persist(run_id="r", record=RunCreated(run_id="r", spec=SPEC))
    bad = Persist(run_id="r", record=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        journal.write([good, bad], now=1.0)
    assert list(journal.load().states.values()) == []


def test_the_directory_and_all_files_in_it_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "state"
    previous = os.umask(0)  # the mode must not depend on what the user set
    try:
        journal = SqliteFile(directory)
        journal.write(appends(story("r"), "r"), now=1.0)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        journal.close()
    finally:
        os.umask(previous)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}, modes
    assert "journal.sqlite3-wal" in modes  # so that they were looked at as well


def test_one_directory_belongs_to_one_journal(tmp_path: Path) -> None:
    journal = SqliteFile(tmp_path)
    with pytest.raises(StateDirectoryInUse, match=str(tmp_path)):
        SqliteFile(tmp_path)
    journal.close()
    SqliteFile(tmp_path).close()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_directory_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("here I am")
    with pytest.raises(StateDirectoryUnusable, match="cannot be used"):
        SqliteFile(tmp_path / name)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    SqliteFile(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.sqlite3") as database:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(JournalCorrupt, match=f"version {SCHEMA_VERSION + 1}"):
        SqliteFile(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").write_text("this is no database, but long enough\n" * 50)
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite3"):
        SqliteFile(tmp_path)
    (tmp_path / "journal.sqlite3").unlink()
    SqliteFile(tmp_path).close()  # the refusal let the lock go


CORRUPT_ROWS: dict[str, tuple[str, object]] = {
    "unknown kind": ("Unheard", b"{}"),
    "not JSON": ("RunCreated", b"{"),
    "empty": ("RunCreated", b""),
    "not UTF-8": ("RunCreated", b'{"run_id":"\xff"}'),
    "a missing field": ("RunCreated", b'{"run_id":"r"}'),
    "a wrong type": ("RunCreated", b'{"run_id":1,"spec":2}'),
    "a number for a body": ("RunCreated", 7),
    "a record before its run": ("AgentRemoved", b'{"incarnation":"a","reason":"b"}'),
}


@pytest.mark.parametrize("name", CORRUPT_ROWS)
def test_a_row_that_was_not_written_by_us_is_refused(tmp_path: Path, name: str) -> None:
    SqliteFile(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.sqlite3") as database:
        row = ("r", *CORRUPT_ROWS[name])
        database.execute("INSERT INTO records (run_id, kind, body) VALUES (?, ?, ?)", row)
    database.close()
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite3"):
        reload(tmp_path)


@pytest.mark.parametrize(
    "impossible",
    [
        RoundEnded(cause=RoundEnd.AGENT_LOST, reason="no round yet"),
        started(0),  # of agents that were never admitted
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_story_that_no_run_can_have_is_refused(tmp_path: Path, impossible: Record) -> None:
    journal = SqliteFile(tmp_path)
    journal.write(appends([*story("r")[:1], impossible], "r"), now=1.0)
    journal.close()
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite3"):
        reload(tmp_path)


@pytest.mark.parametrize("value", ["soon", "nan", "-inf"])
def test_a_clock_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    journal = SqliteFile(tmp_path)
    journal.clock_offset()
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite3") as database:
        database.execute("UPDATE facts SET value = ? WHERE name = 'clock_offset'", (value,))
    database.close()
    again = SqliteFile(tmp_path)
    try:
        with pytest.raises(JournalCorrupt, match=r"journal\.sqlite3"):
            again.clock_offset()
    finally:
        again.close()


# The clock.


def test_the_clock_goes_on_within_one_boot(tmp_path: Path) -> None:
    journal = SqliteFile(tmp_path)
    assert journal.clock_offset() == 0.0
    journal.write([], now=time.monotonic())
    journal.close()
    again = SqliteFile(tmp_path)
    assert again.clock_offset() == 0.0
    again.close()


def test_the_clock_goes_on_from_the_last_write_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = time.monotonic() + 1_000_000.0
    monkeypatch.setattr(journal_module, "_boot_id", lambda: "first boot")
    journal = SqliteFile(tmp_path)
    journal.clock_offset()
    journal.write([], now=last)
    journal.close()

    monkeypatch.setattr(journal_module, "_boot_id", lambda: "second boot")
    again = SqliteFile(tmp_path)
    offset = again.clock_offset()
    assert 0 <= time.monotonic() + offset - last < 600
    again.write([], now=last + 5)
    again.close()

    restarted = SqliteFile(tmp_path)  # of the same boot: the offset is kept
    assert restarted.clock_offset() == offset
    restarted.close()


def test_the_clock_never_runs_backwards_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_boot_id", lambda: "first boot")
    journal = SqliteFile(tmp_path)
    journal.clock_offset()
    journal.write([], now=0.001)  # long before this boot's clock
    journal.close()
    monkeypatch.setattr(journal_module, "_boot_id", lambda: "second boot")
    again = SqliteFile(tmp_path)
    assert again.clock_offset() == 0.0
    again.close()


# Sudden death.

WRITER = """
import sys
from pathlib import Path
from coordinator.journal.sqlite import SqliteFile
from coordinator.core.effects import Persist
from coordinator.core.model import AgentIdentity, RunSpec
from coordinator.core.run.records import AgentAdmitted, AgentRemoved, RunCreated

journal = SqliteFile(Path(sys.argv[1]))
spec = RunSpec(agents_min=1, agents_max=9)
journal.write([Persist(run_id="r", record=RunCreated(run_id="r", spec=spec))], now=0.0)
number = 0
while True:
    # Two records in one write: never is only one of them there.
    name = str(number)
    agent = AgentIdentity(
        incarnation=name, host="h" * 500, address="a", role="r", local_world_size=1
    )
    changes = [AgentAdmitted(agent=agent)]
    if number:
        changes.append(AgentRemoved(incarnation=str(number - 1), reason="next"))
    journal.write([Persist(run_id="r", record=record) for record in changes], now=float(number))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("writes", [1, 25, 200])
def test_what_was_written_survives_a_sudden_death(tmp_path: Path, writes: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    last_told = -1
    with child:
        while last_told < writes:
            last_told = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    (state,) = reload(tmp_path)
    (member,) = state.members  # exactly one: no write was cut in half
    assert int(member) >= last_told
