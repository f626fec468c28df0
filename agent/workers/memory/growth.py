"""Pure. How much memory workers use, and whether that grows. Sizes are bytes."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from msgspec import Struct

# A worker's memory grows if its lowest point rose from each of so many spans to the next: what is
# allocated and freed within a step, or once while a model is loaded, is no growth.
SPAN_S, SPANS = 20.0, 6
# A smaller rise over all spans is none: at this pace the last gigabyte lasts half an hour.
RISE_LEAST_BYTES = 64 * 2**20


class WorkerMemory(Struct, frozen=True, kw_only=True):
    """One worker's process: ``growth_bytes`` is per minute, 0 if its memory does not grow."""

    local_rank: int
    resident_bytes: int
    growth_bytes: int = 0


class HostMemory(Struct, frozen=True, kw_only=True):
    """The workers, and what their cgroup or their host has in use and at most; 0: not known."""

    workers: tuple[WorkerMemory, ...] = ()
    used_bytes: int = 0
    limit_bytes: int = 0
    is_cgroup: bool = False


NO_MEMORY = HostMemory()


class LastMemory(Struct, frozen=True, kw_only=True):
    """What one worker's process had when that was read last, so many seconds before it ended."""

    resident_bytes: int
    ago_s: float
    used_bytes: int = 0  # by all of the cgroup or host, and its limit; 0: not known
    limit_bytes: int = 0
    is_cgroup: bool = False


class Growth:
    """Follows one worker's memory in bounded space."""

    def __init__(self) -> None:
        self._lowest = deque[tuple[float, int]](maxlen=SPANS)  # of each span that is over
        self._span: tuple[float, int] | None = None  # when it began, and the lowest of it so far

    def take(self, used_bytes: int, *, now: float) -> int:
        """Take in how much is used ``now``; return by how much a minute that grows, 0 if not."""
        if self._span is None:
            self._span = now, used_bytes
        began, lowest = self._span
        if now - began >= SPAN_S:
            self._lowest.append(self._span)
            began, lowest = now, used_bytes
        self._span = began, min(lowest, used_bytes)
        points = [*self._lowest, self._span]
        sizes = [size for _, size in points]
        rise, took_s = sizes[-1] - sizes[0], points[-1][0] - points[0][0]
        is_rising = all(before < after for before, after in pairwise(sizes))
        if len(points) <= SPANS or not is_rising or rise < RISE_LEAST_BYTES:
            return 0
        return round(60 * rise / took_s)
