"""Shell. Reads how much memory the workers of this host use: a small file for each worker."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

from drumbeat.agent.host.memory.cgroups import Cgroup, find_cgroup, read_pairs, read_text
from drumbeat.agent.host.memory.growth import NO_MEMORY, Growth, LastMemory
from drumbeat.model import HostMemory, WorkerMemory

_PAGE_BYTES = resource.getpagesize()
_KIB = 1024


class MemoryReader:
    """Reads when it is asked, and keeps the latest figures of one round's workers.

    Of a worker that is its process without children, which its cgroup counts in. ``root`` is where
    the kernel's files are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._round_id: int | None = None
        self._cgroup: Cgroup | None = None  # that has the lowest limit; None: the host has
        self._growth: dict[int, Growth] = {}  # by local rank, as the next one
        self._latest: dict[int, tuple[float, int, HostMemory]] = {}

    def read(self, round_id: int | None, pids: Mapping[int, int], *, now: float) -> HostMemory:
        """Return the memory ``now`` of a round's workers, whose processes are by local rank."""
        if round_id != self._round_id:
            self._round_id, self._growth, self._latest = round_id, {}, {}
            own = find_cgroup(self._root / "proc/self/cgroup", self._root / "sys/fs/cgroup")
            self._cgroup = own.tightest() if own is not None else None
        sizes = {local_rank: self._resident_bytes(pid) for local_rank, pid in pids.items()}
        workers = []
        for local_rank, size in sizes.items():
            if size:  # else it has ended
                growth = self._growth.setdefault(local_rank, Growth()).take(size, now=now)
                worker = WorkerMemory(
                    local_rank=local_rank, resident_bytes=size, growth_bytes=growth
                )
                workers.append(worker)
        if not workers:
            return NO_MEMORY
        host = self._with_limit(tuple(workers))
        for worker in workers:
            self._latest[worker.local_rank] = now, worker.resident_bytes, host
        return host

    def last_of(self, round_id: int, local_rank: int, *, now: float) -> LastMemory | None:
        """Return what a worker had when it was read last; ``None`` if it was not."""
        known = self._latest.get(local_rank) if round_id == self._round_id else None
        if known is None:
            return None
        read_at, size, host = known
        return LastMemory(
            resident_bytes=size,
            ago_s=max(0.0, now - read_at),
            used_bytes=host.used_bytes,
            limit_bytes=host.limit_bytes,
            is_cgroup=host.is_cgroup,
        )

    def _resident_bytes(self, pid: int) -> int:
        fields = read_text(self._root / "proc" / str(pid) / "statm").split()
        return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 and fields[1].isdecimal() else 0

    def _with_limit(self, workers: tuple[WorkerMemory, ...]) -> HostMemory:
        host = read_pairs(self._root / "proc/meminfo")
        limit, available = host.get("MemTotal", 0) * _KIB, host.get("MemAvailable", 0) * _KIB
        if self._cgroup is not None:
            own, used = self._cgroup.limit_bytes(), self._cgroup.used_bytes()
            if own is not None and used is not None and (not limit or own < limit):
                return HostMemory(workers=workers, used_bytes=used, limit_bytes=own, is_cgroup=True)
        return HostMemory(workers=workers, used_bytes=limit - available, limit_bytes=limit)
