"""Pure. What outlives the phases of a run, and takes in what they decide."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core import effects as fx
from coordinator.core.failures.silence import SilentAtFailure
from coordinator.core.membership.leases import Membership
from coordinator.core.progress.adaptive_timeouts import Learning
from coordinator.core.run.policy import RunPolicy
from coordinator.core.run.publisher import Publisher
from coordinator.core.run.records import Record
from coordinator.core.run.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One for each run. Every change of the durable state goes through ``commit``."""

    state: RunState
    members: Membership
    policy: RunPolicy
    publisher: Publisher
    learning: Learning
    silent: SilentAtFailure = field(default_factory=SilentAtFailure)
    effects: list[fx.Effect] = field(default_factory=list)

    def commit(self, record: Record) -> None:
        """Fold a record in, and journal it."""
        self.state.apply(record)
        self.effects.append(fx.Persist(run_id=self.state.key, record=record))

    def decide(self, record: Record) -> None:
        """Commit a record that the history calls a decision, and log that."""
        self.commit(record)
        entry = self.state.history[-1]
        self.log(entry.decision, entry.reason)

    def log(self, decision: str, reason: str) -> None:
        """Have a decision logged."""
        run_id, round_id = self.state.run_id, self.state.round_id
        self.effects.append(
            fx.Decided(run_id=run_id, decision=decision, reason=reason, round_id=round_id)
        )

    def take_effects(self) -> list[fx.Effect]:
        """Return the effects collected since the last call."""
        taken = self.effects.copy()
        self.effects.clear()
        return taken
