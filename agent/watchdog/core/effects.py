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
    """Take the stacks of a worker, within ``timeout_s``; answer with ``EvidenceTaken``.

    ``pid``: of this process below the worker instead, if it is not 0.
    """

    worker: WorkerKey
    timeout_s: float
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to a worker; answer only with ``SignalFailed``.

    ``pid``: to this process below the worker instead, if it is not 0; never answered.
    """

    worker: WorkerKey
    signum: int
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Keep a hang for the worker's failure record, and tell people.

    ``is_ending``: the worker is about to get a signal for it. ``signal`` as in ``Slot``.
    ``pid``: it is about this process below the worker, if it is not 0.
    """

    worker: WorkerKey
    hang: Hang
    is_ending: bool
    signal: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Tell people. ``what`` is a fixed phrase, ``why`` a sentence.

    ``worker`` is None for what concerns the watchdog itself.
    """

    worker: WorkerKey | None
    what: str
    why: str


Effect = ReadBoard | AnnounceLook | TakeEvidence | Signal | Report | Tell
