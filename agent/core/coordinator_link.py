"""Pure. How often and for how long an agent tries to reach its coordinator."""

from __future__ import annotations

from agent.core.model import Pace
from agent.errors import AgentError, CoordinatorLost, CoordinatorUnreachable
from agent.settings.config import AgentConfig

# Upper bound of the first delay before a new attempt; doubles with each failure.
# The coordinator waits half a second for an agent whose stream broke.
DELAY_FIRST_S = 0.05


class CoordinatorLink:
    """One attempt at a session at a time; the first error of a session ends it.

    Before the first welcome the agent waits for the join timeout, later for the grace, counted
    from the loss. Instants are monotonic seconds.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.coordinator = config.coordinator or "within this process"
        self.attempt = 0
        self.is_open = self.was_open = False
        self.deadline: float | None = None
        self.pace = Pace(heartbeat_interval_s=1.0, reconnect_delay_max_s=1.0)
        self.reason = "no answer"
        self._failures = 0

    def begin(self, *, now: float) -> None:
        """Begin the first attempt, which is made at once."""
        self.attempt, self.deadline = 1, now + self._config.join_timeout

    def welcomed(self, pace: Pace) -> None:
        """Note that the coordinator let us in, or stretched or tightened the heartbeats."""
        self.pace, self.is_open, self.was_open = pace, True, True
        self._failures, self.deadline = 0, None

    def lost(self, reason: str, *, now: float) -> float:
        """Begin another attempt; return the upper bound of its random delay."""
        if self.is_open:
            self.deadline = now + self._config.coordinator_grace
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
            return CoordinatorLost(self.coordinator, self._config.coordinator_grace, self.reason)
        return CoordinatorUnreachable(self.coordinator, self._config.join_timeout, self.reason)
