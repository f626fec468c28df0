"""Pure. How much memory workers use, and whether that grows. Sizes are bytes."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from msgspec import Struct

from drumbeat.model import HostMemory

# A worker's memory grows if its lowest point rose from each of so many spans to the next: what is
# allocated and freed within a step, or once while a model is loaded, is no growth.
SPAN_S, SPANS = 20.0, 6
# A smaller rise over all spans is none: at this pace the last gigabyte lasts half an hour.
RISE_LEAST_BYTES = 64 * 2**20


NO_MEMORY = HostMemory()


class LastMemory(Struct, frozen=True, kw_only=True):
    """What one worker's process had when that was read last, so many seconds before it ended."""

    resident_bytes: int
    ago_s: float
    used_bytes: int = 0  # by all of the cgroup or host, and its limit; 0: not known
    limit_bytes: int = 0
    is_cgroup: bool = False


class MemoryGroup(Struct, frozen=True):
    """A worker's cgroup. Its counters are since the round began; ``None``: unknown."""

    name: str
    oom_kills: int | None = None
    limit_hits: int | None = None
    limit_bytes: int | None = None


class Growth:
    """Follows one worker's memory in bounded space."""

    def __init__(self) -> None:
        # When each span began that is over, and its lowest point; then the same of the last one.
        self._over = deque[tuple[float, int]](maxlen=SPANS + 1)
        self._span: tuple[float, int] | None = None

    def take(self, used_bytes: int, *, now: float) -> int:
        """Take in how much is used ``now``; return by how much a minute that grows, 0 if not."""
        began, lowest = self._span or (now, used_bytes)
        if now - began >= SPAN_S:
            self._over.append((began, lowest))
            began, lowest = now, used_bytes
        self._span = began, min(lowest, used_bytes)
        sizes = [size for _, size in self._over]
        if len(sizes) <= SPANS or not all(before < after for before, after in pairwise(sizes)):
            return 0
        if sizes[-1] - sizes[0] < RISE_LEAST_BYTES or used_bytes < sizes[-1]:
            return 0
        return round(60 * (sizes[-1] - sizes[0]) / (self._over[-1][0] - self._over[0][0]))
