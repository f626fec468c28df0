"""Pure. A worker that seems to hang: how far the watchdog is with it.

(nothing is over)
   │ something is over on a board just read
   ▼
EXAMINED ── its stacks come, or are given up ──▶ CONFIRMED
                                                    │ the board is read again
                   nothing is over any more ◀───────┤
             a debugger holds it: limits anew ◀─────┤
              only to be told, or one signal ◀──────┤
                                                    ▼
                 a signal could not be sent ◀──── DOOMED ── grace is over ──▶ SIGKILL

A process that was stopped goes from EXAMINED straight to its verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agent.watchdog.core.limits import Armed, Stall
from agent.watchdog.core.model import Evidence

SIGKILL, SIGTERM = 9, 15

# How long a signal that could not be sent waits for the next attempt: first, at most.
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0

# Evidence that is this late is not waited for: reading about a process may block on it.
EVIDENCE_LATE_S = 5.0


class Stage(Enum):
    """How far a case is."""

    EXAMINED = "its stacks are awaited"
    CONFIRMED = "what it says now is awaited"
    DOOMED = "its end is awaited"


@dataclass(slots=True, eq=False)
class Case:
    """One worker's case. ``deadline``: when to go on by oneself, monotonic seconds.

    ``expired`` is what was over when it began, in order; all of it is of one process.
    ``is_delivered``: SIGTERM has got through, so there is no way back.
    """

    stage: Stage = Stage.EXAMINED
    deadline: float | None = None
    evidence: Evidence = field(default_factory=Evidence)
    is_delivered: bool = False
    expired: tuple[Armed, ...] = ()
    _is_graced: bool = field(default=False, init=False)

    @property
    def pid(self) -> int:
        """Return the process below the worker that it is about, 0 for the worker itself."""
        return self.expired[0].pid if self.expired else 0

    def extend(self, stall: Stall) -> None:
        """Move the deadline by the time during which nobody could act; see ``Stall``."""
        if self.deadline is not None:
            self.deadline += stall.lateness_s
            self.deadline += 0.0 if self._is_graced else stall.uncertain_s
            self._is_graced = True


@dataclass(slots=True)
class Attempts:
    """The signals sent to one worker: what the latest was for, and how many failed in a row."""

    expired: tuple[Armed, ...] = ()
    failures: int = 0
    is_failed: bool = False

    def sent(self, expired: tuple[Armed, ...]) -> None:
        """Note that a signal was sent for these limits."""
        if not self.is_failed:
            self.failures = 0
        self.expired, self.is_failed = expired, False

    def failed(self) -> float:
        """Note that it could not be; return after how many seconds to try again."""
        delay_s: float = min(RETRY_FIRST_S * 2 ** min(self.failures, 16), RETRY_MAX_S)
        self.failures, self.is_failed = self.failures + 1, True
        return delay_s
