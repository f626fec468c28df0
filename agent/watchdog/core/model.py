"""Pure. What the watchdog was told and what boards say. Durations and instants are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from agent.watchdog.hang import Purpose


@dataclass(frozen=True, slots=True, order=True)
class WorkerKey:
    """One worker of one round."""

    round_id: int
    local_rank: int


AUTO: Final = "auto"
"""Instead of a limit: the one that was learned, none until then."""

Limit = float | Literal["auto"] | None
"""Seconds, ``AUTO``, or ``None`` for no limit."""

Tally = tuple[int, float]
"""How many there were, and the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogPolicy:
    """What the watchdog was told."""

    startup_timeout_s: float | None = None
    """From a worker's start to its first heartbeat; None: it need not have any."""
    runtime_timeout_s: float | None = 300.0
    """Longest time without a sign of life of a runtime that has attached."""
    progress_timeout_s: Limit = None
    """Longest time between two heartbeats, once there was one."""
    exit_timeout_s: float | None = 300.0
    """From the beginning of an interpreter's end to its end."""
    kill_grace_s: float = 5.0
    """From SIGTERM to SIGKILL for a worker that hangs."""
    pulse_s: float = 1.0
    """How often the watchdog wakes, so that it notices that it was asleep itself."""
    stall_s: float = 0.1
    """After a wake-up later than this every limit is given as much more time: this process, or
    its host, has stood still."""
    evidence_timeout_s: float = 0.1
    """Longest wait for a worker's stacks."""
    timers_max: int = 1024
    """Timers one worker may have open by calls; more are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What has a limit: an open timer or section, as the worker's board or a call says.

    ``slot`` is its number on the board. ``deadline`` is None for one without a limit of its own.
    ``signal`` is None for SIGTERM and then SIGKILL; 0 or less: only report. ``grace_s`` lies
    between these two, if it is shorter than the policy's; ``None``: that counts.
    """

    slot: int = -1
    name: str = ""
    is_section: bool = False
    since: float
    deadline: float | None
    limit_s: Limit
    signal: int | None = None
    purpose: Purpose = Purpose.USER
    grace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a worker's board says. Instants are this host's monotonic clock.

    ``slots`` are only those open and not suspended. One that did not change since the
    last reading should be the same object: that makes following it cheap.
    """

    owner_pid: int = 0
    stack_signal: int = 0
    beat_at: float | None = None
    exiting_at: float | None = None
    is_debugged: bool = False
    progress_since: float | None = None
    step: int | None = None
    heartbeat_at: float | None = None
    heartbeats: int = 0
    step_time_s: float | None = None
    gap_max_s: float = 0.0
    gaps: int = 0
    slots: tuple[Slot, ...] = ()
    sections: Mapping[str, Tally] = field(default_factory=dict)
    """Of each section, how often it was left and the longest time it took."""
