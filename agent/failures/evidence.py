"""Shell. Collects evidence of why a worker ended: cgroups, the kernel log, /dev/shm.

All is read at once and in bounded time, from files that the kernel makes up in memory.
"""

import errno
import os
import re
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from signal import Signals

from msgspec.structs import replace

from drumbeat.agent.failures.exit_status import (
    ExitEvidence,
    KernelLine,
    Space,
    explain,
    signal_within,
)
from drumbeat.agent.host.memory.cgroups import Cgroup, find_cgroup, read_pairs
from drumbeat.agent.host.memory.growth import MemoryGroup

# Read at one go; a kernel that says more is flooded: the rest is skipped.
LOG_BYTES_MAX = 256 * 1024
LOG_LINES_MAX = 200
_RECORD_BYTES_MAX = 8192  # the longest record of /dev/kmsg; a shorter read of one fails
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
        self._cgroups: dict[int | str, Cgroup] = {}
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
            if (cgroup := find_cgroup(memberships, self._root / "sys/fs/cgroup")) is not None:
                self._cgroups[pid] = cgroup
                if cgroup.directory not in self._before:
                    self._before[cgroup.directory] = cgroup.memory()

    def explain(self, ended: ExitEvidence) -> str:
        """Return why a worker, or the supervisor, likely ended; empty if it ended well."""
        return explain(self.completed(ended))

    def completed(self, ended: ExitEvidence) -> ExitEvidence:
        """Add what this host knows about the end of a worker, or of the supervisor."""
        signal = signal_within(ended.exit_code)
        if ended.is_stopped:
            return ended
        if signal is None:
            is_missing = self._script is not None and not self._script.exists()
            return replace(ended, missing_script=str(self._script) if is_missing else "")
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
        return ended

    def close(self) -> None:
        """Close what is open."""
        self._kernel_log.close()

    def _host_oom_kills(self) -> int | None:
        return read_pairs(self._root / "proc/vmstat").get("oom_kill")


def space_of(directory: Path) -> Space | None:
    """Return what is left where a directory is; None if that is not known."""
    with suppress(OSError):
        stats = os.statvfs(directory)
        blocks = stats.f_bavail if os.geteuid() else stats.f_bfree  # some are root's
        inodes = stats.f_favail if os.geteuid() else stats.f_ffree
        return Space(str(directory), blocks * stats.f_frsize, inodes if stats.f_files else None)
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
                if (match := kill or _PROCESS.search(text)) is not None:
                    self._kept.append(KernelLine(int(match[1]), text, kill is not None))
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
