"""What the end of a worker's standard error tells."""

from __future__ import annotations

import pytest

from drumbeat.agent.workers.output.lines import exception_in

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
