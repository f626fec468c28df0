"""Pure. What the watchdog wants done."""

from __future__ import annotations

from dataclasses import dataclass

from agent.watchdog.core.model import Hang, WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBoard:
    """Read a worker's board at once, and answer with ``BoardRead``."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLook:
    """Write on a worker's board until when it need not kick: ``look_at``, this host's clock."""

    worker: WorkerKey
    look_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeEvidence:
    """Take the stacks within ``timeout_s``; answer with ``EvidenceTaken``. ``pid`` as in Armed."""

    worker: WorkerKey
    timeout_s: float
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal. ``pid`` as in ``Armed``."""

    worker: WorkerKey
    signum: int
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Log a hang; if ``is_ending``, keep it for the failure record of the worker it ends.

    ``signal`` as in ``Slot``, ``pid`` as in ``Armed``.
    """

    worker: WorkerKey
    hang: Hang
    is_ending: bool
    signal: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning: ``event``, a fixed phrase. ``worker`` is None if it is of the watchdog."""

    worker: WorkerKey | None
    event: str
    reason: str


Effect = ReadBoard | AnnounceLook | TakeEvidence | Signal | Report | Warn
