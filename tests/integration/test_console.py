"""A console that takes nothing does not hold up the agent."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from drumbeat.command import console
from drumbeat.command.console import Console, open_missing
from tests.support.full_disk import DEVICE, FullDisk
from tests.support.waiting import wait_until_sync


class Pipe:
    """A console that takes nothing until it is read."""

    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        self.stream: TextIO = open(write_fd, "w", encoding="utf-8")  # noqa: PTH123, SIM115

    def read(self, size: int) -> str:
        data = b""
        while len(data) < size and (chunk := os.read(self.read_fd, size - len(data))):
            data += chunk
        return data.decode()

    def read_line(self) -> str:
        text = ""
        while not text.endswith("\n"):
            text += self.read(1)
        return text

    def close(self) -> None:
        self.stream.close()
        os.close(self.read_fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_what_is_written_arrives_in_order(pipe: Pipe) -> None:
    shown = Console(pipe.stream)
    for number in range(100):
        shown.write(f"line {number}\n")
    shown.close()
    expected = "".join(f"line {number}\n" for number in range(100))
    assert pipe.read(len(expected)) == expected


def test_a_stalled_console_drops_counts_and_says_so_when_it_flows_again(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PENDING_BYTES_MAX", 200_000)
    line = "x" * 99 + "\n"
    shown = Console(pipe.stream)
    for _ in range(5_000):
        shown.write(line)
    shown_lines = dropped = 0
    while shown_lines + dropped < 5_000:
        text = pipe.read_line()
        if text.startswith("("):
            assert text.endswith(" not shown: this console took nothing)\n")
            dropped += int(text[1:].split()[0])
        else:
            assert text == line
            shown_lines += 1
    assert dropped > 1_000
    shown.write("after\n")
    assert pipe.read_line() == "after\n"
    shown.close()


def test_text_waits_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(tmp_path / "console", monkeypatch)
    with Path(DEVICE).open("w", encoding="utf-8") as stream:
        shown = Console(stream)
        for number in range(20):
            shown.write(f"line {number}\n")
        assert disk.has_refused.wait(20)
        disk.make_room()
        shown.write("after\n")
        shown.close(stall_s=20)
    expected = [*(f"line {number}" for number in range(20)), "after"]
    assert (tmp_path / "console").read_text().splitlines() == expected


def test_the_end_does_not_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(tmp_path / "console", monkeypatch)
    with Path(DEVICE).open("w", encoding="utf-8") as stream:
        shown = Console(stream)
        shown.write("lost\n")
        assert disk.has_refused.wait(20)
        shown.close(stall_s=0.05)
        wait_until_sync(lambda: "console" not in {each.name for each in threading.enumerate()}, 20)


def test_the_end_does_not_wait_for_a_stalled_console(pipe: Pipe) -> None:
    shown = Console(pipe.stream)
    shown.write("x" * 1_000_000)
    shown.close(stall_s=0.05)  # returns before anything is read
    assert pipe.read(1_000_000) == "x" * 1_000_000  # and lets its thread end


def test_a_reader_that_has_gone_loses_text_and_no_more() -> None:
    made = Pipe()
    shown = Console(made.stream)
    os.close(made.read_fd)
    shown.write("unread\n")
    shown.close()
    made.stream.close()


def test_closed_standard_streams_are_opened_before_anything_gets_their_number() -> None:
    script = (
        "import os, sys\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "sys.stdout = sys.stderr = None\n"
        "from drumbeat.command.console import open_missing\n"
        "open_missing()\n"
        "assert [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)] == ['/dev/null'] * 3\n"
        "assert os.get_inheritable(2) and not sys.stderr.isatty()\n"
        "print('nothing', file=sys.stderr, flush=True)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_open_standard_streams_are_left_alone() -> None:
    before = [os.fstat(fd).st_ino for fd in range(3)], sys.stderr
    open_missing()
    assert ([os.fstat(fd).st_ino for fd in range(3)], sys.stderr) == before
