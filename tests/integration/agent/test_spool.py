"""Failure records on a real disk: kept until delivered, and adopted from the dead."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from agent import spool as spool_module
from agent.spool import Entry, Spool, Spooled
from drumbeat.v1 import common_pb2, failure_pb2

if TYPE_CHECKING:
    from pathlib import Path


def spooled(sequence: int, incarnation: str = "me", message: str = "boom") -> Spooled:
    fence = common_pb2.Fence(run_id="r", has_round=True, incarnation=incarnation)
    record = failure_pb2.FailureRecord(
        fence=fence, sequence=sequence, host="alice", exit_code=1, message=message
    )
    return Spooled(
        incarnation=incarnation, sequence=sequence, happened_at=time.monotonic(), record=record
    )


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.json"))


def leave_behind(directory: Path, incarnation: str, count: int) -> list[Spooled]:
    """Write records as an agent does that is then killed: its lock is open no more."""
    records = [spooled(number, incarnation) for number in range(1, count + 1)]
    dead = Spool(directory, incarnation)
    for record in records:
        assert dead.write(record)
    dead.close()
    return records


def test_a_record_is_on_disk_until_it_is_delivered(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "me")
    assert spool.write(spooled(1))
    assert spool.write(spooled(2))
    assert len(files(tmp_path)) == 2
    spool.remove(("me", 1))
    assert files(tmp_path) == ["me/000000000002.json"]
    spool.remove(("me", 1))  # harmless
    spool.remove(("me", 2))
    spool.close()
    assert not tmp_path.exists()  # nothing is left behind, the directory included


def test_all_that_is_written_is_private(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "me")
    spool.write(spooled(1))
    assert stat.S_IMODE((tmp_path / "me").stat().st_mode) == 0o700
    spool.close()


def test_the_next_agent_adopts_what_a_dead_one_left_in_its_order(tmp_path: Path) -> None:
    left = leave_behind(tmp_path, "dead", 12) + leave_behind(tmp_path, "dead2", 2)
    heir = Spool(tmp_path, "heir")
    adopted = heir.adopt()
    assert [record.key for record in adopted] == [record.key for record in left]
    assert [record.record for record in adopted] == [record.record for record in left]
    assert [record.happened_at for record in adopted] == [record.happened_at for record in left]
    assert heir.adopt() == []  # once
    for record in adopted:
        heir.remove(record.key)
    heir.close()
    assert not tmp_path.exists()


def test_what_the_heir_could_not_deliver_is_left_to_its_own_heir(tmp_path: Path) -> None:
    leave_behind(tmp_path, "dead", 3)
    first = Spool(tmp_path, "first")
    first.remove(first.adopt()[0].key)
    first.close()
    second = Spool(tmp_path, "second")
    assert [record.key for record in second.adopt()] == [("dead", 2), ("dead", 3)]
    second.close()


def test_records_of_a_living_agent_are_left_alone(tmp_path: Path) -> None:
    alive = Spool(tmp_path, "alive")
    alive.write(spooled(1, "alive"))
    other = Spool(tmp_path, "other")
    assert other.adopt() == []
    other.close()
    assert files(tmp_path) == ["alive/000000000001.json"]
    alive.close()


def test_of_two_heirs_one_adopts(tmp_path: Path) -> None:
    leave_behind(tmp_path, "dead", 3)
    heirs = [Spool(tmp_path, "one"), Spool(tmp_path, "two")]
    assert [len(heir.adopt()) for heir in heirs] == [3, 0]
    for heir in heirs:
        heir.close()


KILLED = """
import os, signal, sys, time
from pathlib import Path
from agent.spool import Spool, Spooled
from drumbeat.v1 import common_pb2, failure_pb2

spool = Spool(Path(sys.argv[1]), "killed")
fence = common_pb2.Fence(run_id="r", has_round=True, incarnation="killed")
for number in (1, 2):
    record = failure_pb2.FailureRecord(fence=fence, sequence=number, host="alice")
    spool.write(Spooled(incarnation="killed", sequence=number, happened_at=1.0, record=record))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_records_and_not_its_lock(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    heir = Spool(tmp_path, "heir")
    assert [record.key for record in heir.adopt()] == [("killed", 1), ("killed", 2)]
    heir.close()


def test_an_agent_that_has_just_begun_is_not_taken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making its directory and locking it, another agent looks for what is left."""
    lock = Spool._lock
    others: list[Spool] = []

    def look_first(self: Spool, incarnation: str, *, is_patient: bool = False) -> bool:
        if incarnation == "slow" and not others:
            others.append(Spool(tmp_path, "quick"))
            assert others[0].adopt() == []
        return lock(self, incarnation, is_patient=is_patient)

    monkeypatch.setattr(Spool, "_lock", look_first)
    slow = Spool(tmp_path, "slow")
    assert slow.write(spooled(1, "slow"))
    assert files(tmp_path) == ["slow/000000000001.json"]
    assert others[0].adopt() == []
    slow.close()
    others[0].close()


def test_a_write_that_was_cut_off_is_no_record_and_leaves_nothing(tmp_path: Path) -> None:
    leave_behind(tmp_path, "dead", 1)
    (tmp_path / "dead" / "000000000002.new").write_bytes(b'{"boot_id"')
    heir = Spool(tmp_path, "heir")
    (record,) = heir.adopt()
    assert record.key == ("dead", 1)
    heir.remove(record.key)
    heir.close()
    assert not tmp_path.exists()


def test_there_is_a_limit_and_delivery_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "RECORDS_MAX", 3)
    spool = Spool(tmp_path, "me")
    assert [spool.write(spooled(number)) for number in range(1, 6)] == [True] * 3 + [False] * 2
    spool.remove(("me", 5))  # never was on disk: makes no room
    assert not spool.write(spooled(6))
    spool.remove(("me", 1))
    assert spool.write(spooled(7))
    spool.close()


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "me")
    (tmp_path / "me" / "000000000001.new").mkdir()  # stands for any failure of a write
    assert not spool.write(spooled(1))
    (tmp_path / "me" / "000000000001.new").rmdir()
    spool.close()


UNREADABLE = {
    "empty": b"",
    "no JSON": b"{",
    "no entry": b"{}",
    "no base64": b'{"boot_id":"b","happened_at":1.0,"record":"!"}',
    "no record": b'{"boot_id":"b","happened_at":1.0,"record":"/////w=="}',
    "no time": b'{"boot_id":"b","happened_at":"now","record":""}',
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_entry_is_dropped_and_the_others_are_adopted(
    tmp_path: Path, name: str
) -> None:
    leave_behind(tmp_path, "dead", 2)
    (tmp_path / "dead" / "000000000000.json").write_bytes(UNREADABLE[name])
    heir = Spool(tmp_path, "heir")
    assert [record.key for record in heir.adopt()] == [("dead", 1), ("dead", 2)]
    assert files(tmp_path) == ["dead/000000000001.json", "dead/000000000002.json"]
    heir.close()


def test_an_entry_that_names_another_agent_is_dropped(tmp_path: Path) -> None:
    """It could never be removed again: its name is not where it lies."""
    leave_behind(tmp_path, "dead", 1)
    (tmp_path / "dead" / "000000000001.json").rename(tmp_path / "dead" / "000000000009.json")
    heir = Spool(tmp_path, "heir")
    assert heir.adopt() == []
    heir.close()
    assert not tmp_path.exists()


@pytest.mark.parametrize("kind", ["file", "directory in place of an entry"])
def test_strange_things_in_the_spool_are_passed_over(tmp_path: Path, kind: str) -> None:
    leave_behind(tmp_path, "dead", 1)
    if kind == "file":
        (tmp_path / "readme").write_text("not a directory")
    else:
        (tmp_path / "dead" / "000000000000.json").mkdir()
    heir = Spool(tmp_path, "heir")
    assert [record.key for record in heir.adopt()] == [("dead", 1)]
    heir.close()


def test_the_age_of_a_record_from_before_a_reboot_is_the_greatest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_read_boot_id", lambda: "first boot")
    leave_behind(tmp_path, "dead", 1)
    (path,) = (tmp_path / "dead").glob("*.json")
    assert msgspec.json.decode(path.read_bytes(), type=Entry).boot_id == "first boot"
    monkeypatch.setattr(spool_module, "_read_boot_id", lambda: "second boot")
    heir = Spool(tmp_path, "heir")
    (record,) = heir.adopt()
    assert record.happened_at == 0.0
    heir.close()
