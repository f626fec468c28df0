"""Pure. What is known of a worker's end beside its exit code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended.

    ``exit_code`` is negative for a signal. ``is_stopped``: its agent was stopping it.
    ``has_error``: it left an error file. ``has_stacks``: its crash left stacks.
    """

    exit_code: int
    pid: int
    is_stopped: bool = False
    has_error: bool = False
    has_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCounters:
    """Counters of a cgroup's memory; ``None``: this kernel does not tell."""

    oom_kills: int | None = None
    limit_hits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """A worker's cgroup: what its counters rose by since the round began."""

    name: str
    rise: MemoryCounters
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWord:
    """A line of the kernel log about process ``pid``, as the host numbers processes."""

    pid: int
    text: str
    is_oom_kill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """State of /dev/shm."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the host told right after a worker's end; nothing of it is certain to be there.

    ``host_oom_kills``: processes the kernel's out-of-memory killer has ended anywhere on
    the host since the round began. ``kernel_words``: since then; ``None``: not readable.
    ``missing_script``: the script, if it is not there any more.
    """

    memory: MemoryGroup | None = None
    host_oom_kills: int | None = None
    kernel_words: tuple[KernelWord, ...] | None = None
    shared_memory: SharedMemory | None = None
    missing_script: str = ""
