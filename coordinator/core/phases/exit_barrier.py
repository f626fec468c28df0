"""Pure. The exit barrier: who is done and waits for the others, and who has waited long enough."""

from __future__ import annotations

from coordinator.core.model import Round
from coordinator.core.run import reasons
from coordinator.core.run.state import RunState


class ExitBarrier:
    """Counts for each participant from its success on, and lets it go when the limit is over.

    ``released`` are those that were let go, with the reason. They have succeeded, whatever
    becomes of the others, who train on. After a restart of the coordinator all waits begin anew.
    """

    def __init__(self, state: RunState, *, now: float) -> None:
        self.released: dict[str, str] = {}
        self._state = state
        self._waiting = dict.fromkeys(sorted(state.succeeded), now)  # the longest waits first

    def succeeded(self, incarnation: str, *, now: float) -> None:
        """Take in that a participant begins to wait."""
        self._waiting.setdefault(incarnation, now)

    def lost(self, incarnation: str) -> None:
        """Take in that a member is gone; it waits no more."""
        self._waiting.pop(incarnation, None)
        self.released.pop(incarnation, None)

    def deadline(self) -> float | None:
        """Return when the next one has waited long enough."""
        limit = self._state.spec.exit_barrier_timeout_s
        if limit is None or not self._waiting:
            return None
        return next(iter(self._waiting.values())) + limit

    def release(self, current: Round, *, now: float) -> list[str]:
        """Let go and return the participants that have waited long enough by ``now``."""
        found: list[str] = []
        while (due := self.deadline()) is not None and due <= now:
            found.append(next(iter(self._waiting)))
            del self._waiting[found[-1]]
        if found:
            done = self._state.succeeded | self._state.excused
            limit_s = self._state.spec.exit_barrier_timeout_s or 0.0
            self.released |= dict.fromkeys(found, reasons.barrier_over(current, done, limit_s))
        return found
