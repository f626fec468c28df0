"""Pure. What happens to the watchdog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.watchdog.core.model import Evidence, Snapshot, WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """A worker runs. Repeating it changes nothing."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker has ended, or its agent stops it: it is watched no more."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRead:
    """Answer to ``ReadBoard``, or a worker kicked; ``snapshot`` is None if it has no owner yet."""

    worker: WorkerKey
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerAcquired:
    """A timer was asked for by a call. ``signal`` as in ``Slot``, ``pid`` as in ``Armed``."""

    worker: WorkerKey
    scope: str
    timeout_s: float
    signal: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerReleased:
    """A timer was released by a call."""

    worker: WorkerKey
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A worker made progress, by a call."""

    worker: WorkerKey
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken:
    """Answer to ``TakeEvidence``."""

    worker: WorkerKey
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsLearned:
    """What the run has learned: limits by name of section, "" between heartbeats."""

    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


Call = TimerAcquired | TimerReleased | HeartbeatReceived
Event = (
    WorkerStarted | WorkerGone | BoardRead | Call | EvidenceTaken | LimitsLearned | DeadlineReached
)
