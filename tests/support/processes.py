"""One process of ours in a test, with all it writes."""

import contextlib
import itertools
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import MS

ROOT = Path(__file__).resolve().parents[2]

DEADLINE_S = 40_000 * MS
"""Far longer than anything here takes; only a failing test waits for it."""

LOG_CHARACTERS_SHOWN = 6000


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a process wrote."""

    stream: str
    """``out`` or ``err``."""
    text: str


class Process:
    """A command of ours, with all it wrote."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = ROOT,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.lines: list[Line] = []
        self._change = threading.Condition()
        self._streams_open = 2
        self._popen = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self.pid = self._popen.pid
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), name=f"{name} {stream}")
            for stream in ("out", "err")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: str) -> None:
        pipe = self._popen.stdout if stream == "out" else self._popen.stderr
        assert pipe is not None, "started with pipes"
        for text in pipe:
            with self._change:
                self.lines.append(Line(stream, text.rstrip("\n")))
                self._change.notify_all()
        with self._change:
            self._streams_open -= 1
            self._change.notify_all()

    # What it wrote.

    @property
    def stdout(self) -> str:
        """All of its standard output so far."""
        return self._text("out")

    @property
    def stderr(self) -> str:
        """All of its standard error so far."""
        return self._text("err")

    def _text(self, stream: str) -> str:
        with self._change:
            return "\n".join(line.text for line in self.lines if line.stream == stream)

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the JSON lines of its log so far."""
        found = []
        for line in self.stderr.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    found.append(entry)
        return found

    def wait_for_line(
        self, pattern: str, timeout_s: float = DEADLINE_S, *, count: int = 1
    ) -> re.Match[str]:
        """Return the match of the ``count``-th line, of either stream, that matches anywhere."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while True:
                matches = (re.search(pattern, line.text) for line in self.lines)
                found = list(itertools.islice((m for m in matches if m), count))
                if len(found) == count:
                    return found[-1]
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._streams_open:
                    break
                self._change.wait(left_s)
        raise AssertionError(f"{self.name} wrote no line with {pattern!r}\n{self.log()}")

    def log(self) -> str:
        """Return what it was and what it wrote, for a failure message."""
        with self._change:
            text = "\n".join(f"  {line.stream}: {line.text}" for line in self.lines)
        code = self._popen.poll()
        state = "running" if code is None else f"ended with {code}"
        shown = text if len(text) <= LOG_CHARACTERS_SHOWN else f"  …{text[-LOG_CHARACTERS_SHOWN:]}"
        return f"--- {self.name}, pid {self.pid}, {state}: {' '.join(self.argv[1:])}\n{shown}"

    # Its life.

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Return its exit code (the negated number for a signal) once it has ended."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {timeout_s:g} s\n{self.log()}"
            ) from None
        # Its last lines too, unless somebody it left behind holds its pipes.
        with self._change:
            self._change.wait_for(lambda: not self._streams_open, 2000 * MS)
        return code

    def send(self, signum: int) -> None:
        """Send a signal."""
        self._popen.send_signal(signum)

    def kill(self) -> None:
        """End it with SIGKILL, and return when it has ended."""
        self._popen.kill()
        self._popen.wait(DEADLINE_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send(signal.SIGTERM)

    def stop(self) -> None:
        """Freeze it with SIGSTOP, as a machine that hangs."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def close(self) -> None:
        """End it; the readers end with the last process that holds its pipes."""
        if self.is_running:
            self.cont()
            self._popen.kill()
        self._popen.wait()

    def join_readers(self) -> None:
        """Return when everything it wrote was read."""
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._popen.stdout, self._popen.stderr):
            assert pipe is not None, "started with pipes"
            pipe.close()


def assert_refused(process: Process, code: int, *words: str) -> None:
    """A command ends with its errors, one a line, and a hint at most; they have all of ``words``.

    What it logged before is left out: lines of JSON, and plain ones, which begin with the date.
    """
    assert process.wait() == code, process.log()
    said = [line for line in process.stderr.splitlines() if not re.match(r"\{|\d{4}-", line)]
    marks = "".join(re.sub("^[a-z]+: (error|hint): .*", r"\1 ", line) for line in said)
    assert re.fullmatch("(error )+(hint )?", marks), process.log()
    for word in words:
        assert word in "\n".join(said), process.log()
