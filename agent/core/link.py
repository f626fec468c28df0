"""Pure. An agent's way to the coordinator: which one it asks next, when, and for how long."""

from __future__ import annotations

from drumbeat.agent import errors
from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import Beat
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.command.leader_search import LeaderSearch, Outcome, is_unreached
from drumbeat.model import Pace
from drumbeat.text.addresses import parse_addresses

# Upper bound of the first delay before a new attempt; doubles with each failure.
# The coordinator waits half a second for an agent whose stream broke.
DELAY_FIRST_S = 0.05

WITHIN_THIS_PROCESS = "within this process"


class CoordinatorLink:
    """One attempt at a session at a time; the first error of a session ends it.

    Before the first welcome the agent waits for the join timeout, later for the grace, counted
    from the loss; less long if it hears nothing of several coordinators. Instants are monotonic
    seconds.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.coordinator = config.coordinator or WITHIN_THIS_PROCESS
        given = parse_addresses(config.coordinator) if config.coordinator else (self.coordinator,)
        self.search = LeaderSearch(given)
        self.attempt = 0
        self.is_open = self.was_open = False
        # Whether the coordinator that was lost may answer again at once: their connection broke.
        # It gives an agent up half a second later, so in the first round of the search the others
        # are not asked to wait for its successor.
        self._may_be_back = self._has_told_loss = False
        self.term = 0  # of the coordinator that let this agent in last
        self.deadline: float | None = None
        self._lost_at = self._heard_at = 0.0  # the latter: of any coordinator, since the loss
        self.pace = Pace(heartbeat_interval_s=1.0, reconnect_delay_max_s=1.0)
        self.hint = ""
        self._failures = 0
        self._refused_by: set[str] = set()  # addresses, since one let it in

    @property
    def reason(self) -> str:
        """Why no coordinator has let this agent in."""
        return self.search.why() or "no answer"

    def begin(self, *, now: float) -> None:
        """Begin the first attempt, which is made at once."""
        self.attempt, self.deadline = 1, now + self._config.join_timeout

    def welcomed(self, event: ev.SessionWelcomed) -> None:
        """Note that the coordinator let us in, or set another pace."""
        self.pace, self.is_open, self.was_open = event.pace, True, True
        self.term = event.term or self.term
        self._failures, self.deadline = 0, None
        self._refused_by.clear()
        self.search.note_leader()

    def opening(self, delay_max_s: float, beat: Beat) -> fx.OpenSession:
        """Return how to make the attempt."""
        # One whom another coordinator has sent has not lost the one that it goes to.
        is_sent = self.search.is_named
        lost_term = 0 if is_sent or self._may_be_back else self.term
        self._has_told_loss = lost_term > 0
        return fx.OpenSession(
            attempt=self.attempt,
            delay_max_s=delay_max_s,
            beat=beat,
            address=self.search.address,
            lost_term=lost_term,
        )

    def refusal(self, event: ev.SessionLost) -> errors.AgentError | None:
        """Return what ends the agent, if this does.

        Tokens and certificates may be known or right at one address and not yet at another, so
        each of them has to refuse this agent; but for the coordinator that let it in, or that
        another one named.
        """
        is_of_leader = self.is_open or self.search.is_named
        if is_of_leader or not isinstance(event.refusal, errors.AccessRefused):
            return event.refusal
        self._refused_by.add(self.search.address)
        return event.refusal if self.search.given <= self._refused_by else None

    def lost(self, event: ev.SessionLost, *, now: float) -> float:
        """Begin another attempt; return the upper bound of its random delay."""
        is_loss = self.is_open
        if is_loss:
            self._lost_at = self._heard_at = now
        elif not is_unreached(event.outcome, event.reason):
            self._heard_at = now
        if self.was_open:
            grace_end = self._lost_at + self._config.grace_s
            self.deadline = min(grace_end, self._heard_at + self._config.isolation_grace_s)
        self.is_open, self.hint = False, event.hint
        self.attempt += 1
        # One that was told of the loss has waited for a successor, and says that there is none.
        is_news = self._has_told_loss
        if self.search.failed(event.outcome, event.reason, leader=event.leader, is_news=is_news):
            return 0.0
        self._may_be_back = is_loss and event.outcome is Outcome.BROKEN
        delay = DELAY_FIRST_S * 2.0**self._failures
        self._failures = min(self._failures + 1, 20)
        return min(delay, self.pace.reconnect_delay_max_s)

    def end(self) -> None:
        """Wait for nothing any more."""
        self.is_open, self.deadline = False, None
        self.attempt += 1

    def given_up(self, *, now: float) -> errors.AgentError | None:
        """Return the error to end with at ``now``; ``None`` while there is patience left."""
        if self.deadline is None or now < self.deadline:
            return None
        where, config = self.coordinator, self._config
        error: errors.AgentError
        if self.was_open:
            error = errors.CoordinatorLost(where, self.deadline - self._lost_at, self.reason)
        else:
            error = errors.CoordinatorUnreachable(where, config.join_timeout, self.reason)
        error.hint = self.hint or error.hint
        return error
