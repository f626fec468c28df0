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
    """A worker has ended, or is being stopped by its agent: nothing of it is watched."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRead:
    """Answer to ``ReadBoard``, or a worker kicked; ``snapshot`` is None if nobody owns it yet."""

    worker: WorkerKey
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerAcquired:
    """A worker asked for a timer by a call. ``signal`` as in ``Slot``.

    ``pid`` is the process below the worker that gets the signal, 0 for the worker itself.
    """

    worker: WorkerKey
    scope: str
    timeout_s: float
    signal: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerReleased:
    """A worker released a timer by a call."""

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
class SignalFailed:
    """A signal could not be sent; the worker is not gone."""

    worker: WorkerKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsLearned:
    """What the run has learned: limits by name of section, "" between heartbeats."""

    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


Event = (
    WorkerStarted
    | WorkerGone
    | BoardRead
    | TimerAcquired
    | TimerReleased
    | HeartbeatReceived
    | EvidenceTaken
    | SignalFailed
    | LimitsLearned
    | DeadlineReached
)
