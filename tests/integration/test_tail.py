"""The tee with real files, pipes and writing processes."""

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from drumbeat.agent.workers.output import destination, inotify, sources
from drumbeat.agent.workers.output.tail import Tail
from tests.support.waiting import MS, wait_until_sync

DEADLINE_S = 20_000 * MS
"""Far longer than anything here takes."""


class Reader:
    """Reads a pipe to its end, in a thread."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe()
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.write_fd)
        self._thread.join()
        os.close(self.fd)

    def _read(self) -> None:
        while chunk := os.read(self.fd, 1 << 20):
            self._chunks.append(chunk)

    @property
    def data(self) -> bytes:
        return b"".join(self._chunks)

    def has(self, data: bytes) -> bool:
        return self.data == data


def shell(script: str, path: Path) -> None:
    with path.open("wb") as file:
        subprocess.run(["sh", "-c", script], stdout=file, check=True, timeout=DEADLINE_S)


@pytest.fixture
def unread() -> Iterator[int]:
    """Return a pipe that is full and is not read."""
    read_fd, write_fd = os.pipe()
    own_fd = os.open(f"/proc/self/fd/{write_fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(own_fd, b"x" * 4096)
    except BlockingIOError:
        pass
    os.close(own_fd)
    yield write_fd
    os.close(write_fd)
    os.close(read_fd)


def test_lines_are_shown_as_they_are_written(tmp_path: Path) -> None:
    with Reader() as reader:
        following = Tail()
        following.add(str(tmp_path / "a"), reader.write_fd, prefix=b"[a]:")
        with (tmp_path / "a").open("wb", buffering=0) as file:
            for number in range(3):
                file.write(b"line %d\nbegun" % number)
                expected = b"[a]:" + b"\n[a]:".join(
                    (b"begun" if index else b"") + b"line %d" % index for index in range(number + 1)
                )
                wait_until_sync(partial(reader.has, expected + b"\n"), DEADLINE_S)
        following.close()
        wait_until_sync(lambda: reader.data.endswith(b"\n[a]:begun\n"), DEADLINE_S)


def test_nothing_is_lost_when_a_writer_is_gone_at_once(tmp_path: Path) -> None:
    """A hundred writers that exit at once, each with a last line that has no end."""
    with Reader() as reader:
        following = Tail()
        for number in range(100):
            path = tmp_path / str(number)
            file = following.add(str(path), reader.write_fd, prefix=b"[%d]:" % number)
            shell("echo one; echo two; printf last", path)
            file.finish()
        following.close()
    lines = reader.data.splitlines()
    for number in range(100):
        own = [line for line in lines if line.startswith(b"[%d]:" % number)]
        assert own == [b"[%d]:%s" % (number, word) for word in (b"one", b"two", b"last")]
    assert len(lines) == 300


def test_lines_of_several_writers_keep_their_order_and_their_shape(tmp_path: Path) -> None:
    count = 20_000
    with Reader() as reader:
        following = Tail()
        for name in "abc":
            following.add(str(tmp_path / name), reader.write_fd, prefix=name.encode() + b" ")
        script = f"for i in range({count}): print(i, 'x' * (i % 50))"
        writers = []
        for name in "abc":
            with (tmp_path / name).open("wb") as file:
                writers.append(subprocess.Popen([sys.executable, "-c", script], stdout=file))
        assert [writer.wait() for writer in writers] == [0, 0, 0]
        following.close()
    lines = reader.data.decode().splitlines()
    assert len(lines) == 3 * count
    for name in "abc":
        own = [line for line in lines if line.startswith(name)]
        assert own == [f"{name} {index} {'x' * (index % 50)}" for index in range(count)]


def test_a_full_pipe_holds_up_neither_the_writer_nor_the_caller(
    tmp_path: Path, unread: int
) -> None:
    """The writer's 100 MB would take forever if anything waited for the pipe."""
    path = tmp_path / "a"
    following = Tail()
    following.add(str(path), unread)
    shell("yes | head -c 100000000", path)
    assert path.stat().st_size == 100_000_000
    (source,) = following._sources
    assert isinstance(source, sources.FollowedFile)
    assert source.position <= 2 * destination.PENDING_BYTES_MAX  # the rest waits in the file
    began = time.monotonic()
    following.stall_s = 0.1
    following.close()
    assert time.monotonic() - began < DEADLINE_S


def test_another_destination_does_not_suffer_from_a_full_one(tmp_path: Path, unread: int) -> None:
    with Reader() as reader:
        following = Tail()
        following.add(str(tmp_path / "out"), unread)
        following.add(str(tmp_path / "err"), reader.write_fd)
        shell("yes | head -c 5000000", tmp_path / "out")
        shell("echo here", tmp_path / "err")
        wait_until_sync(lambda: reader.data == b"here\n", DEADLINE_S)
        following.stall_s = 0
        following.close()


def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    """The end is longer than any pipe, and each bit of progress renews the patience."""
    following = Tail()
    read_fd, write_fd = os.pipe()
    following.add(str(tmp_path / "a"), write_fd)
    os.close(write_fd)
    shell("yes | head -c 3000000", tmp_path / "a")
    closer = threading.Thread(target=following.close)
    closer.start()
    taken = 0
    while chunk := os.read(read_fd, 65536):
        taken += len(chunk)
    closer.join()
    os.close(read_fd)
    assert taken == 3_000_000


def test_a_closed_destination_is_dropped_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read_fd, write_fd = os.pipe()
    following = Tail()
    following.add(str(tmp_path / "a"), write_fd)
    os.close(read_fd)
    shell("yes | head -c 1000000", tmp_path / "a")
    following.close()
    os.close(write_fd)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["file", "socket", "text"])
def test_other_kinds_of_destinations_work(tmp_path: Path, kind: str) -> None:
    shell("seq 1000", tmp_path / "a")
    expected = "".join(f"> {number}\n" for number in range(1, 1001))
    following = Tail()
    if kind == "file":
        with (tmp_path / "out").open("wb") as file:
            file.write(b"before\n")
            file.flush()
            following.add(str(tmp_path / "a"), file.fileno(), prefix=b"> ")
        following.close()
        assert (tmp_path / "out").read_text() == "before\n" + expected
    elif kind == "socket":
        ours, theirs = socket.socketpair()
        with ours, theirs:
            following.add(str(tmp_path / "a"), theirs.fileno(), prefix=b"> ")
            theirs.close()
            following.close()
            assert ours.makefile().read() == expected
    else:
        text = io.StringIO()
        following.add(str(tmp_path / "a"), text, prefix=b"> ")
        following.close()
        assert text.getvalue() == expected


def test_chosen_lines_also_go_elsewhere(tmp_path: Path) -> None:
    with Reader() as reader, (tmp_path / "chosen").open("wb") as chosen:
        following = Tail()
        for rank in range(2):
            path = tmp_path / str(rank)
            following.add(
                str(path),
                reader.write_fd,
                prefix=b"[%d]:" % rank,
                filters=["loss", "ünï"],
                filtered=chosen.fileno(),
            )
            shell("echo loss 1; echo other; echo 2 ünï; printf loss", path)
        following.close()
    text = (tmp_path / "chosen").read_text()
    for rank in range(2):
        lines = [line for line in text.splitlines() if line.startswith(f"[{rank}]:")]
        assert lines == [f"[{rank}]:loss 1", f"[{rank}]:2 ünï", f"[{rank}]:loss"]
    assert reader.data.count(b"\n") == 8


def test_a_huge_line_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(200_000_000)  # a hole of zeros, and not one line end
    with (tmp_path / "out").open("wb") as out:
        script = (
            "import sys\n"
            "from drumbeat.agent.workers.output.tail import Tail\n"
            "following = Tail()\n"
            "following.add(sys.argv[1], 1)\n"
            "following.close()\n"
            "lines = open('/proc/self/status').readlines()\n"
            "print(*[line for line in lines if line.startswith('VmHWM')], file=sys.stderr)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            stdout=out,
            stderr=subprocess.PIPE,
            check=True,
            timeout=DEADLINE_S,
        )
    _, peak_kib, _ = ran.stderr.split()
    assert int(peak_kib) < 100 * 1024
    assert (tmp_path / "out").stat().st_size >= 200_000_000


def test_a_file_that_is_cut_is_followed_from_its_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Reader() as reader:
        following = Tail()
        following.add(str(path), reader.write_fd)
        with path.open("ab", buffering=0) as file:
            file.write(b"long old line\n")
            wait_until_sync(lambda: reader.data == b"long old line\n", DEADLINE_S)
            file.truncate(0)
            file.write(b"new\n")
        following.close()
        wait_until_sync(lambda: reader.data == b"long old line\nnew\n", DEADLINE_S)


def test_finished_files_give_their_descriptors_back(tmp_path: Path) -> None:
    """As an agent does that shows one round after the other with the same tail."""
    following = Tail()
    with Reader() as reader:
        for number in range(5):
            path = tmp_path / str(number)
            chosen = os.open(tmp_path / f"chosen{number}", os.O_WRONLY | os.O_CREAT)
            file = following.add(str(path), reader.write_fd, filters=["x"], filtered=chosen)
            os.close(chosen)
            shell("echo x", path)
            file.finish()
        wait_until_sync(lambda: not following._sources and not following._destinations, DEADLINE_S)
        following.close()
    assert reader.data == b"x\n" * 5


def test_without_inotify_the_files_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may have used up what the kernel lends: 128 watchers per user by default."""

    def refuse(*_: object) -> int:
        raise OSError(24, "inotify: Too many open files")

    monkeypatch.setattr(inotify, "_call", refuse)
    with Reader() as reader:
        following = Tail()
        following.add(str(tmp_path / "a"), reader.write_fd)
        shell("echo late", tmp_path / "a")
        wait_until_sync(lambda: reader.data == b"late\n", DEADLINE_S)
        following.close()


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    following = Tail()
    with pytest.raises(FileNotFoundError):
        following.add(str(tmp_path / "missing" / "a"), 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        following.add(str(tmp_path / "a"), 987)
    following.close()


def test_a_file_waits_for_those_of_earlier_turns(tmp_path: Path) -> None:
    """However much of them is still to be shown, and only if they lead to the same place."""
    size = 4 * sources.CHUNK_BYTES
    (tmp_path / "first").write_bytes(b"1" * size)
    (tmp_path / "second").write_bytes(b"2\n")
    (tmp_path / "elsewhere").write_bytes(b"3\n")
    with Reader() as reader, Reader() as other:
        following = Tail()
        first = following.add(str(tmp_path / "first"), reader.write_fd, turn=1)
        following.add(str(tmp_path / "second"), reader.write_fd, turn=2)
        following.add(str(tmp_path / "elsewhere"), other.write_fd, turn=2)
        wait_until_sync(partial(other.has, b"3\n"), DEADLINE_S)
        with (tmp_path / "first").open("ab") as file:
            file.write(b"\nend")
        first.finish()
        following.close()
    assert reader.data == b"1" * size + b"\nend\n2\n"
