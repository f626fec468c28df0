"""Pure. The exit barrier: who is done and waits for the others, and who has waited long enough."""

from __future__ import annotations

from coordinator.core.model import Round
from coordinator.core.run import reasons
from coordinator.core.run.state import RunState


class ExitBarrier:
    """Counts for each participant from its success on, and lets it go when the limit is over.

    ``released`` are those that were let go, with the reason. They have succeeded, whatever
    becomes of the others, who train on.
    """

    def __init__(self, state: RunState) -> None:
        self.released: dict[str, str] = {}
        self._state = state
        self._waiting: dict[str, float] = {}  # since when; the longest waits first

    def clear(self) -> None:
        """Begin anew: there is another round, or none."""
        self.released, self._waiting = {}, {}

    def resume(self, *, now: float) -> None:
        """Go on with the round of an earlier life of the coordinator: all waits begin anew."""
        self._waiting = dict.fromkeys(sorted(self._state.succeeded), now)

    def note_success(self, incarnation: str, *, now: float) -> None:
        """Take in that a participant begins to wait."""
        self._waiting.setdefault(incarnation, now)

    def forget(self, incarnation: str) -> None:
        """Take in that a member is gone; it waits no more."""
        self._waiting.pop(incarnation, None)
        self.released.pop(incarnation, None)

    def deadline(self) -> float | None:
        """Return when the next one has waited long enough."""
        limit = self._state.spec.exit_barrier_timeout_s
        if limit is None or not self._waiting:
            return None
        return next(iter(self._waiting.values())) + limit

    def release(self, current: Round, *, now: float) -> dict[str, str]:
        """Let go whoever has waited long enough by ``now``; return them with the reason."""
        found: dict[str, str] = {}
        reason = ""
        while (due := self.deadline()) is not None and due <= now:
            incarnation = next(iter(self._waiting))
            del self._waiting[incarnation]
            reason = reason or self._reason(current)
            found[incarnation] = reason
        self.released |= found
        return found

    def _reason(self, current: Round) -> str:
        done = self._state.succeeded | self._state.excused
        return reasons.barrier_over(current, done, self._state.spec.exit_barrier_timeout_s or 0.0)
