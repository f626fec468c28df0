"""Pure. Whether this host is fit for a round: when its health checks run, and what they found."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import ChecksEnded
from drumbeat.agent.core.model import Failure, HostHealth
from drumbeat.model import HealthState

PAUSE_FIRST_S, PAUSE_MAX_S = 5.0, 300.0
"""Pauses between checks that fail: the first, which doubles, and the longest."""


class HostState(Struct, frozen=True, kw_only=True):
    """What of the agent decides whether checks may run now."""

    holds_round: bool = False
    are_workers_ending: bool = False  # of a group that failed: some still hold memory and devices
    is_ending: bool = False  # the agent


class HealthChecks:
    """The health of one host. ``health`` is ``None`` if nothing is checked; one owner calls it.

    Checks run before the first round and after each failure here, once what is left of the failed
    workers is gone. Those that fail run again after growing pauses, but not beside a round.
    """

    def __init__(self, *, has_checks: bool = False) -> None:
        self.health: HostHealth | None = None
        self._has_checks = has_checks
        self._number = 0  # of the latest checks
        self._is_running = self._is_due = False
        self._retry_at: float | None = None
        self._pause_s = PAUSE_FIRST_S
        self._failure: tuple[int, int] | None = None  # round and iteration, of the latest

    def begin(self, *, now: float) -> None:
        """Check before the first round."""
        if self._has_checks:
            self._enter(HealthState.CHECKING, "", now)
            self._is_due, self._retry_at = True, None

    def failed(self, failure: Failure, *, now: float) -> None:
        """Check once for all workers that fail in a round, or an iteration of it."""
        is_own = failure.hang is not None or not failure.is_stopped_by_agent
        key = (failure.round_id, failure.iteration)
        if is_own and key != self._failure:
            self._failure = key
            self.begin(now=now)

    def ended(self, event: ChecksEnded, *, now: float) -> list[fx.Effect]:
        """Take in what checks found, unless later ones are to say."""
        if not self._is_running or event.number != self._number:
            return []
        self._is_running = False
        if self._is_due:  # a worker has failed since they began
            return []
        was, before = self.health, self.health.reason if self.health is not None else ""
        if not event.problem:
            was_unhealthy = self._pause_s > PAUSE_FIRST_S
            self._pause_s = PAUSE_FIRST_S
            self._enter(HealthState.HEALTHY, "", now)
            why = "all health checks succeed"
            return [fx.Tell(what="host healthy again", why=why)] if was_unhealthy else []
        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._enter(HealthState.UNHEALTHY, event.problem, now)
        if was is not None and was.state is HealthState.UNHEALTHY and before == event.problem:
            return []
        return [fx.Tell(what="host unhealthy", why=event.problem)]

    def review(self, host: HostState, *, now: float) -> list[fx.Effect]:
        """Start the checks that are due, or stop those of an agent that ends."""
        if host.is_ending:
            was_running, self._is_running, self._is_due = self._is_running, False, False
            self._retry_at = None
            return [fx.StopChecks()] if was_running else []
        retry_at = self.next_retry(host)
        is_again = retry_at is not None and now >= retry_at
        if not is_again and (not self._is_due or host.are_workers_ending):
            return []
        self._number += 1
        self._is_running, self._is_due, self._retry_at = True, False, None
        return [fx.RunChecks(number=self._number)]

    def next_retry(self, host: HostState) -> float | None:
        """Return when checks that failed run again; ``None``: not now."""
        return None if host.holds_round or host.is_ending else self._retry_at

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        is_checked = self._has_checks and self.health is not None
        assert is_checked or not (self._is_running or self._is_due or self._retry_at)
        assert not (self._retry_at and (self._is_running or self._is_due)), "checks twice at once"

    def _enter(self, state: HealthState, reason: str, now: float) -> None:
        known = self.health
        if known is None or (known.state, known.reason) != (state, reason):
            self.health = HostHealth(state=state, reason=reason, since=now)
