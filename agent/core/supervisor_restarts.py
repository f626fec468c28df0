"""Pure. When a supervisor that ended, or could not be started, is replaced."""

from __future__ import annotations

SUPERVISOR_DEATHS_MAX = 5
"""One that ends this often, or can't be started, without a round in between can't live here."""

RETRY_BASE_S = 0.5
"""The wait before the first retry; it doubles. All of them together outlast a passing shortage of
processes or memory, and the first replacement of one that has lived comes at once."""


class SupervisorRestarts:
    """Counts what went wrong since workers ran last."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        """Take note that workers run."""
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
