"""Pure. What the phases of a run have in common."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.core.effects import Instruct
from coordinator.core.model import Beat
from coordinator.core.phases.context import RunContext
from coordinator.core.phases.rendezvous import Wait
from coordinator.core.run.records import EndingStarted, RoundEnded, RoundStarted, RunEnded

Transition = RoundStarted | RoundEnded | EndingStarted | RunEnded


class RunPhase:
    """The volatile facts of the time that a phase lasts.

    It is made at the transition, and after a restart of the coordinator, from the durable
    state alone, and dropped with its facts. ``wait`` is what waiting agents are told,
    ``released`` are participants that need not wait for the others any more, with the
    reason. ``review_at`` is when to review if nothing happens before; a phase that begins
    may find at once what its forerunner had no time for.
    """

    released: Mapping[str, str] = {}

    def __init__(self, run: RunContext, *, now: float) -> None:
        self.run, self.state, self.members = run, run.state, run.members
        self.wait: Wait | None = None
        self.review_at: float | None = now

    def review(self, *, now: float, judged_at: float) -> Transition | None:
        """Return the record that leads to the next phase, ``None`` if this one goes on.

        Timeouts are judged as of ``judged_at``, which is not after ``now``. Linear work is rare.
        """
        raise NotImplementedError

    def connected(self, incarnation: str, *, now: float) -> None:
        """Take in that a member has a new session."""

    def disconnected(self, incarnation: str, *, now: float) -> None:
        """Take in that a member's session ended."""

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take in a beat of a member."""

    def recorded(self, incarnation: str) -> None:
        """Take in that a failure record of this agent was counted."""

    def lost(self, incarnation: str, reason: str, *, was_silent: bool, now: float) -> bool:
        """Take in that a member is given up; return whether its round goes on without it.

        ``was_silent``: it had not been heard since before the latest failure.
        """
        return False

    def instructions(self) -> list[Instruct]:
        """Return what to tell workers that restart in process, once."""
        return []

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
