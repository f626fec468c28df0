"""The live line of a terminal: nothing of others is lost or mixed with it, and nothing waits."""

import os
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from drumbeat.command import live_line
from drumbeat.command.live_line import LiveLine, device_of, line_at, open_line


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 40))
    yield master, slave
    for line in list(live_line._open):
        line.close()
    os.close(slave)
    os.close(master)


def opened(slave: int) -> LiveLine:
    line = open_line(slave)
    assert line is not None
    return line


def read(master: int, expected: bytes) -> bytes:
    """Return what the terminal got, as long as is expected: the kernel may pass it on in pieces."""
    got = os.read(master, 1000)
    while len(got) < len(expected) and expected.startswith(got):
        got += os.read(master, 1000)
    return got


def fill(line: LiveLine) -> None:
    while line.write(b"z" * 100):
        pass


def test_it_stands_below_what_is_written_and_is_cut_to_the_width(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = terminal
    monkeypatch.setattr(live_line, "DRAW_INTERVAL_S", 0.0)
    line = opened(slave)
    line.show("round 0: 4 agents, " + "x" * 100)
    shown = b"round 0: 4 agents, " + b"x" * 20
    expected = b"\r\x1b[K" + shown
    assert read(master, expected) == expected
    assert line.write(b"a log line\n") == 11
    expected = b"\r\x1b[Ka log line\r\n\r\x1b[K" + shown
    assert read(master, expected) == expected
    line.write(b"a progress bar: 10%\r")
    line.show("another")
    expected = b"\r\x1b[Ka progress bar: 10%\r"  # is not drawn over
    assert read(master, expected) == expected
    line.write(b"done\n")
    expected = b"done\r\n\r\x1b[Kanother"
    assert read(master, expected) == expected
    line.close()
    expected = b"\r\x1b[K"
    assert read(master, expected) == expected


def test_foreign_text_cannot_act_on_the_terminal(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    opened(slave).show("in \x1b[2J\n\x07 é")
    assert not set(os.read(master, 1000)[4:]) & {0x1B, 0x07, 0x0A}


def test_a_narrow_terminal_has_none(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    line = opened(slave)
    line.show("something")
    os.read(master, 1000)
    termios.tcsetwinsize(slave, (24, 10))
    line.show("something else")
    assert os.read(master, 1000) == b"\r\x1b[K"


def test_a_terminal_that_takes_nothing_holds_up_nobody(terminal: tuple[int, int]) -> None:
    line = opened(terminal[1])
    line.show("first")
    with pytest.raises(BlockingIOError):
        fill(line)
    line.show("second")
    line.close()  # neither of them waits for the terminal, or the test would end by its timeout


def test_threads_that_write_at_once_lose_nothing(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    line = opened(slave)
    read = bytearray()

    def say(name: str) -> None:
        for number in range(200):
            data = f"{name} {number}\n".encode()
            while data:
                try:
                    data = data[line.write(data) :]
                except BlockingIOError:
                    time.sleep(0.001)

    def take() -> None:
        while b"the end" not in read:
            read.extend(os.read(master, 65536))

    threads = [threading.Thread(target=say, args=(name,)) for name in "ab"]
    reader = threading.Thread(target=take)
    for thread in (*threads, reader):
        thread.start()
    for number in range(50):
        line.show(f"step {number}")
    for thread in threads:
        thread.join()
    line.write(b"the end\n")
    reader.join()
    text = read.decode().replace("\r\n", "\n")
    lines = [row.rpartition("\x1b[K")[2] for row in text.split("\n")]
    for name in "ab":
        assert [row for row in lines if row.startswith(f"{name} ")] == [
            f"{name} {number}" for number in range(200)
        ]


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("TERM", ""), ("CI", "true")])
def test_there_is_none_where_no_user_looks(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert open_line(terminal[1]) is None


def test_there_is_none_in_a_file_and_one_at_most_on_a_terminal(
    terminal: tuple[int, int],
) -> None:
    read, write = os.pipe()
    assert open_line(write) is None
    assert device_of(write) == 0
    os.close(read)
    os.close(write)
    line = opened(terminal[1])
    assert open_line(terminal[1]) is None
    assert line_at(device_of(terminal[1])) is line
    assert line_at(1) is None
    line.close()
    with pytest.raises(BlockingIOError):  # to one that had it in hand: try again
        line.write(b"late\n")
    assert line_at(device_of(terminal[1])) is None
