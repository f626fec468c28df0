"""The journal on a real disk: what is written is what is read, and half-written never is."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.coordinator.core.effects import Forget, Persist
from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS, Cut
from drumbeat.coordinator.core.inprocess.records import (
    InprocessSpec,
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
)
from drumbeat.coordinator.core.model import (
    AgentIdentity,
    FailureRecord,
    FailureReport,
    Hang,
    RunSpec,
    Verdict,
    VerdictCause,
    WorkerRanks,
)
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit
from drumbeat.coordinator.core.run.records import (
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
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import (
    JournalCorrupt,
    JournalUnusable,
    StateDirectoryInUse,
    StateDirectoryUnusable,
)
from drumbeat.coordinator.journal.batches import Change, Compact
from drumbeat.coordinator.journal.layout import FORMAT, seal, unseal
from drumbeat.coordinator.journal.sqlite import SqliteFile
from drumbeat.coordinator.journal.stored import Host
from drumbeat.coordinator.observe.goodput.stretches import Cause, Marks, ProgressNoted, StretchEnd
from drumbeat.coordinator.observe.steps.worker_progress import Standing, Standings, WorkerProgress
from drumbeat.inprocess import InterruptionKind
from drumbeat.model import HangKind
from tests.support.inprocess.rules import active_max, group_sizes

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
        ProgressNoted(marks=MARKS, end=StretchEnd(cause=Cause.HANG, host="é", since=9_500_000_000)),
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
        return list(again.load().runs.states.values())
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
    assert list(state.seats) == list(expected.seats)  # order is rank order


def test_runs_come_back_in_the_order_of_their_creation(journal: SqliteFile) -> None:
    ids = ["zeta", "alpha", "mid"]
    for run_id in ids:
        journal.write(appends(story(run_id)[:2], run_id), now=1.0)
    assert [state.run_id for state in journal.load().runs.states.values()] == ids
    journal.write([Compact(fold(story("zeta")[:2]))], now=2.0)
    assert [state.run_id for state in journal.load().runs.states.values()] == ids


def test_a_snapshot_replaces_the_records_and_more_can_follow(tmp_path: Path) -> None:
    records = story("r")
    journal = SqliteFile(tmp_path)
    journal.write(appends(records[:8], "r"), now=1.0)
    journal.write([Compact(fold(records[:8])), *appends(records[8:], "r")], now=2.0)
    journal.close()
    again = SqliteFile(tmp_path)
    (run,) = again.load().contents.runs
    again.close()
    assert [type(entry) for entry in run.entries[:1]] == [RunState]
    assert run.entries[1:] == records[8:]
    assert reload(tmp_path) == [fold(records)]


def test_erasing_a_run_leaves_the_others(journal: SqliteFile) -> None:
    for run_id in ("kept", "gone"):
        journal.write(appends(story(run_id), run_id), now=1.0)
    journal.write([Forget(run_id="gone")], now=2.0)
    assert list(journal.load().runs.states.values()) == [fold(story("kept"))]


def test_a_write_that_fails_leaves_nothing_of_it(journal: SqliteFile) -> None:
    good = Persist(run_id="r", record=RunCreated(run_id="r", spec=SPEC))
    bad = Persist(run_id="r", record=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        journal.write([good, bad], now=1.0)
    assert list(journal.load().runs.states.values()) == []


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


def change(directory: Path, key: str, edit: Callable[[bytes], bytes]) -> None:
    """Change a value behind the coordinator's back."""
    with closing(sqlite3.connect(directory / "journal.sqlite3")) as database, database:
        (value,) = database.execute("SELECT value FROM journal WHERE key GLOB ?", (key,)).fetchone()
        database.execute("UPDATE journal SET value = ? WHERE key GLOB ?", (edit(value), key))


def of_format(number: int) -> Callable[[bytes], bytes]:
    return lambda value: value.replace(b"[%d," % FORMAT, b"[%d," % number, 1)


def by_release(release: bytes) -> Callable[[bytes], bytes]:
    return lambda value: value.replace(b'"%s"' % VERSION.encode(), b'"%s"' % release, 1)


def test_a_journal_of_a_newer_release_is_named_and_refused(tmp_path: Path) -> None:
    SqliteFile(tmp_path).close()
    change(tmp_path, "journal/head", by_release(b"9.1.0"))
    change(tmp_path, "journal/head", of_format(FORMAT + 1))
    with pytest.raises(JournalUnusable, match=r"written by a newer release \(9\.1\.0\)") as refused:
        SqliteFile(tmp_path)
    assert "upgrade this coordinator" in refused.value.hint


def test_a_journal_of_an_older_format_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as database, database:
        database.execute("CREATE TABLE records (number INTEGER, run_id TEXT)")
    with pytest.raises(JournalCorrupt, match=f"of a format before {FORMAT}"):
        SqliteFile(tmp_path)


def resealed(body: bytes) -> Callable[[bytes], bytes]:
    """Return an edit to another body, with a seal that fits."""
    return lambda value: seal(unseal(value).name, body, release="9.1.0")[0]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "unknown kind": (resealed(b'[["Unheard",{}]]'), "release does not know 'Unheard'"),
    "not JSON": (resealed(b'[["RunCreated",{'), "truncated"),
    "empty": (resealed(b""), "truncated"),
    "not UTF-8": (resealed(b'[["RunCreated",{"run_id":"\xff"}]]'), "9.1.0 wrote it"),
    "a missing field": (resealed(b'[["RunCreated",{"run_id":"r"}]]'), "`spec`"),
    "a wrong type": (resealed(b'[["RunCreated",{"run_id":1,"spec":2}]]'), "got `int`"),
    "a record before its run": (
        resealed(b'[["AgentRemoved",{"incarnation":"a","reason":"b"}]]'),
        "its beginning is missing",
    ),
    "a round of strangers": (
        resealed(b'[["RoundEnded",{"cause":"AGENT_LOST","reason":"no round yet"}]]'),
        "its beginning is missing",
    ),
    "a newer release": (
        lambda value: of_format(FORMAT + 1)(by_release(b"9.2.0")(value)),
        "written by a newer release (9.2.0)",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_that_cannot_be_read_is_set_aside_and_the_others_are_served(
    tmp_path: Path, name: str
) -> None:
    journal = SqliteFile(tmp_path)
    for run_id in ("r", "kept"):
        journal.write(appends(story(run_id)[:3], run_id), now=1.0)
    journal.close()

    edit, reason = DAMAGES[name]
    change(tmp_path, "journal/runs/*-r/*", edit)
    again = SqliteFile(tmp_path)
    loaded = again.load()
    assert list(loaded.runs.states) == ["kept"]
    assert [run.key for run in loaded.contents.runs if run.problem] == ["r"]
    (problem,) = loaded.contents.problems
    assert "-r/" in problem.key
    assert reason in problem.reason
    assert "run r" in problem.lost
    # It is left as it is until it is forgotten.
    again.write([Forget(run_id="r")], now=2.0)
    assert [run.key for run in again.load().contents.runs] == ["kept"]
    again.close()


@pytest.mark.parametrize("lost", range(3))
def test_a_record_that_is_missing_in_a_run_is_noticed(tmp_path: Path, lost: int) -> None:
    """Of the last one the head tells; here it is an earlier one."""
    journal = SqliteFile(tmp_path)
    for record in story("r")[:4]:
        journal.write(appends([record], "r"), now=1.0)
    journal.close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as database, database:
        keys = [key for (key,) in database.execute("SELECT key FROM journal ORDER BY key")]
        of_run = [key for key in keys if "/runs/" in key]
        database.execute("DELETE FROM journal WHERE key = ?", (of_run[lost],))
    again = SqliteFile(tmp_path)
    loaded = again.load()
    again.close()
    assert loaded.runs.states == {}
    assert loaded.contents.problems


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"term":"soon"}'])
def test_a_head_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    SqliteFile(tmp_path).close()
    change(tmp_path, "journal/head", lambda _: seal("head", body, release=VERSION)[0])
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite3"):
        SqliteFile(tmp_path)


# The clock.


@pytest.mark.parametrize("written_at", [0.001, 1_000_000.0], ids=["before this boot", "after"])
def test_the_clock_goes_on_within_a_boot_and_after_a_reboot(
    tmp_path: Path, written_at: float
) -> None:
    def offset(boot: str, *, monotonic: float, write_at: float) -> float:
        host = Host(boot, lambda: monotonic, lambda: 10.0**9)
        with closing(SqliteFile(tmp_path, host=host)) as journal:
            journal.write([], now=write_at)
            return journal.head.offset

    assert offset("first", monotonic=5.0, write_at=5.0) == 0.0
    assert offset("first", monotonic=6.0, write_at=written_at) == 0.0
    again = offset("second", monotonic=2.0, write_at=written_at)
    assert 2.0 + again == pytest.approx(written_at)  # never back, and no time has passed
    assert offset("second", monotonic=3.0, write_at=3.0 + again) == again, "it is kept"


# Sudden death.

WRITER = """
import sys
from pathlib import Path
from drumbeat.coordinator.journal.sqlite import SqliteFile
from drumbeat.coordinator.core.effects import Persist
from drumbeat.coordinator.core.model import AgentIdentity, RunSpec
from drumbeat.coordinator.core.run.records import AgentAdmitted, AgentRemoved, RunCreated

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
