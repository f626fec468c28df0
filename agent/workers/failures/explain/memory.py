"""Shell. Counters of the kernel's out-of-memory killer, from cgroups of both versions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_FILE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
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
        """Read its limit; ``None`` if it has none."""
        name = "memory.max" if self.is_unified else "memory.limit_in_bytes"
        limit = _number(_read(self.directory / name))
        # Version 1 writes "none" as a number near the end of all numbers.
        return limit if limit is not None and limit < 2**60 else None


def find_cgroup(pid: int | str, *, proc: Path, cgroup_root: Path) -> Cgroup | None:
    """Return the cgroup that accounts for a process's memory; ``None`` if it can't be seen."""
    unified = ""
    for line in _read(proc / str(pid) / "cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            return _locate(name, cgroup_root / "memory", "memory.oom_control", is_unified=False)
        unified = unified if controllers else name or unified
    return _locate(unified, cgroup_root, "memory.events", is_unified=True) if unified else None


def host_oom_kills(proc: Path) -> int | None:
    """Return how many processes the kernel has ended for want of memory since its start."""
    return _pairs(proc / "vmstat").get("oom_kill")


def _locate(name: str, root: Path, file: str, *, is_unified: bool) -> Cgroup | None:
    parts = PurePosixPath(name.strip()).parts[1:]
    # A container may see its own cgroup as the root, under a name that only its host knows.
    own = [root.joinpath(*parts)] if ".." not in parts else []
    for directory in (*own, root):
        if (directory / file).exists():
            return Cgroup(name=name.strip(), directory=directory, is_unified=is_unified)
    return None


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
