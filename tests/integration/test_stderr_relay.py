"""Standard error passed on through real pipes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from agent.workers.output.last_lines import BYTES_MAX
from agent.workers.output.stderr_relay import StderrRelay
from agent.workers.supervisor.process import open_output
from tests.support.waiting import MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    fd = open_output(path)
    while data:
        data = data[os.write(fd, data) :]
    os.close(fd)


def test_what_a_worker_wrote_last_is_known_when_it_is_gone(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    paths = [relay.add(rank, is_shown=rank == 0) for rank in (0, 1)]
    for rank, path in enumerate(paths):
        write(path, b"line %d\nend" % rank)
        assert relay.last_lines(rank) == f"line {rank}\nend"
        assert relay.last_lines(rank) == f"line {rank}\nend"
    assert relay.last_lines(2) == ""
    relay.close(DEADLINE_S)
    assert os.read(pipe[0], 4096) == b"line 0\nend"
    assert list(tmp_path.iterdir()) == []


def test_rounds_follow_one_another(tmp_path: Path, pipe: tuple[int, int]) -> None:
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    for number in range(3):
        write(relay.add(0, is_shown=True), b"round %d\n" % number)
        relay.end_round()
        assert relay.last_lines(0) == ""
    relay.close(DEADLINE_S)
    assert os.read(pipe[0], 4096) == b"round 0\nround 1\nround 2\n"


def test_a_worker_waits_for_a_reader_and_nothing_is_lost(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    """As it would if it wrote there itself; its end is remembered all the same."""
    data = b"%07d\n" * 1_000_000 % tuple(range(1_000_000))
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    writer = threading.Thread(target=write, args=(relay.add(0, is_shown=True), data))
    writer.start()
    received = bytearray()
    while len(received) < len(data):
        received += os.read(pipe[0], 1 << 20)
    assert received == data
    writer.join()
    assert relay.last_lines(0) == "\n".join(f"{number:07}" for number in range(999_950, 1_000_000))
    relay.close(DEADLINE_S)


def test_a_worker_that_is_not_shown_waits_for_no_reader(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    write(relay.add(0, is_shown=False), b"x" * 20_000_000)
    assert len(relay.last_lines(0)) == BYTES_MAX
    relay.close(DEADLINE_S)


def test_a_destination_that_takes_nothing_is_given_up(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    write(relay.add(0, is_shown=True), b"x" * 500_000)
    assert relay.last_lines(0).endswith("xxx")
    relay.close(10 * MS)


def test_a_destination_that_is_gone_holds_no_worker_up(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    relay = StderrRelay(lambda: tmp_path, write_fd)
    os.close(read_fd)
    write(relay.add(0, is_shown=True), b"x" * 20_000_000)
    relay.close(DEADLINE_S)
    os.close(write_fd)


def test_without_workers_there_is_nothing_to_do(tmp_path: Path, pipe: tuple[int, int]) -> None:
    relay = StderrRelay(lambda: tmp_path, pipe[1])
    relay.end_round()
    relay.close(DEADLINE_S)
    with pytest.raises(OSError, match="Bad file descriptor"):
        StderrRelay(lambda: tmp_path, 987)
