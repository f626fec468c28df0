"""Shell. What this host knows of a worker's end: cgroups, the kernel log, /dev/shm.

All is read at once and in bounded time, from files that the kernel makes up in memory.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from signal import Signals
from typing import TYPE_CHECKING

from agent.workers.failures.exit_status import signal_within
from agent.workers.failures.explain import Evidence, KernelLine, MemoryGroup, explain

if TYPE_CHECKING:
    from agent.workers.supervisor.messages import WorkerError

LOG_BYTES_MAX = 256 * 1024
"""Read at one go; a kernel that says more is being flooded, and the rest is skipped."""

LOG_LINES_MAX = 200
_RECORD_BYTES_MAX = 8192
"""The longest record of /dev/kmsg; a shorter read of one fails."""

_FILE_BYTES_MAX = 64 * 1024

_PREFIX = re.compile(r"\d+,\d+,\d+,[^;]*;")
_OOM_KILL = re.compile(r"[Kk]illed process (\d{1,9})\b")
_PROCESS = re.compile(r"(?:\bpid\b[ =:'\"]*|\bprocess |\[)(\d{1,9})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the kernel's files are."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - asked for its size only
    kernel_log: Path = Path("/dev/kmsg")


class Explainer:
    """Remembers how things stood when a round began, and explains ends by what is new.

    ``script`` is that of the workers, if they run one.
    """

    def __init__(self, script: str | None = None, roots: Roots | None = None) -> None:
        self._script = Path(script) if script else None
        self._roots = roots or Roots()
        self._kernel_log = KernelLog(self._roots.kernel_log)
        # By pid; "self" is the agent, where a worker is looked for that was gone too soon.
        self._cgroups: dict[int | str, _Cgroup] = {}
        self._before: dict[Path, tuple[int | None, int | None]] = {}
        self._host_before: int | None = None

    def begin_round(self) -> None:
        """Take the readings that later ones are compared with; before workers start."""
        self._cgroups.clear()
        self._before.clear()
        self._kernel_log.forget()
        self._host_before = self._host_oom_kills()
        self.note_workers(["self"])

    def note_workers(self, pids: Iterable[int | str]) -> None:
        """Note where workers are accounted for, which can't be read once they are gone."""
        for pid in pids:
            cgroup = _find_cgroup(self._roots.proc / str(pid) / "cgroup", self._roots.cgroup)
            if cgroup is not None:
                self._cgroups[pid] = cgroup
                if cgroup.directory not in self._before:
                    self._before[cgroup.directory] = cgroup.counters()

    def explain(
        self,
        exit_code: int,
        pid: int = 0,
        *,
        is_stopped: bool = False,
        error: WorkerError | None = None,
        stacks: str = "",
    ) -> str:
        """Return why a worker, or the supervisor, likely ended; empty if it ended well."""
        evidence = Evidence(
            exit_code=exit_code,
            pid=pid,
            is_stopped=is_stopped,
            # What a crash left comes as an error, too.
            has_error=error is not None and not (stacks and error.traceback == stacks),
            has_stacks=bool(stacks),
        )
        return explain(evidence if is_stopped else self._completed(evidence))

    def close(self) -> None:
        """Close what is open."""
        self._kernel_log.close()

    def _completed(self, evidence: Evidence) -> Evidence:
        signal = signal_within(evidence.exit_code)
        if signal is None:
            is_missing = self._script is not None and not self._script.exists()
            return replace(evidence, missing_script=str(self._script) if is_missing else "")
        evidence = replace(evidence, kernel_lines=self._kernel_log.lines())
        if signal is Signals.SIGKILL:
            kills = _rise(self._host_oom_kills(), self._host_before)
            return replace(evidence, memory=self._memory(evidence.pid), host_oom_kills=kills)
        if signal is Signals.SIGBUS:
            with suppress(OSError):
                usage = shutil.disk_usage(self._roots.shared_memory)
                return replace(evidence, shared_memory=(usage.total, usage.free))
        return evidence

    def _memory(self, pid: int) -> MemoryGroup | None:
        cgroup = self._cgroups.get(pid) or self._cgroups.get("self")
        if cgroup is None:
            return None
        kills, hits = map(_rise, cgroup.counters(), self._before[cgroup.directory])
        limit = cgroup.limit_bytes()
        return MemoryGroup(name=cgroup.name, oom_kills=kills, limit_hits=hits, limit_bytes=limit)

    def _host_oom_kills(self) -> int | None:
        """Return how many processes the kernel has ended for want of memory since its start."""
        return _pairs(self._roots.proc / "vmstat").get("oom_kill")


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """A directory with the files of one cgroup's memory."""

    name: str
    directory: Path
    is_unified: bool

    def counters(self) -> tuple[int | None, int | None]:
        """Read how many processes were killed for want of memory, and how often it was short."""
        if self.is_unified:
            events = _pairs(self.directory / "memory.events")
            return events.get("oom_kill"), events.get("max")
        control = _pairs(self.directory / "memory.oom_control")
        return control.get("oom_kill"), _number(_read(self.directory / "memory.failcnt"))

    def limit_bytes(self) -> int | None:
        name = "memory.max" if self.is_unified else "memory.limit_in_bytes"
        limit = _number(_read(self.directory / name))
        # Version 1 writes "none" as a number near the end of all numbers.
        return limit if limit is not None and limit < 2**60 else None


def _find_cgroup(memberships: Path, root: Path) -> _Cgroup | None:
    """Return the cgroup that accounts for a process's memory; ``None`` if it can't be seen."""
    unified = ""
    for line in _read(memberships).splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            return _locate(name, root / "memory", "memory.oom_control", is_unified=False)
        unified = unified if controllers else name or unified
    return _locate(unified, root, "memory.events", is_unified=True) if unified else None


def _locate(name: str, root: Path, file: str, *, is_unified: bool) -> _Cgroup | None:
    parts = PurePosixPath(name.strip()).parts[1:]
    # A container may see its own cgroup as the root, under a name that only its host knows.
    own = [root.joinpath(*parts)] if ".." not in parts else []
    for directory in (*own, root):
        if (directory / file).exists():
            return _Cgroup(name.strip(), directory, is_unified)
    return None


class KernelLog:
    """Follows the kernel log without ever waiting; what stood in it before is passed over.

    ``path`` is /dev/kmsg, which gives one record at a time, or a file of text.
    """

    def __init__(self, path: Path) -> None:
        self._kept: deque[KernelLine] = deque(maxlen=LOG_LINES_MAX)
        self._fd = -1
        with suppress(OSError):  # most containers may not
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.forget()

    def forget(self) -> None:
        """Pass over all that was said so far."""
        self._kept.clear()
        self._skip()

    def lines(self) -> tuple[KernelLine, ...] | None:
        """Return what was said of processes since ``forget``; ``None`` if it can't be read."""
        if self._fd < 0:
            return None
        read = 0
        while read < LOG_BYTES_MAX:
            try:
                data = os.read(self._fd, _RECORD_BYTES_MAX)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before we read them; the next one is there
                break
            if not data:
                break
            read += len(data)
            self._take(data)
        else:
            self._skip()
        return tuple(self._kept)

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _skip(self) -> None:
        with suppress(OSError):  # without a log, or of a pipe
            os.lseek(self._fd, 0, os.SEEK_END)

    def _take(self, data: bytes) -> None:
        for line in data.splitlines():
            text = _PREFIX.sub("", line.decode("utf-8", "replace"), count=1).strip()
            kill = _OOM_KILL.search(text)
            if (found := kill or _PROCESS.search(text)) is not None:
                is_oom_kill = kill is not None
                self._kept.append(KernelLine(int(found[1]), text, is_oom_kill=is_oom_kill))


def _rise(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def _read(path: Path) -> str:
    """Return the beginning of a file; empty if it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _pairs(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.partition(" ") for line in _read(path).splitlines())
    numbers = ((name, _number(value)) for name, _, value in pairs)
    return {name: number for name, number in numbers if number is not None}


def _number(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() and len(stripped) < 32 else None
