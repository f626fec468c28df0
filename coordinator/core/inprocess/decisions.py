"""Pure. What can follow from the state of a round's iterations."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.inprocess.model import FAULTS_NAMED_MAX, Fault, InprocessSpec
from coordinator.core.inprocess.rank_rules import Cut
from coordinator.core.inprocess.records import (
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begin the iteration, as soon as its leader's agent holds a free port."""

    iteration: int
    leader: str
    world_size: int
    active_world_size: int
    cuts: tuple[Cut, ...]
    terminated: tuple[Fault, ...]
    spec: InprocessSpec | None
    reason: str
    exited: int = 0

    def record(
        self, round_id: int, *, master_addr: str, master_port: int, now: float
    ) -> IterationBegan:
        """Return what to journal."""
        return IterationBegan(
            round_id=round_id,
            iteration=self.iteration,
            active_world_size=self.active_world_size,
            master_addr=master_addr,
            master_port=master_port,
            cuts=self.cuts,
            terminated=self.terminated,
            spec=self.spec,
            reason=self.reason,
            at_s=now,
            exited=self.exited,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Interrupt the iteration everywhere."""

    iteration: int
    faults: tuple[Fault, ...]
    reason: str

    def record(self, round_id: int, *, now: float) -> IterationInterrupted:
        """Return what to journal."""
        return IterationInterrupted(
            round_id=round_id,
            iteration=self.iteration,
            faults=self.faults[:FAULTS_NAMED_MAX],
            reason=self.reason,
            at_s=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """All have completed the iteration: let them return."""

    iteration: int

    def record(self, round_id: int, *, now: float) -> IterationCompleted:
        """Return what to journal."""
        return IterationCompleted(round_id=round_id, iteration=self.iteration, at_s=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """No iteration can follow: end the round as one whose workers failed."""

    reason: str
    causes: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Not yet; look again at ``until`` if nothing happens before."""

    reason: str
    until: float


Decision = Begin | Interrupt | Complete | GiveUp | Wait
