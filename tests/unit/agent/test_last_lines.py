"""What the end of a worker's standard error tells."""

import pytest

from drumbeat.agent.workers.output.lines import (
    LAST_BYTES_MAX,
    LAST_LINES_MAX,
    exception_in,
    last_lines,
)

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    go()\n'


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        ("", ""),
        ("training\nfailed\n", ""),
        (TRACEBACK + "ValueError: boom\nsecond line\nbye", "ValueError: boom"),
        (TRACEBACK + "torch.distributed.DistBackendError: NCCL", None),
        (TRACEBACK + "KeyboardInterrupt", "KeyboardInterrupt"),
        (TRACEBACK + "A: 1\n\nDuring handling of ...\n\n" + TRACEBACK + "B: 2", "B: 2"),
        ("\n".join(f"[rank3]: {line}" for line in (TRACEBACK + "OSError: gone").split("\n")), None),
        ('  File "x.py", line 1\n    def\n       ^\nSyntaxError: invalid syntax', None),
        (TRACEBACK, ""),
        (TRACEBACK + "12 of 30 batches", ""),
    ],
)
def test_the_exception_of_the_last_traceback_is_found(text: str, exception: str | None) -> None:
    last = text.rpartition("\n")[2].removeprefix("[rank3]: ")
    expected = last if exception is None else exception
    assert exception_in(text) == expected


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"one\r\ntwo", "one\ntwo"),
        (b"\n\nend\n", "\n\nend"),
        (b"start\n 1%\r 2%\r 3%\rboom\n", "start\nboom"),
        (b" 1%\r 2%\r", " 2%"),
        (b"\xff\n\xc3\xbc\n", "\ufffd\nü"),
    ],
)
def test_last_lines_are_what_a_terminal_leaves(data: bytes, text: str) -> None:
    assert last_lines(data) == text


def test_last_lines_have_a_limit() -> None:
    lines = [f"line {number}" for number in range(LAST_LINES_MAX + 3)]
    assert last_lines("\n".join(lines).encode()) == "\n".join(lines[3:])
    assert last_lines(b"x" * LAST_BYTES_MAX + b"end") == "x" * (LAST_BYTES_MAX - 3) + "end"
