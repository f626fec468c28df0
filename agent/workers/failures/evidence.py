"""Shell. What this host knows of a worker's end: cgroups, the kernel log, /dev/shm.

All is read at once and in bounded time, from files that the kernel makes up in memory.
"""

import errno
import os
import re
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from signal import Signals

from msgspec import Struct
from msgspec.structs import replace

from agent.runtime.leftovers import PREFIX
from agent.workers.failures.exit_status import (
    Evidence,
    KernelLine,
    MemoryGroup,
    Space,
    explain,
    signal_within,
)

LOG_BYTES_MAX = (
    256 * 1024
)  # read at one go; a kernel that says more is flooded: the rest is skipped
LOG_LINES_MAX = 200
_RECORD_BYTES_MAX = 8192  # the longest record of /dev/kmsg; a shorter read of one fails
_FILE_BYTES_MAX = 64 * 1024
_PREFIX = re.compile(r"\d+,\d+,\d+,[^;]*;")
_OOM_KILL = re.compile(r"[Kk]illed process (\d{1,9})\b")
_PROCESS = re.compile(r"(?:\bpid\b[ =:'\"]*|\bprocess |\[)(\d{1,9})\b")


class Explainer:
    """Remembers how things stood when a round began, and explains ends by what is new.

    ``script`` is that of the workers, if they run one; ``root`` is where the kernel's files are.
    """

    def __init__(self, script: str | None = None, root: Path = Path("/")) -> None:
        self._script = Path(script) if script else None
        self._root = root
        self._kernel_log = KernelLog(root / "dev/kmsg")
        # By pid; "self" is the agent, where a worker is looked for that was gone too soon.
        self._cgroups: dict[int | str, _Cgroup] = {}
        self._before: dict[Path, MemoryGroup] = {}
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
            memberships = self._root / "proc" / str(pid) / "cgroup"
            if (cgroup := _find_cgroup(memberships, self._root / "sys/fs/cgroup")) is not None:
                self._cgroups[pid] = cgroup
                if cgroup.directory not in self._before:
                    self._before[cgroup.directory] = cgroup.memory()

    def explain(self, ended: Evidence) -> str:
        """Return why a worker, or the supervisor, likely ended; empty if it ended well."""
        signal = signal_within(ended.exit_code)
        if ended.is_stopped:
            return explain(ended)
        if signal is None:
            is_missing = self._script is not None and not self._script.exists()
            return explain(replace(ended, missing_script=str(self._script) if is_missing else ""))
        ended = replace(ended, kernel_lines=self._kernel_log.lines())
        if signal is Signals.SIGKILL:
            host_oom_kills = _rise(self._host_oom_kills(), self._host_before)
            ended = replace(ended, host_oom_kills=host_oom_kills)
            if cgroup := self._cgroups.get(ended.pid) or self._cgroups.get("self"):
                now, before = cgroup.memory(), self._before[cgroup.directory]
                kills = _rise(now.oom_kills, before.oom_kills)
                hits = _rise(now.limit_hits, before.limit_hits)
                ended = replace(ended, memory=replace(now, oom_kills=kills, limit_hits=hits))
        elif signal is Signals.SIGBUS:
            with suppress(OSError):
                usage = shutil.disk_usage(self._root / "dev/shm")
                ended = replace(ended, shared_memory=(usage.total, usage.free))
        return explain(ended)

    def close(self) -> None:
        """Close what is open."""
        self._kernel_log.close()

    def _host_oom_kills(self) -> int | None:
        return _pairs(self._root / "proc/vmstat").get("oom_kill")


def space_of(directory: Path) -> Space | None:
    """Return what is left where a directory is; None if that is not known."""
    with suppress(OSError):
        found = os.statvfs(directory)
        blocks = found.f_bavail if os.geteuid() else found.f_bfree  # some are root's
        inodes = found.f_favail if os.geteuid() else found.f_ffree
        return Space(str(directory), blocks * found.f_frsize, inodes if found.f_files else None)
    return None


class _Cgroup(Struct, frozen=True):
    name: str
    directory: Path
    is_unified: bool

    @property
    def events(self) -> Path:
        return self.directory / ("memory.events" if self.is_unified else "memory.oom_control")

    def memory(self) -> MemoryGroup:
        events = _pairs(self.events)
        hits, limit = events.get("max"), _number(_read(self.directory / "memory.max"))
        if not self.is_unified:
            hits = _number(_read(self.directory / "memory.failcnt"))
            limit = _number(_read(self.directory / "memory.limit_in_bytes"))
        # Version 1 writes "none" as a number near the end of all numbers.
        limit = limit if limit is not None and limit < 2**60 else None
        return MemoryGroup(self.name, events.get("oom_kill"), hits, limit)


def _find_cgroup(memberships: Path, root: Path) -> _Cgroup | None:
    """Return the cgroup that accounts for a process's memory; ``None`` if it can't be seen."""
    name, is_unified = "", True
    for line in _read(memberships).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            name, root, is_unified = path, root / "memory", False
            break
        if not controllers:
            name = path or name
    own_path = PurePosixPath(name.strip())
    if own_path.name.startswith(PREFIX):  # the agent's, which has no memory controller
        own_path = own_path.parent
        name = str(own_path)
    parts = own_path.parts[1:]
    # A container may see its own cgroup as the root, under a name that only its host knows.
    own = [root.joinpath(*parts)] if ".." not in parts else []
    for directory in (*own, root):
        cgroup = _Cgroup(name.strip(), directory, is_unified)
        if name and cgroup.events.exists():
            return cgroup
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
        with suppress(OSError):  # without a log, or of a pipe
            os.lseek(self._fd, 0, os.SEEK_END)

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
            for line in data.splitlines():
                text = _PREFIX.sub("", line.decode("utf-8", "replace"), count=1).strip()
                kill = _OOM_KILL.search(text)
                if (found := kill or _PROCESS.search(text)) is not None:
                    self._kept.append(KernelLine(int(found[1]), text, kill is not None))
        else:
            with suppress(OSError):
                os.lseek(self._fd, 0, os.SEEK_END)
        return tuple(self._kept)

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _rise(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def _read(path: Path) -> str:
    """Return the beginning of a file; empty if it can't be read."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    return ""


def _pairs(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.partition(" ") for line in _read(path).splitlines())
    numbers = ((name, _number(value)) for name, _, value in pairs)
    return {name: number for name, number in numbers if number is not None}


def _number(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() and len(stripped) < 32 else None
