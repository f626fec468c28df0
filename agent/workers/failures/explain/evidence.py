"""Shell. Collects what this host knows of a worker's end, at once and in bounded time.

All is read from files that the kernel makes up in memory, so that reading never waits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from agent.workers.failures.exit_status import signal_within
from agent.workers.failures.explain.explain import Evidence, MemoryGroup, explain
from agent.workers.failures.explain.kernel_log import KERNEL_LOG, KernelLog
from agent.workers.failures.explain.memory import Cgroup, find_cgroup, host_oom_kills

if TYPE_CHECKING:
    from agent.workers.supervisor.messages import WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the kernel's files are."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - asked for its size only
    kernel_log: Path = KERNEL_LOG


class Explainer:
    """Remembers how things stood when a round began, and explains ends by what is new.

    Args:
        script: That of the workers, if they run one.
        roots: Where to look.
    """

    def __init__(self, script: str | None = None, roots: Roots | None = None) -> None:
        self._script = Path(script) if script else None
        self._roots = roots or Roots()
        self._kernel_log = KernelLog(self._roots.kernel_log)
        self._own: Cgroup | None = None
        self._cgroups: dict[int, Cgroup] = {}
        self._before: dict[Path, tuple[int | None, int | None]] = {}
        self._host_before: int | None = None

    def begin_round(self) -> None:
        """Take the readings that later ones are compared with; before workers start."""
        self._cgroups.clear()
        self._before.clear()
        self._kernel_log.forget()
        self._host_before = host_oom_kills(self._roots.proc)
        self._own = self._look_up("self")

    def note_workers(self, pids: Iterable[int]) -> None:
        """Note where workers are accounted for, which can't be read once they are gone."""
        for pid in pids:
            cgroup = self._look_up(pid)
            if cgroup is not None:
                self._cgroups[pid] = cgroup

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
            kills = _rise(host_oom_kills(self._roots.proc), self._host_before)
            return replace(evidence, memory=self._memory(evidence.pid), host_oom_kills=kills)
        if signal is Signals.SIGBUS:
            with suppress(OSError):
                usage = shutil.disk_usage(self._roots.shared_memory)
                return replace(evidence, shared_memory=(usage.total, usage.free))
        return evidence

    def _look_up(self, pid: int | str) -> Cgroup | None:
        cgroup = find_cgroup(pid, proc=self._roots.proc, cgroup_root=self._roots.cgroup)
        if cgroup is not None and cgroup.directory not in self._before:
            self._before[cgroup.directory] = cgroup.counters()
        return cgroup

    def _memory(self, pid: int) -> MemoryGroup | None:
        cgroup = self._cgroups.get(pid, self._own)
        if cgroup is None:
            return None
        kills, hits = map(_rise, cgroup.counters(), self._before[cgroup.directory])
        limit = cgroup.limit_bytes()
        return MemoryGroup(name=cgroup.name, oom_kills=kills, limit_hits=hits, limit_bytes=limit)


def _rise(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)
