"""Standard error passed on through real pipes."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.agent.model.messages import WorkerStart
from drumbeat.agent.workers.output import destination
from drumbeat.agent.workers.output import tail as tails
from drumbeat.agent.workers.output.lines import LAST_BYTES_MAX, LINE_BYTES_MAX
from drumbeat.agent.workers.output.sources import OutputPipe
from drumbeat.agent.workers.output.tail import Tail
from drumbeat.agent.workers.supervisor.spawner import opened_outputs
from tests.support.full_disk import DEVICE, FullDisk
from tests.support.waiting import MS, wait_until_sync

DEADLINE_S = 20_000 * MS
"""Far longer than anything here takes."""

# A relay that waits for nothing until it gives up must not look like one that works.
pytestmark = pytest.mark.timeout(15_000 * MS)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that is not read until the test does."""
    fds = os.pipe()
    yield fds
    for fd in fds:
        os.close(fd)


def write(path: str, data: bytes) -> None:
    """Write as a worker does: opened by another, and in as many parts as it takes."""
    with opened_outputs(WorkerStart(local_rank=0, env={}, stderr=path)) as outputs:
        while data:
            data = data[os.write(outputs[2], data) :]


def opened(tail: Tail, folder: Path, local_rank: int, screen: int, *, shown: bool) -> OutputPipe:
    return tail.add_pipe(str(folder / f"stderr_{local_rank}"), screen, is_shown=shown)


def test_what_a_worker_wrote_last_is_known_when_it_is_gone(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    tail = Tail()
    stderrs = [opened(tail, tmp_path, rank, pipe[1], shown=rank == 0) for rank in (0, 1)]
    for rank, stderr in enumerate(stderrs):
        write(stderr.path, b"line %d\nend" % rank)
        stderr.drain()
        assert stderr.kept.last_lines() == f"line {rank}\nend"
    tail.close()
    assert os.read(pipe[0], 4096) == b"line 0\nend"
    assert list(tmp_path.iterdir()) == []


def test_lines_of_streams_that_lead_to_one_file_are_whole(tmp_path: Path) -> None:
    tail, path = Tail(), tmp_path / "out"
    with path.open("ab") as file:
        first, second = (opened(tail, tmp_path, rank, file.fileno(), shown=True) for rank in (0, 1))
        write(first.path, b'{"step": ')
        write(second.path, b"bar 1\rwarning\nun")
        wait_until_sync(lambda: path.read_bytes() == b"bar 1\rwarning\n", DEADLINE_S)
        write(first.path, b"7}\nlast")
        wait_until_sync(lambda: path.read_bytes().endswith(b'\n{"step": 7}\n'), DEADLINE_S)
        second.drain()  # the worker is gone
        wait_until_sync(lambda: path.read_bytes().endswith(b"}\nun"), DEADLINE_S)
        tail.close()
        assert path.read_bytes().endswith(b"unlast")


def test_a_line_without_end_is_passed_on_before_it_fills_the_memory(tmp_path: Path) -> None:
    tail, path = Tail(), tmp_path / "out"
    with path.open("ab") as file:
        stderr = opened(tail, tmp_path, 0, file.fileno(), shown=True)
        write(stderr.path, b"x" * (LINE_BYTES_MAX + 1))
        wait_until_sync(lambda: path.stat().st_size == LINE_BYTES_MAX + 1, DEADLINE_S)
        tail.close()


def test_rounds_follow_one_another(tmp_path: Path, pipe: tuple[int, int]) -> None:
    tail = Tail()
    for number in range(3):
        stderr = opened(tail, tmp_path, 0, pipe[1], shown=True)
        write(stderr.path, b"round %d\n" % number)
        stderr.finish()
    tail.close()
    assert os.read(pipe[0], 4096) == b"round 0\nround 1\nround 2\n"


def test_a_worker_waits_for_a_reader_and_nothing_is_lost(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    """As it would if it wrote there itself; its end is remembered all the same."""
    data = b"%07d\n" * 1_000_000 % tuple(range(1_000_000))
    tail = Tail()
    stderr = opened(tail, tmp_path, 0, pipe[1], shown=True)
    writer = threading.Thread(target=write, args=(stderr.path, data))
    writer.start()
    received = bytearray()
    while len(received) < len(data):
        received += os.read(pipe[0], 1 << 20)
    assert received == data
    writer.join()
    stderr.drain()
    kept = [f"{number:07}" for number in range(999_950, 1_000_000)]
    assert stderr.kept.last_lines() == "\n".join(kept)
    tail.close()


def test_a_worker_that_is_not_shown_waits_for_no_reader(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    tail = Tail()
    stderr = opened(tail, tmp_path, 0, pipe[1], shown=False)
    write(stderr.path, b"x" * 20_000_000)
    stderr.drain()
    assert len(stderr.kept.last_lines()) == LAST_BYTES_MAX
    tail.close()


def test_a_destination_that_takes_nothing_is_given_up(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    tail = Tail()
    stderr = opened(tail, tmp_path, 0, pipe[1], shown=True)
    write(stderr.path, b"x" * 500_000)
    stderr.drain()
    assert stderr.kept.last_lines().endswith("xxx")
    tail.stall_s = 10 * MS
    tail.close()
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_is_gone_holds_no_worker_up(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    tail = Tail()
    stderr = opened(tail, tmp_path, 0, write_fd, shown=True)
    os.close(read_fd)
    write(stderr.path, b"x" * 20_000_000)
    tail.close()
    os.close(write_fd)


def test_what_cannot_be_shown_leaves_nothing(tmp_path: Path) -> None:
    tail = Tail()
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened(tail, tmp_path, 0, 987, shown=True)
    assert list(tmp_path.iterdir()) == []
    tail.close()


def test_lines_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, tail = FullDisk(tmp_path / "screen", monkeypatch), Tail()
    screen = os.open(DEVICE, os.O_WRONLY)
    stderr = opened(tail, tmp_path, 0, screen, shown=True)
    write(stderr.path, b"".join(b"line %d\n" % number for number in range(20)))
    assert disk.has_refused.wait(DEADLINE_S)
    disk.make_room()
    wait_until_sync(lambda: (tmp_path / "screen").read_text().count("\n") == 20, DEADLINE_S)
    write(stderr.path, b"after\n")
    tail.close()
    os.close(screen)
    lines = (tmp_path / "screen").read_text().splitlines()
    assert lines == [*(f"line {number}" for number in range(20)), "after"]


def test_a_full_disk_holds_no_worker_up_and_what_is_lost_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PENDING_BYTES_MAX", 1000)
    disk, tail = FullDisk(tmp_path / "screen", monkeypatch), Tail()
    screen = os.open(DEVICE, os.O_WRONLY)
    stderr = opened(tail, tmp_path, 0, screen, shown=True)
    write(stderr.path, b"%099d\n" * 50_000 % tuple(range(50_000)))
    assert disk.has_refused.wait(DEADLINE_S)
    wait_until_sync(lambda: stderr.kept.end() == 5_000_000, DEADLINE_S)
    disk.make_room()
    tail.close()
    os.close(screen)
    lines = (tmp_path / "screen").read_text().splitlines()
    assert lines[:9] == [f"{number:099}" for number in range(9)]
    assert lines[9:] == ["(4,999,100 bytes lost: the disk was full)"]


def test_the_end_does_not_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "ROOM_STALL_S", 100 * MS)
    disk, tail = FullDisk(tmp_path / "screen", monkeypatch), Tail()
    screen = os.open(DEVICE, os.O_WRONLY)
    stderr = opened(tail, tmp_path, 0, screen, shown=True)
    write(stderr.path, b"lost\n")
    assert disk.has_refused.wait(DEADLINE_S)
    tail.close()  # the limit of a test is shorter than `STALL_S`
    os.close(screen)
