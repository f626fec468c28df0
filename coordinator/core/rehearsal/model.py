"""Pure. A rehearsal as the journal keeps it: its plan, its faults and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import TypeVar

from msgspec import Struct

from drumbeat.coordinator.observe.steps.medians import lower_median
from drumbeat.model import FaultKind, FaultOrder
from drumbeat.text.durations import format_duration
from drumbeat.text.format import count

T = TypeVar("T")

# By how much of it the time between two faults varies, so that no schedule of training fits.
JITTER = 0.5
# Of one rehearsal, which the journal keeps as a whole; and how long workers may be stopped.
FAULTS_MAX, PAUSE_MAX_S = 50, 3600.0
INJECTED, OVER, ENDED = "fault injected", "fault over", "rehearsal ended"
_DONE = {FaultKind.WORKER: "killed", FaultKind.AGENT: "killed", FaultKind.HOST_PAUSE: "paused"}


class Outcome(StrEnum):
    """What became of a fault. The values are those of the protocol."""

    OPEN = "OPEN"  # the run has not recovered yet
    RECOVERED = "RECOVERED"
    NOT_INJECTED = "NOT_INJECTED"
    RUN_ENDED = "RUN_ENDED"
    RUN_FAILED = "RUN_FAILED"


class RehearsalPlan(Struct, frozen=True, kw_only=True):
    """What an operator asked for. Faults, hosts, ranks and times follow from the seed."""

    kinds: tuple[FaultKind, ...]
    every_s: float
    at_most: int
    pause_s: float
    seed: int
    is_first_now: bool = False
    may_overlap: bool = False

    def interval_s(self, number: int) -> float:
        """Return the time from the fault before to the one of this number."""
        share = self._draw(number, "time") / 2**64
        return self.every_s * (1 - JITTER + 2 * JITTER * share)

    def choose(self, number: int, what: str, choices: Sequence[T]) -> T:
        """Return which of some choices the fault of this number takes."""
        return choices[self._draw(number, what) % len(choices)]

    def _draw(self, number: int, what: str) -> int:
        digest = sha256(f"{self.seed}/{number}/{what}".encode()).digest()
        return int.from_bytes(digest[:8], "big")


class Fault(Struct, frozen=True, kw_only=True):
    """One fault. Durations are seconds since it was injected; ``None``: that was not seen yet."""

    number: int  # in the rehearsal, from 1
    order: FaultOrder  # what its agent is told
    at_s: float
    stretch: int  # of the account of the run's time, when it was injected
    incarnation: str = ""
    name: str = ""  # of the agent
    rank: int | None = None  # of a worker
    is_injected: bool = False  # as far as is known
    outcome: Outcome = Outcome.OPEN
    reason: str = ""  # why it was not injected, or how the run ended
    detected_s: float | None = None
    running_s: float | None = None
    trained_s: float | None = None
    steps_repeated: int | None = None
    loss_before: float | None = None
    loss_after: float | None = None

    def __str__(self) -> str:
        kind, pause_s = self.order.kind, self.order.pause_s
        who = f"{'agent' if kind is FaultKind.AGENT else 'host'} {self.name}"
        who = who if self.rank is None else f"worker rank {self.rank} on {self.name}"
        if self.outcome is Outcome.NOT_INJECTED:
            return f"{who if self.name else 'nothing'} not {_DONE[kind]}: {self.reason}"
        pause = f" for {format_duration(pause_s)}" if pause_s else ""
        trains = f"trains again after {format_duration(self.trained_s or 0.0)}"
        steps = f"{count(self.steps_repeated or 0, 'step')} repeated"
        parts = {
            f"{who} {_DONE[kind]}{pause}": True,
            trains: self.outcome is Outcome.RECOVERED,
            steps: self.steps_repeated is not None,
            self._loss(): self.loss_after is not None,
            self.reason: bool(self.reason),
        }
        return "; ".join(part for part, is_known in parts.items() if is_known)

    def _loss(self) -> str:
        if self.loss_before is None or self.loss_after is None:
            return ""
        return f"loss {self.loss_before:.4g} before, {self.loss_after:.4g} after"


class Rehearsal(Struct, frozen=True, kw_only=True):
    """The latest rehearsal of a run."""

    plan: RehearsalPlan
    began_at: float
    due_at: float  # of the next fault
    caller: str = ""
    faults: tuple[Fault, ...] = ()
    orders_before: int = 0  # of earlier rehearsals
    is_over: bool = False

    @property
    def open_faults(self) -> tuple[Fault, ...]:
        """The faults that the run has not recovered from."""
        return tuple(fault for fault in self.faults if fault.outcome is Outcome.OPEN)

    def covers(self, round_id: int | None, at_s: float) -> bool:
        """Return whether an open fault explains a failure of this round at this instant."""
        return any(f.order.round_id == round_id and f.at_s <= at_s for f in self.open_faults)

    def kills(self, incarnation: str) -> bool:
        """Return whether this agent was to be killed, and did not refuse that."""
        ours = (fault for fault in self.faults if fault.order.kind is FaultKind.AGENT)
        known = (fault for fault in ours if fault.outcome is not Outcome.NOT_INJECTED)
        return any(fault.incarnation == incarnation for fault in known)

    def describe(self, fault: Fault) -> str:
        """Say what became of a fault."""
        return f"fault {fault.number} of {self.plan.at_most}: {fault}"

    def trained_s(self) -> tuple[float, float] | None:
        """Return the median and the longest time until the run trained; ``None``: it never did."""
        times = [fault.trained_s for fault in self.faults if fault.trained_s is not None]
        return (lower_median(times, of_none=0.0), max(times)) if times else None

    def verdict(self) -> str:
        """Say what the rehearsal has shown."""
        outcomes = [fault.outcome for fault in self.faults]
        if Outcome.RUN_FAILED in outcomes:
            fault = self.faults[outcomes.index(Outcome.RUN_FAILED)]
            return f"the run did not recover from fault {fault.number}: {fault.reason}"
        skipped = outcomes.count(Outcome.NOT_INJECTED)
        if skipped == len(outcomes):
            return f"no fault was injected{f', {skipped} could not be' * bool(skipped)}"
        injected = count(len(outcomes) - skipped, "fault")
        text = f"the run recovered from {outcomes.count(Outcome.RECOVERED)} of {injected}"
        if (times := self.trained_s()) is not None:
            middle, worst = map(format_duration, times)
            text += f" and trained after {middle} (median), {worst} (worst)"
        return f"{text}{f'; {skipped} more could not be injected' * bool(skipped)}"


class RehearsalNoted(Struct, frozen=True, kw_only=True):
    """A rehearsal is as it is here; ``decision`` is for the history, with the reason."""

    rehearsal: Rehearsal
    decision: str = ""
    reason: str = ""
    at_s: float = 0.0
