"""Pure. How often and for how long an agent tries again: its coordinator, its supervisor."""

from __future__ import annotations

from agent.core.model import Pace
from agent.errors import AgentError, CoordinatorLost, CoordinatorUnreachable

# Upper bound of the first delay before a new attempt; doubles with each failure.
# The coordinator waits half a second for an agent whose stream broke.
DELAY_FIRST_S = 0.05

SUPERVISOR_DEATHS_MAX = 5
"""One that ends this often, or can't be started, without a round in between can't live here."""

RETRY_BASE_S = 0.5
"""The wait before the first retry of a supervisor; it doubles. All of them together outlast a
passing shortage of processes or memory, and the first replacement of one that has lived comes at
once."""


class CoordinatorLink:
    """One attempt at a session at a time; the first error of a session ends it.

    Before the first welcome the agent waits ``join_timeout_s`` for the
    coordinator, later ``grace_s``, counted from the loss. Instants are monotonic
    seconds.
    """

    def __init__(self, coordinator: str, *, join_timeout_s: float, grace_s: float) -> None:
        self.coordinator = coordinator
        self.attempt = 0
        self.is_open = self.was_open = False
        self.deadline: float | None = None
        self.pace = Pace(heartbeat_interval_s=1.0, reconnect_delay_max_s=1.0)
        self._join_timeout_s = join_timeout_s
        self._grace_s = grace_s
        self._failures = 0
        self.reason = "no answer"

    def begin(self, *, now: float) -> float:
        """Begin the first attempt; return the upper bound of its delay: none."""
        self.attempt = 1
        self.deadline = now + self._join_timeout_s
        return 0.0

    def welcomed(self, pace: Pace) -> None:
        """Note that the coordinator let us in."""
        self.pace, self.is_open, self.was_open = pace, True, True
        self._failures, self.deadline = 0, None

    def lost(self, reason: str, *, now: float) -> float:
        """Begin another attempt; return the upper bound of its random delay."""
        if self.is_open:
            self.deadline = now + self._grace_s
        self.is_open, self.reason = False, reason
        self.attempt += 1
        delay = DELAY_FIRST_S * 2.0**self._failures
        self._failures = min(self._failures + 1, 20)
        return min(delay, self.pace.reconnect_delay_max_s)

    def end(self) -> None:
        """Wait for nothing any more."""
        self.is_open, self.deadline = False, None
        self.attempt += 1

    def given_up(self, *, now: float) -> AgentError | None:
        """Return the error to end with at ``now``; ``None`` while there is patience left."""
        if self.deadline is None or now < self.deadline:
            return None
        if self.was_open:
            return CoordinatorLost(self.coordinator, self._grace_s, self.reason)
        return CoordinatorUnreachable(self.coordinator, self._join_timeout_s, self.reason)


class SupervisorRestarts:
    """Counts what went wrong with supervisors since workers ran last."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        """Note that workers run."""
        self.count = 0

    def delay_s(self, *, has_lived: bool) -> float | None:
        """Return how long to wait before the next one is started, None to give up.

        Args:
            has_lived: It ran before it ended; else it could not be started.
        """
        self.count += 1
        if self.count > SUPERVISOR_DEATHS_MAX:
            return None
        if has_lived and self.count == 1:
            return 0.0
        return float(RETRY_BASE_S * 2 ** (self.count - 1))
