"""Pure. Values: a hang, the evidence of it, and where workers stand. Times are seconds."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from drumbeat.model import HangKind

# Of the time for stacks, what a thread of the runtime has for its answer if a signal may follow.
ASKED_SHARE = 0.4


class Purpose(StrEnum):
    """What a timer or section is for."""

    USER = "USER"  # what the training code says; it tells where the worker is
    HARD_TIMEOUT = "HARD_TIMEOUT"  # the main thread's progress in an iteration, in process
    HEARTBEAT = "HEARTBEAT"  # that other threads of the interpreter run in one
    OUTPUT = "OUTPUT"  # the next line of output that matches a pattern


class BoardProgress(Struct, frozen=True, kw_only=True):
    """What a worker's board says of its progress. Instants are this host's monotonic clock."""

    step: int | None = None
    step_time_s: float | None = None
    heartbeat_at: float | None = None
    progress_since: float | None = None  # since when the next heartbeat is expected; None: it isn't
    beat_at: float | None = None
    steps_total: int = 0  # how many there will be; 0: not known
    loss: float | None = None  # the latest told
    saved_step: int = 0  # of the latest checkpoint
    saved_at: float | None = None  # None: there was none
    steps_timed: int = 0  # whose time is known, and what they took together
    steps_s: float = 0.0
    is_busy_time: bool = False  # it is that of the worker's own work


class WorkerProgress(BoardProgress, frozen=True, kw_only=True):
    """Where a worker stands, as far as it says so. See ``drumbeat.v1.WorkerProgress``."""

    local_rank: int
    scope: str = ""
    scope_since: float | None = None
    scopes_open: int = 0
    is_stopped: bool = False  # its process, by a signal or a debugger


class HangEvidence(Struct, frozen=True, kw_only=True):
    """What was seen of a process that seems to hang. ``is_traced``: by a native debugger."""

    stacks: str = ""
    notes: str = ""
    is_traced: bool = False
    is_stopped: bool = False
    is_alive: bool = True


class Hang(Struct, frozen=True, kw_only=True):
    """Why the watchdog ends a worker, or would have. See ``drumbeat.v1.Hang``."""

    kind: HangKind
    scope: str = ""
    limit_s: float
    elapsed_s: float
    standing: WorkerProgress
    noticed_at: float
    evidence: HangEvidence = field(default_factory=HangEvidence)
    purpose: Purpose = Purpose.USER


_HOW = {
    HangKind.TIMER: "timer {scope!r} expired: not released within {elapsed}",
    HangKind.SECTION: "section {scope!r} took too long: not left within {elapsed}",
    HangKind.STARTUP: "no first heartbeat within {elapsed} of its start",
    HangKind.RUNTIME: (
        "no sign of life for {elapsed}: no thread of its interpreter runs, "
        "because one holds the lock or the process is stopped"
    ),
    HangKind.PROGRESS: "no further heartbeat within {elapsed}",
    HangKind.EXIT: "the interpreter began to end and did not within {elapsed}",
    HangKind.OUTPUT: "no line matched '{scope}' within {elapsed}",
    HangKind.COLLECTIVE: "no process group of it moved for {elapsed} while it waited in one",
}


def describe_hang(hang: Hang) -> str:
    """Say which limit a worker broke, and where it last stood."""
    how = _HOW[hang.kind].format(scope=hang.scope, elapsed=seconds(hang.elapsed_s))
    parts = [f"{how} (limit {seconds(hang.limit_s)})"]
    standing = hang.standing
    if standing.heartbeat_at is not None:
        step = f" step {standing.step}," if standing.step is not None else ""
        ago = seconds(max(0.0, hang.noticed_at - standing.heartbeat_at))
        parts.append(f"last heartbeat{step} {ago} before")
    if standing.scope and standing.scope != hang.scope:
        parts.append(f"in {standing.scope!r}")
    return "; ".join(parts)


def seconds(value: float) -> str:
    """Write a duration to the tenth of a second, below ten seconds to the hundredth."""
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{text.rstrip('0').rstrip('.')} s"
