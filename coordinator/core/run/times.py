"""Pure. When rounds of a run began, progressed and ended: nanoseconds of the coordinator's clock.

It is in the journal's fold, for what is told of a round may be told by another coordinator.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.coordinator.observe.goodput import Ledger
from drumbeat.coordinator.observe.stretches import Marks, ProgressNoted
from drumbeat.durations import SECOND, nanoseconds

# Workers that have run for so long in a run that never named a step are believed to tell no
# heartbeat at all: they progress since they run.
SILENT_MAX = 600 * SECOND


class RoundTimes(Struct, frozen=True, kw_only=True):
    """Of the current or last round, and of what led to it. What is not known is ``None``."""

    began: int | None = None
    progressed: int | None = None  # all its ranks did for the first time
    ended: int | None = None
    before: int | None = None  # the round before it
    before_ended: int | None = None

    @property
    def is_starting(self) -> bool:
        """Whether a round runs that has not progressed yet."""
        return self.began is not None and self.progressed is None and self.ended is None

    def next(self, at_s: float, round_id: int | None) -> RoundTimes:
        """Return the times of the round that begins now, after another one or as the first."""
        return RoundTimes(began=nanoseconds(at_s), before=round_id, before_ended=self.ended)

    def noted(self, noted: ProgressNoted, reached: int | None) -> RoundTimes:
        """Return them with what was seen of the round; ``reached`` is the highest step before."""
        if not self.is_starting:
            return self
        marks, progressed = noted.marks, noted.marks.began
        if progressed is None and reached is None and marks.heard is None:
            running = marks.running
            is_silent = running is not None and nanoseconds(noted.at_s) - running >= SILENT_MAX
            progressed = running if is_silent else None
        return self if progressed is None else replace(self, progressed=progressed)

    def left(self, at_s: float, ledger: Ledger) -> RoundTimes:
        """Return them as the round ends, if one runs."""
        if self.began is None or self.ended is not None:
            return self
        ended, progressed = nanoseconds(at_s), self.progressed
        if progressed is None:
            progressed = (ledger.marks or Marks()).began_after(ledger.reached)
        return replace(self, ended=ended, progressed=progressed)
