"""Pure. What the phases of a run have in common, and the transitions they ask for.

A phase owns the volatile facts of the time it lasts. It is made at the transition, and after a
restart of the coordinator, from the durable state alone, and dropped with its facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.core.effects import Instruct
from coordinator.core.model import Beat, VerdictCause
from coordinator.core.phases.context import RunContext
from coordinator.core.phases.leader import Lineup
from coordinator.core.phases.rendezvous import Wait
from coordinator.core.progress.worker_progress import NOWHERE, Standings
from coordinator.core.run.records import RoundEnd


@dataclass(frozen=True, slots=True)
class StartRound:
    """The round can close."""

    lineup: Lineup
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRound:
    """The run has to gather for another round. ``where`` is who was where, if a worker failed."""

    cause: RoundEnd
    reason: str
    where: Standings = NOWHERE


@dataclass(frozen=True, slots=True)
class Fail:
    """No further round would help, or none is allowed. ``where`` is who was where."""

    reason: str
    where: Standings
    cause: VerdictCause = VerdictCause.WORKER_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The verdict is due."""

    cause: VerdictCause
    reason: str


Transition = StartRound | EndRound | Fail | End


class RunPhase:
    """The facts of one phase. ``review`` says what follows from them; linear work is rare.

    ``wait`` is what waiting agents are told, ``released`` are participants that need not wait
    for the others any more, with the reason. ``done`` is how many workers of each participant
    of the current or last round exited with 0 before they were told to stop.
    ``failed_since`` is when that round failed. ``review_at`` is when to review if nothing
    happens before; a phase that begins may find at once what its forerunner had no time for.
    """

    released: Mapping[str, str] = {}
    failed_since: float | None = None

    def __init__(self, run: RunContext, *, now: float, done: dict[str, int]) -> None:
        self.run = run
        self.state, self.members = run.state, run.members
        self.done = done
        self.wait: Wait | None = None
        self.review_at: float | None = now

    def review(self, *, now: float, judged_at: float) -> Transition | None:
        """Return the transition that is due, ``None`` if the phase goes on.

        Timeouts are judged as of ``judged_at``, which is not after ``now``.
        """
        raise NotImplementedError

    def admitted(self, *, now: float) -> None:
        """Take in that an agent became a member."""

    def connected(self, incarnation: str) -> None:
        """Take in that a member has a new session."""

    def disconnected(self, incarnation: str, *, now: float) -> None:
        """Take in that a member's session ended."""

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take in a beat of a member."""

    def recorded(self, incarnation: str) -> None:
        """Take in that a failure record of this agent was counted."""

    def lost(self, incarnation: str, reason: str, *, now: float) -> bool:
        """Take in that a member is given up; return whether its round goes on without it."""
        return False

    def lost_before_failure(self, incarnation: str) -> None:
        """Take in that a member given up was silent since before the latest failure."""

    def instructions(self) -> list[Instruct]:
        """Return what to tell workers that restart in process, once."""
        return []

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
