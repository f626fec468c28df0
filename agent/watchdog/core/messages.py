"""Pure. What happens to the watchdog, and what it wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.watchdog.core.model import Snapshot, WorkerKey
from agent.watchdog.hang import Evidence, Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfWorker:
    worker: WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfProcess(_OfWorker):
    pid: int = 0
    """A process below the worker, 0 for the worker itself."""


# Events.


class WorkerStarted(_OfWorker):
    """A worker runs. Repeating it changes nothing."""


class WorkerGone(_OfWorker):
    """A worker has ended, or its agent stops it: it is watched no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRead(_OfWorker):
    """Answer to ``ReadBoard``, or a worker kicked; ``snapshot`` is None if it has no owner yet."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerAcquired(_OfProcess):
    """A timer was asked for by a call. ``signal`` as in ``Slot``."""

    scope: str
    timeout_s: float
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerReleased(_OfWorker):
    """A timer was released by a call."""

    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(_OfWorker):
    """A worker made progress, by a call."""

    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken(_OfWorker):
    """Answer to ``TakeEvidence``."""

    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsLearned:
    """What the run has learned: limits by name of section, "" between heartbeats."""

    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


Call = TimerAcquired | TimerReleased | HeartbeatReceived
Event = (
    WorkerStarted | WorkerGone | BoardRead | Call | EvidenceTaken | LimitsLearned | DeadlineReached
)


# Effects.


class ReadBoard(_OfWorker):
    """Read a worker's board at once, and answer with ``BoardRead``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLook(_OfWorker):
    """Write on a worker's board until when it need not kick: ``look_at``, this host's clock."""

    look_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeEvidence(_OfProcess):
    """Take the stacks within ``timeout_s``; answer with ``EvidenceTaken``."""

    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(_OfProcess):
    """Send a signal."""

    signum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(_OfProcess):
    """Log a hang; if ``is_ending``, keep it for the failure record of the worker it ends."""

    hang: Hang
    is_ending: bool
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning: ``event``, a fixed phrase. ``worker`` is None if it is of the watchdog."""

    worker: WorkerKey | None
    event: str
    reason: str


Effect = ReadBoard | AnnounceLook | TakeEvidence | Signal | Report | Warn
