"""Failure records on a real disk: kept until delivered, and adopted from the dead."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from drumbeat.agent.host import boot_id as boot_id_module
from drumbeat.agent.host.private_directory import SPOOL, PrivateDirectory
from drumbeat.agent.session import spool as spool_module
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.spool import KEPT_S, Entry, Spool, Spooled
from drumbeat.v1 import common_pb2, failure_pb2
from tests.support.agents import CONFIG


class Life:
    """One agent's life, as far as its directory and its spool go."""

    def __init__(self, place: Path, incarnation: str = "me", run_id: str = "r") -> None:
        self.directory = PrivateDirectory([str(place)])
        identity = Identity(incarnation=incarnation, host="alice")
        self.spool = Spool(self.directory, replace(CONFIG, run_id=run_id), identity)

    def end(self) -> None:
        self.spool.close()
        self.directory.close()

    def adopt(self) -> list[tuple[str, int]]:
        return [record.key for record in self.spool.adopt()]


def spooled(sequence: int, incarnation: str = "me", message: str = "boom") -> Spooled:
    fence = common_pb2.Fence(run_id="r", round_id=0, incarnation=incarnation)
    record = failure_pb2.FailureRecord(
        fence=fence, sequence=sequence, host="alice", exit_code=1, message=message
    )
    return Spooled(happened_at=time.monotonic(), record=record)


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*.record"))


def leave_behind(
    place: Path, incarnation: str = "dead", count: int = 1, run_id: str = "r"
) -> list[Spooled]:
    """Write records as an agent does that ends before they are delivered."""
    records = [spooled(number, incarnation) for number in range(1, count + 1)]
    life = Life(place, incarnation, run_id)
    for record in records:
        assert life.spool.write(record)
    life.end()
    return records


def test_a_record_is_on_disk_until_it_is_delivered(place: Path) -> None:
    life = Life(place)
    assert life.spool.write(spooled(1))
    assert life.spool.write(spooled(2))
    life.spool.remove(("me", 1))
    assert files(place) == ["me-000000000002.record"]
    life.spool.remove(("me", 1))  # harmless
    life.spool.remove(("me", 2))
    life.end()
    assert not list(place.iterdir())


def test_the_next_agent_adopts_what_a_dead_one_left_in_its_order(place: Path) -> None:
    left = leave_behind(place, "dead", 12) + leave_behind(place, "dead2", 2)
    heir = Life(place, "heir")
    adopted = heir.spool.adopt()
    assert adopted == left
    assert len(list(place.iterdir())) == 1, "what it took over is not its own"
    assert heir.adopt() == []  # once
    for record in adopted:
        heir.spool.remove(record.key)
    heir.end()
    assert not list(place.iterdir())


def test_what_the_heir_could_not_deliver_is_left_to_its_own_heir(place: Path) -> None:
    leave_behind(place, "dead", 3)
    first = Life(place, "first")
    first.spool.remove(first.adopt()[0])
    first.end()
    second = Life(place, "second")
    assert second.adopt() == [("dead", 2), ("dead", 3)]
    second.end()


def test_records_of_a_living_agent_are_left_alone(place: Path) -> None:
    alive, other = Life(place, "alive"), Life(place, "other")
    alive.spool.write(spooled(1, "alive"))
    assert other.adopt() == []
    other.end()
    assert files(place) == ["alive-000000000001.record"]
    alive.end()


def test_records_of_another_run_wait_a_day_for_it_and_nothing_else_does(place: Path) -> None:
    leave_behind(place, run_id="other")
    (left,) = place.iterdir()
    (left / "errors").mkdir()
    me = Life(place)
    assert me.adopt() == []
    assert [path.name for path in left.iterdir()] == [SPOOL]
    (record,) = left.rglob("*.record")
    long_ago = time.time() - KEPT_S - 1
    os.utime(record, (long_ago, long_ago))
    assert me.adopt() == []
    assert not left.exists()
    me.end()


KILLED = """
import os, signal, sys, time
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.spool import Spool, Spooled
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.v1 import common_pb2, failure_pb2

directory = PrivateDirectory([sys.argv[1]])
identity = Identity(incarnation="killed", host="alice")
config = AgentConfig(coordinator="head:1", run_id="r", program=Program("program", "true"))
spool = Spool(directory, config, identity)
fence = common_pb2.Fence(run_id="r", round_id=0, incarnation="killed")
for number in (1, 2):
    record = failure_pb2.FailureRecord(fence=fence, sequence=number, host="alice")
    spool.write(Spooled(happened_at=1.0, record=record))
(directory.ensure("errors") / "error").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_records_and_nothing_after_the_next(place: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    heir = Life(place, "heir")
    adopted = heir.adopt()
    assert adopted == [("killed", 1), ("killed", 2)]
    for key in adopted:
        heir.spool.remove(key)
    heir.end()
    assert not list(place.iterdir())


def test_a_write_that_was_cut_off_is_no_record_and_leaves_nothing(place: Path) -> None:
    leave_behind(place)
    (record,) = place.rglob("*.record")
    record.with_name("dead-000000000002.record.new").write_bytes(b'{"boot_id"')
    heir = Life(place, "heir")
    assert heir.adopt() == [("dead", 1)]
    heir.spool.remove(("dead", 1))
    heir.end()
    assert not list(place.iterdir())


def test_there_is_a_limit_and_delivery_makes_room(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "RECORDS_MAX", 3)
    life = Life(place)
    spool = life.spool
    assert [spool.write(spooled(number)) for number in range(1, 6)] == [True] * 3 + [False] * 2
    spool.remove(("me", 5))  # never was on disk: makes no room
    assert not spool.write(spooled(6))
    spool.remove(("me", 1))
    assert spool.write(spooled(7))
    life.end()


def test_no_more_are_adopted_than_fit(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ADOPTED_MAX", 2)
    leave_behind(place, count=3)
    heir = Life(place, "heir")
    assert heir.adopt() == [("dead", 1), ("dead", 2)]
    assert heir.adopt() == []
    heir.end()


def test_a_disk_that_takes_nothing_is_no_error_and_loses_nothing(place: Path) -> None:
    leave_behind(place)
    life = Life(place)
    folder = life.directory.ensure(SPOOL, "run=r")
    for name in ("me", "dead"):
        (folder / f"{name}-000000000001.record.new").mkdir()  # stands for any failure of a write
    assert not life.spool.write(spooled(1))
    assert life.adopt() == [("dead", 1)]
    assert files(place) == ["dead-000000000001.record"], "it is not where it was"
    life.end()


def test_a_disk_that_is_full_is_left_without_a_trace(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    life = Life(place)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        assert not life.spool.write(spooled(1))
    life.spool.remove(("me", 1))  # the coordinator has it by now
    life.end()
    assert not list(place.iterdir())


def test_records_are_adopted_on_a_full_disk_and_nothing_of_the_dead_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    left = leave_behind(place, count=2)
    heir = Life(place, "heir")
    monkeypatch.setattr(spool_module, "write_whole", fail)
    assert heir.spool.adopt() == left
    assert list(place.iterdir()) == [heir.directory.path]
    for record in left:
        heir.spool.remove(record.key)
    heir.end()
    assert not list(place.iterdir())


@pytest.mark.parametrize("is_delivered", [True, False])
def test_what_can_not_be_moved_is_removed_where_it_lies(
    place: Path, monkeypatch: pytest.MonkeyPatch, is_delivered: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    left = leave_behind(place, count=2)
    heir = Life(place, "heir")
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "ensure", fail)  # nor is there a directory yet
        assert heir.spool.adopt() == left
    assert len(files(place)) == 2
    heir.spool.remove(left[0].key)
    if is_delivered:
        heir.spool.remove(left[1].key)
    heir.end()
    assert files(place) == ([] if is_delivered else ["dead-000000000002.record"])
    assert is_delivered == (not list(place.iterdir()))
    heir = Life(place, "second heir")
    assert heir.spool.adopt() == ([] if is_delivered else left[1:])
    heir.spool.drop()
    heir.end()
    assert not list(place.iterdir())


def test_records_are_adopted_from_another_file_system(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can't be moved there; it is written anew."""
    move = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return move(path, target)

    left = leave_behind(place)
    heir = Life(place, "heir")
    monkeypatch.setattr(Path, "replace", fail)
    assert heir.spool.adopt() == left
    assert files(heir.directory.path) == files(place) == ["dead-000000000001.record"]
    assert list(place.iterdir()) == [heir.directory.path]
    heir.end()


def test_what_is_dropped_leaves_nothing(place: Path) -> None:
    leave_behind(place, "dead", 2)
    life = Life(place)
    life.spool.write(spooled(1))
    assert len(life.adopt()) == 2
    life.spool.drop()
    assert life.spool.waiting == 0
    life.end()
    assert not list(place.iterdir())


def test_what_no_other_agent_could_deliver_is_not_written(place: Path) -> None:
    with closing(PrivateDirectory([str(place)])) as directory:
        config = replace(CONFIG, coordinator=None)
        spool = Spool(directory, config, Identity(incarnation="me", host="alice"))
        assert not spool.write(spooled(1))
        assert files(place) == []
        spool.close()


def test_a_spool_that_a_cleaner_took_is_made_again(place: Path) -> None:
    life = Life(place)
    life.spool.write(spooled(1))
    shutil.rmtree(life.directory.path)
    assert life.spool.write(spooled(2))
    assert files(place) == ["me-000000000002.record"]
    life.end()


def an_entry(**fields: object) -> bytes:
    given: dict[str, object] = {"boot_id": "b", "happened_at": 1.0, "record": b""}
    return msgspec.msgpack.encode(given | fields)


UNREADABLE = {
    "empty": b"",
    "no MessagePack": b"\xc1",
    "no entry": msgspec.msgpack.encode({}),
    "no bytes": an_entry(record=1),
    "no record": an_entry(record=b"\xff\xff\xff\xff"),
    "no time": an_entry(happened_at="now"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_entry_is_dropped_and_the_others_are_adopted(place: Path, name: str) -> None:
    leave_behind(place, "dead", 2)
    first = min(place.rglob("*.record"))
    first.with_name("dead-000000000000.record").write_bytes(UNREADABLE[name])
    heir = Life(place, "heir")
    assert heir.adopt() == [("dead", 1), ("dead", 2)]
    assert files(place) == ["dead-000000000001.record", "dead-000000000002.record"]
    heir.end()


def test_an_entry_that_names_another_agent_is_dropped(place: Path) -> None:
    """It could never be removed again: its name is not where it lies."""
    leave_behind(place)
    (record,) = place.rglob("*.record")
    record.rename(record.with_name("dead-000000000009.record"))
    heir = Life(place, "heir")
    assert heir.adopt() == []
    heir.end()
    assert not list(place.iterdir())


@pytest.mark.parametrize("kind", ["file", "directory in place of an entry"])
def test_strange_things_in_the_spool_are_passed_over(place: Path, kind: str) -> None:
    leave_behind(place)
    (record,) = place.rglob("*.record")
    if kind == "file":
        (record.parent.parent / "readme").write_text("not a directory")
    else:
        record.with_name("dead-000000000000.record").mkdir()
    heir = Life(place, "heir")
    assert heir.adopt() == [("dead", 1)]
    heir.end()


def test_the_age_of_a_record_from_before_a_reboot_is_the_greatest(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = place / "boot_id"
    monkeypatch.setattr(boot_id_module, "BOOT_ID_FILE", boot_id)
    boot_id.write_text("first boot\n")
    leave_behind(place)
    (path,) = place.rglob("*.record")
    assert msgspec.msgpack.decode(path.read_bytes(), type=Entry).boot_id == "first boot"
    boot_id.write_text("second boot\n")
    heir = Life(place, "heir")
    (record,) = heir.spool.adopt()
    assert record.happened_at == 0.0
    heir.end()


async def test_an_end_waits_for_what_is_not_delivered_yet_but_not_for_long(place: Path) -> None:
    life = Life(place)
    life.spool.write(spooled(1))
    life.spool.write(spooled(2))
    began_at = time.monotonic()
    await life.spool.delivered(timeout_s=0.05)
    assert time.monotonic() - began_at >= 0.05
    waiting = asyncio.create_task(life.spool.delivered(timeout_s=60.0))
    for sequence in (1, 2):
        await asyncio.sleep(0)
        assert not waiting.done()
        life.spool.remove(("me", sequence))
    await waiting
    life.end()
    assert not files(place)
