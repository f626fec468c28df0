"""Pure. A run at a glance: in one pass over its agents, the workers to look at first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from drumbeat.coordinator.observe.steps.behind import BEHIND_KEPT_MAX, Laggard, named
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import HostMemory, WorkerMemory

# Workers shown of a run.
ROWS_MAX = 64
# Ranks with growing memory that are named.
GROWING_MAX = 16


class Glimpse(NamedTuple):
    """One agent of the run, with the workers that report progress."""

    incarnation: str
    name: str
    is_present: bool  # connected, and heard from recently
    has_failed: bool
    heard_at: float | None
    rank_first: int | None  # None: it stands by
    local_world_size: int
    workers: Sequence[WorkerProgress]
    behind: Mapping[int, Laggard] = {}  # those of them that are behind, by local rank
    memory: HostMemory | None = None  # of the workers of its seat


class Growing(NamedTuple):
    """A worker whose memory grows. The first in order reaches the limit first."""

    left_minutes: float  # until the limit at this rate; infinite if there is no limit
    rank: int
    incarnation: str
    worker: WorkerMemory
    host: HostMemory


# Order of rows: absent, failed, at a low step, silent for long, then by place in the list.
_Key = tuple[bool, bool, float, float, int]


@dataclass(slots=True)
class Overview:
    """Chooses rows from all workers and standbys, which are added in listed order."""

    rows_max: int = ROWS_MAX
    rows_count: int = 0
    _behind: list[Laggard] = field(default_factory=list)
    _behind_count: int = 0
    _chosen: list[tuple[_Key, str, int]] = field(default_factory=list)
    _last: _Key | None = None  # the last row that is shown for now
    _growing: list[Growing] = field(default_factory=list)

    def take(self, agent: Glimpse) -> None:
        """Add one agent."""
        rows, least = 1, math.inf
        if agent.rank_first is not None:
            rows = agent.local_world_size
            least = min((worker.steps for worker in agent.workers), default=math.inf)
            self._behind_count += len(agent.behind)
            self._behind += islice(agent.behind.values(), BEHIND_KEPT_MAX - len(self._behind))
            self._take_memory(agent, agent.rank_first)
        heard_at = math.inf if agent.heard_at is None else agent.heard_at
        if self._last is None or self._key(agent, least, heard_at, 0) < self._last:
            steps = {worker.local_rank: worker.steps for worker in agent.workers}
            for local_rank in range(rows):
                step = steps.get(local_rank, math.inf)
                key = self._key(agent, step, heard_at, local_rank)
                self._chosen.append((key, agent.incarnation, local_rank))
            self._drop_surplus(2 * self.rows_max)
        self.rows_count += rows

    def behind(self) -> str:
        """Name the ranks that are behind; empty if none is."""
        return named(self._behind, self._behind_count)

    def growing(self) -> list[Growing]:
        """Return the workers whose memory grows, by rank; of too many the most urgent."""
        return sorted(sorted(self._growing)[:GROWING_MAX], key=lambda worker: worker.rank)

    def chosen(self) -> dict[str, list[int]]:
        """Return the local ranks to show by agent, in listed order; 0 for a standby."""
        self._drop_surplus(self.rows_max)
        ranks: dict[str, list[int]] = {}
        for _, incarnation, local_rank in sorted(self._chosen, key=lambda row: row[0][-1]):
            ranks.setdefault(incarnation, []).append(local_rank)
        return ranks

    def _take_memory(self, agent: Glimpse, rank_first: int) -> None:
        if (host := agent.memory) is None:
            return
        left = host.limit_bytes - host.used_bytes
        for worker in host.workers:
            if grows := worker.growth_bytes:
                minutes = left / grows if host.limit_bytes else math.inf
                rank = rank_first + worker.local_rank
                growing = Growing(minutes, rank, agent.incarnation, worker, host)
                self._growing.append(growing)
        if len(self._growing) > 2 * GROWING_MAX:
            self._growing = sorted(self._growing)[:GROWING_MAX]

    def _key(self, agent: Glimpse, steps: float, heard_at: float, local_rank: int) -> _Key:
        is_fine = not agent.has_failed
        return agent.is_present, is_fine, steps, heard_at, self.rows_count + local_rank

    def _drop_surplus(self, most: int) -> None:
        if len(self._chosen) > most:
            self._chosen = sorted(self._chosen)[: self.rows_max]
            self._last = self._chosen[-1][0]
