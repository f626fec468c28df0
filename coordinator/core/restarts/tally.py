"""Pure. What the journal keeps of a run's restarts: progress, delay, and what was charged."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from msgspec import Struct

from drumbeat.coordinator.observe.failures import is_same_cause
from drumbeat.restart_rules import WINDOWED_RESTARTS_MAX
from drumbeat.text.format import count

# The wait of the second restart without progress; each later one takes twice as long.
DELAY_FIRST_S = 1.0
_DOUBLINGS_MAX = 40


class Attempt(Struct, frozen=True, kw_only=True):
    """How far a round or an iteration came that has ended, and what follows for the next one."""

    farthest: int | None = None  # the farthest step of the run so far; None: none was named
    has_progressed: bool = False
    step: int | None = None  # the farthest of this attempt
    cause: str = ""  # root cause of its failure, the same on any host
    is_counted: bool = False  # its failure was counted before, as one of an iteration
    is_free: bool = False  # the restart is not charged
    label: str = ""  # which restart follows, e.g. "restart 3 of 10"
    until_s: float = 0.0  # it waits until then, on the coordinator's clock


@dataclass(slots=True, kw_only=True)
class RestartTally:
    """The fold of a run's attempts."""

    farthest: int | None = None
    idle: int = 0  # failures in a row since there was progress
    stuck: int = 0  # restarts in a row without a new farthest step
    cause: str = ""  # of all failures since that step; empty: they differ
    step: int | None = None  # at which all of them happened
    free: int = 0  # restarts that were not charged
    charged_at: list[float] = field(default_factory=list)  # with a window: those within it
    label: str = ""
    until_s: float = 0.0

    def after(self, attempt: Attempt) -> RestartTally:
        """Return the tally as it is after an attempt that failed."""
        tally = dataclasses.replace(self, charged_at=[])
        tally.take(attempt, is_failure=True)
        return tally

    def take(self, attempt: Attempt, *, is_failure: bool) -> None:
        """Take in how an attempt ended."""
        step = attempt.farthest
        is_new = step is not None and (self.farthest is None or step > self.farthest)
        if attempt.has_progressed:
            self.idle = 0
        if is_new:
            self.farthest, self.stuck = step, 0
        if is_failure and not attempt.is_counted:
            self.idle += 1
            self.stuck += not is_new and self.farthest is not None
            self._take_cause(attempt, is_first=is_new)
        self.free += attempt.is_free
        self.label, self.until_s = attempt.label, attempt.until_s

    def delay_s(self, most_s: float) -> float:
        """Return how long the next restart waits: not at all after the first failure."""
        if self.idle < 2:
            return 0.0
        return min(most_s, DELAY_FIRST_S * 2.0 ** min(self.idle - 2, _DOUBLINGS_MAX))

    def go_on(self) -> None:
        """Note that the restart which waited has begun, or shall."""
        self.label, self.until_s = "", 0.0

    def charge(self, at_s: float) -> None:
        """Note when a restart was charged, for a window."""
        self.charged_at = [*self.charged_at[-WINDOWED_RESTARTS_MAX + 1 :], at_s]

    def give_back(self, number: int) -> None:
        """Note that the latest restarts were no fault of the program: a host had been lost."""
        self.idle, self.stuck = max(0, self.idle - number), max(0, self.stuck - number)
        del self.charged_at[-number:]
        self.go_on()

    def charged_since(self, at_s: float) -> list[float]:
        """Return when the restarts were charged that count from this instant on."""
        return [charged for charged in self.charged_at if charged > at_s]

    def describe_stuck(self) -> str:
        """Say that restarts bring no progress, and why if it is the same each time."""
        why = f"no progress past step {self.farthest} in {count(self.stuck, 'restart')}"
        if not self.cause:
            return why
        at = "" if self.step is None else f" at step {self.step}"
        return f"{why}: each time {self.cause}{at}"

    def _take_cause(self, attempt: Attempt, *, is_first: bool) -> None:
        if is_first:
            self.cause, self.step = attempt.cause, attempt.step
        elif self.step == attempt.step and is_same_cause(self.cause, attempt.cause):
            # Of a failure whose record is under way the place is not known yet.
            self.cause = max(self.cause, attempt.cause, key=len)
        else:
            self.cause = ""
