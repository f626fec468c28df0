"""Pure. The durable part of what is observed of a run: a fold of journal records."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.coordinator.observe.failures import FailureHistory
from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.goodput.stretches import Marks, ProgressNoted
from drumbeat.coordinator.observe.steps.progress import Checkpoint, latest
from drumbeat.coordinator.observe.steps.stragglers import FOUND, OVER, Straggler, StragglerRecord
from drumbeat.text.durations import SECOND, nanoseconds

# After this time without a heartbeat or step, workers count as progressing since they started:
# their program uses no heartbeats.
SILENT_MAX = 600 * SECOND
# The observations that the history of a run names.
UNHEALTHY, HEALTHY_AGAIN = "agent unhealthy", "agent healthy again"
DECISIONS = frozenset({FOUND, OVER, UNHEALTHY, HEALTHY_AGAIN})


class HealthNoted(Struct, frozen=True, kw_only=True):
    """A health check of an agent's host failed, or all succeed again."""

    name: str
    reason: str = ""  # what is wrong; empty: nothing any more
    at_s: float = 0.0


Observation = ProgressNoted | StragglerRecord | HealthNoted


class RoundTimes(Struct, frozen=True, kw_only=True):
    """When the current or last round began and ended, in nanoseconds; ``None``: unknown.

    They are journaled, for another coordinator may trace a round that this one began.
    """

    began: int | None = None
    progressed: int | None = None  # all its ranks did for the first time
    ended: int | None = None
    before: int | None = None  # the round before it
    before_ended: int | None = None

    @property
    def is_starting(self) -> bool:
        """Whether a round runs that has not progressed yet."""
        return self.began is not None and self.progressed is None and self.ended is None

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


@dataclass(slots=True, kw_only=True)
class Observations:
    """The part of a run's durable state that no decision depends on."""

    ledger: Ledger = field(default_factory=Ledger)  # what its time went into
    times: RoundTimes = field(default_factory=RoundTimes)
    slow: dict[int, Straggler] = field(default_factory=dict)  # of the round, by rank
    unhealthy: dict[str, str] = field(default_factory=dict)  # what is wrong, by agent
    failures: FailureHistory = field(default_factory=FailureHistory)
    lost_count: int = 0  # agents that were given up
    steps_total: int = 0  # that training will make; 0: not told
    checkpoint: Checkpoint | None = None  # the latest

    def take(self, record: Observation) -> tuple[str, str] | None:
        """Fold a record in; return decision and reason if it belongs into the history."""
        if isinstance(record, ProgressNoted):
            self.times = self.times.noted(record, self.ledger.reached)
            self.ledger.note(record)
            self.steps_total = record.steps_total or self.steps_total
            self.checkpoint = latest(self.checkpoint, record.checkpoint)
            return None
        self.ledger.saw(record.at_s)
        if isinstance(record, HealthNoted):
            self.unhealthy.pop(record.name, None)
            if not record.reason:
                return HEALTHY_AGAIN, record.name
            self.unhealthy[record.name] = record.reason
            return UNHEALTHY, f"{record.name}: {record.reason}"
        known = record.straggler
        self.slow.pop(known.rank, None)
        if record.decision == FOUND:
            self.slow[known.rank] = known
        return record.decision, str(known)

    def enter_round(self, at_s: float, before: int | None) -> None:
        """Begin a round; ``before`` is the id of the previous one."""
        ended, self.slow = self.times.ended, {}
        self.times = RoundTimes(began=nanoseconds(at_s), before=before, before_ended=ended)

    def leave_round(self, at_s: float) -> None:
        """End the round, if one runs."""
        self.times, self.slow = self.times.left(at_s, self.ledger), {}

    def forget(self, name: str) -> None:
        """Forget the ranks and the health of an agent."""
        self.unhealthy.pop(name, None)
        if self.slow:
            self.slow = {
                rank: straggler for rank, straggler in self.slow.items() if straggler.name != name
            }
