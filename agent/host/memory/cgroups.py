"""Shell. Reads the memory cgroups of processes, version 1 and 2."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath

from msgspec import Struct

from drumbeat.agent.host.leftovers import PREFIX
from drumbeat.agent.host.memory.growth import MemoryGroup

_FILE_BYTES_MAX = 64 * 1024
_UNLIMITED = 2**60  # version 1 writes "none" as a number near the end of all numbers


class Cgroup(Struct, frozen=True):
    """The cgroup that accounts for a process's memory; ``root`` is where its hierarchy begins."""

    name: str
    directory: Path
    is_unified: bool
    root: Path

    @property
    def events(self) -> Path:
        """The file that counts kills."""
        return self.directory / ("memory.events" if self.is_unified else "memory.oom_control")

    def memory(self) -> MemoryGroup:
        """Return its counters and its own limit."""
        events = read_pairs(self.events)
        hits = events.get("max")
        if not self.is_unified:
            hits = read_number(self.directory / "memory.failcnt")
        return MemoryGroup(self.name, events.get("oom_kill"), hits, self.limit_bytes())

    def limit_bytes(self) -> int | None:
        """Return its own limit, ``None`` if it has none."""
        name = "memory.max" if self.is_unified else "memory.limit_in_bytes"
        limit = read_number(self.directory / name)
        return limit if limit is not None and limit < _UNLIMITED else None

    def used_bytes(self, *, with_active_cache: bool = True) -> int | None:
        """Return what is in use, without file cache that the kernel drops before it kills.

        It also drops what was read more than once, if it must.
        """
        name = "memory.current" if self.is_unified else "memory.usage_in_bytes"
        if (used := read_number(self.directory / name)) is None:
            return None
        caches = ("inactive_file",) if with_active_cache else ("inactive_file", "active_file")
        pairs, prefix = read_pairs(self.directory / "memory.stat"), "total_" * (not self.is_unified)
        return max(0, used - sum(pairs.get(f"{prefix}{cache}", 0) for cache in caches))

    def tightest(self) -> Cgroup | None:
        """Return this cgroup or the one above it that has the lowest limit; ``None`` if none."""
        above = [path for path in self.directory.parents if path.is_relative_to(self.root)]
        chain = [self, *(Cgroup(str(path), path, self.is_unified, self.root) for path in above)]
        limits = [(limit, cgroup) for cgroup in chain if (limit := cgroup.limit_bytes())]
        return min(limits, key=lambda pair: pair[0])[1] if limits else None


def find_cgroup(memberships: Path, root: Path) -> Cgroup | None:
    """Return the cgroup that accounts for a process's memory; ``None`` if it can't be seen."""
    name, is_unified = "", True
    for line in read_text(memberships).splitlines():
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
        cgroup = Cgroup(name.strip(), directory, is_unified, root)
        if name and cgroup.events.exists():
            return cgroup
    return None


def read_text(path: Path) -> str:
    """Return the beginning of a file; empty if it can't be read."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    return ""


def read_pairs(path: Path) -> dict[str, int]:
    """Read lines of a name and a number; a unit after the number is passed over."""
    pairs = (line.split() for line in read_text(path).splitlines())
    numbers = ((pair[0].rstrip(":"), _number(pair[1])) for pair in pairs if len(pair) > 1)
    return {name: number for name, number in numbers if number is not None}


def read_number(path: Path) -> int | None:
    """Read a file of one number; ``None`` if it has none."""
    return _number(read_text(path))


def _number(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() and len(stripped) < 32 else None
