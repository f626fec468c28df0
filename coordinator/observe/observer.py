"""Pure. What agents report about the workers of a run, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drumbeat.coordinator.core.model import Beat, Round, RunSpec
from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.goodput.meter import Meter
from drumbeat.coordinator.observe.goodput.stretches import Marks
from drumbeat.coordinator.observe.observations import Observations
from drumbeat.coordinator.observe.steps.step_times import StepTimes
from drumbeat.coordinator.observe.steps.stragglers import Straggler, StragglerRecord, Stragglers


class Observer:
    """Takes in each beat, in constant time for each worker. No decision depends on it."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.step_times: StepTimes | None = None  # of the round that runs
        self._stragglers: Stragglers | None = None  # of it, if they are looked for

    def enter_round(self, current: Round, spec: RunSpec, observed: Observations) -> None:
        """Begin a round. Linear in agents."""
        self.step_times, self._stragglers = StepTimes(current), None
        if factor := spec.straggler_factor:
            steps, known = spec.straggler_steps, observed.slow
            self._stragglers = Stragglers(current, factor=factor, steps=steps, known=known)

    def leave_round(self) -> None:
        """Forget the step times of the round."""
        self.step_times = self._stragglers = None

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take a beat of a member in."""
        times, stragglers = self.step_times, self._stragglers
        if beat.workers and times is not None and beat.round_id == times.round_id:
            if stragglers is not None:
                stragglers.heard(incarnation, beat.workers, now=now)
            busy = None if stragglers is None else stragglers.busy_times()
            times.heard(incarnation, beat, busy, now=now)
        self.meter.heard(incarnation, beat, sent_at=sent_at, now=now)

    def forget(self, incarnation: str) -> None:
        """Forget the ranks of a member."""
        if self._stragglers is not None:
            self._stragglers.lost(incarnation)

    def is_due(self, now: float) -> bool:
        """Return whether there may be something to journal."""
        slow = self._stragglers
        return self.meter.is_due(now) or (slow is not None and slow.is_due(now))

    def news(self, observed: Observations, *, now: float) -> Sequence[StragglerRecord]:
        """Return what to journal about stragglers."""
        slow = self._stragglers
        return slow.news(observed.slow, now=now) if slow is not None and slow.is_due(now) else ()

    @property
    def slow(self) -> Mapping[int, Straggler]:
        """All present stragglers by rank; the journal names some of them."""
        return {} if self._stragglers is None else self._stragglers.by_rank

    def marks(self, ledger: Ledger) -> Marks | None:
        """Return the marks of the account's open stretch; ``None``: it has another."""
        return self.meter.marks if self.meter.number == ledger.number else None

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        for part in (self.step_times, self._stragglers):
            if part is not None:
                part.check_invariants()


def account(observed: Observations, observer: Observer | None, *, now: float) -> Ledger:
    """Return the account of a run as of ``now``, with what was seen since the last record."""
    ledger = observed.ledger
    return ledger.as_of(now, None if observer is None else observer.marks(ledger))
