"""Programs of a round: each on a host, over any number of lives, with a log of each life."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.chaos.network import Host

MARK = "CHAOS_ROUND"
"""Variable that every process below a round inherits, so that none is overlooked."""
PROC = Path("/proc")
LOOK_S = 0.01
STOPPED, ZOMBIE = "T", "Z"


class Program:
    """A command on a host."""

    def __init__(
        self, name: str, host: Host, argv: Sequence[str], env: Mapping[str, str], logs: Path
    ) -> None:
        self.name, self.host = name, host
        self._argv, self._env, self._logs = tuple(argv), dict(env), logs
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.due_at: float | None = None
        """When it is to start again; None: it runs, or nobody wants it."""

    def start(self, argv: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """Begin a life; the last one has ended."""
        assert not self.is_running, f"{self.name} runs"
        self.lives += 1
        self.due_at = None
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*self.host.prefix, *(argv or self._argv)],
                env={**self._env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log_path(self) -> Path:
        """Where its present life writes."""
        return self._logs / f"{self.name}-{self.lives}.log"

    @property
    def log(self) -> str:
        """What its present life has written."""
        return self.log_path.read_text(errors="replace") if self.lives else ""

    @property
    def pid(self) -> int:
        """Of its present or last life; 0: there was none."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How its last life ended; negative: by a signal."""
        return self._process.poll() if self._process else None

    def send(self, signum: int) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signum)

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit code; None: it still runs."""
        assert self._process is not None, "it was started"
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def wait_for_line(self, text: str, timeout_s: float) -> None:
        """Return once its log has a text. Raises ``AssertionError`` if that never comes."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            assert time.monotonic() < deadline, f"{self.name} wrote no {text!r}:\n{self.log}"
            assert self.is_running, f"{self.name} ended with {self.exit_code}:\n{self.log}"
            time.sleep(LOOK_S)


def processes() -> Iterator[int]:
    """Return all processes of this namespace."""
    for path in PROC.iterdir():
        if path.name.isdecimal():
            yield int(path.name)


def marked(mark: str) -> dict[int, str]:
    """Return the living processes that inherited a mark, with their command lines."""
    wanted = f"{MARK}={mark}".encode()
    seen = {}
    for pid in processes():
        with suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                seen[pid] = command_line(pid)
    return seen


def command_line(pid: int) -> str:
    """Return how a process was started; empty: it has ended."""
    with suppress(OSError):
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def state(pid: int) -> tuple[str, int]:
    """Return the state letter of a process and its parent; empty: it has ended."""
    with suppress(OSError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    return "", 0


def descendants(pid: int) -> list[int]:
    """Return the living processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for each in processes():
        children.setdefault(state(each)[1], []).append(each)
    below, unseen = [], [pid]
    while unseen:
        new = children.get(unseen.pop(0), [])
        below += new
        unseen += new
    return below


def on_host(host: Host) -> list[int]:
    """Return all processes in a host's network."""
    with suppress(OSError):
        wanted = os.stat(host.prefix[1].partition("=")[2]).st_ino  # noqa: PTH116 - a link of /proc
        return [pid for pid in processes() if _network(pid) == wanted]
    return []


def _network(pid: int) -> int:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - a link of /proc
    return 0


def signal_all(pids: Sequence[int], signum: int) -> None:
    """Send a signal to those that still live."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def resources(pid: int) -> tuple[int, int]:
    """Return open descriptors, and resident memory in bytes; zeros: it has ended."""
    with suppress(OSError):
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return len(list((PROC / str(pid) / "fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE")
    return 0, 0


def descriptors(pid: int) -> list[str]:
    """Return what the open descriptors of a process lead to."""
    with suppress(OSError):
        return sorted(str(each.readlink()) for each in (PROC / str(pid) / "fd").iterdir())
    return []


def freeze(pids: Sequence[int]) -> None:
    """Stop processes at once, as a machine that stands still."""
    signal_all(pids, signal.SIGSTOP)


def thaw(pids: Sequence[int]) -> None:
    """Let them go on."""
    signal_all(pids, signal.SIGCONT)
