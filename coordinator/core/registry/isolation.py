"""Pure. A run behind a border that its exceptions do not cross: one run can't hurt another.

A core that raised may have changed half of its state, so nothing of it is used any
more: the run is read again from the journal, where only whole decisions are. If it soon
breaks again, it has met what it can't get over, and ends with a verdict that says so.
"""

from __future__ import annotations

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.membership.drains import Drains
from drumbeat.coordinator.core.membership.load import Load
from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.phases.phase import decided
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import RunEnded
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.errors import CoordinatorError, RunClosed, Unavailable

# A run that breaks again within this time has been helped by nothing. Longer than
# what a run usually waits for, so that one that breaks at each timeout is found too.
BREAKS_AGAIN_WITHIN_S = 3600.0
# Of an exception's text, in reasons that people and agents get.
ERROR_CHARACTERS_MAX = 300


class IsolatedRun:
    """Has the interface of ``Run``, raises nothing, and takes what was read of it in."""

    def __init__(self, run: Run, policy: Policy) -> None:
        self._policy = policy
        self._error: Exception | None = None  # that made it break, until it has been read
        self._broke_at: float | None = None
        self._is_ended_here = False
        # Incarnations of which a record was refused: what comes behind it in the same stream is
        # refused too, for it would make that one look like one that was counted before.
        self._refused: set[str] = set()
        self._go_on(run)

    def _go_on(self, run: Run) -> None:
        # The state is not to be relied on unless the run `is_sound`.
        self._run, self.state, self.members = run, run.state, run.members
        self._due = run.next_deadline()
        self._refusal: CoordinatorError | None = None  # to all events, while it can take none

    def allow_failures(self, bytes_max: int) -> None:
        """Say what the run's failure records may take from now on."""
        self._run.failures_bytes_max = bytes_max

    @property
    def is_sound(self) -> bool:
        """Whether the state is the fold of the run's records."""
        return self._refusal is None

    def handle(self, event: ev.CoreEvent | ev.RunRead, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, ev.RunRead):
            return self._take_over(event.state, now)
        refusal = self._refusal or self._out_of_order(event)
        if refusal is not None:
            return self._refuse(event, refusal)
        phase = self.state.phase
        try:
            effects = self._run.handle(event, now=now)
            self._due = self._run.next_deadline()
        except Exception as error:  # noqa: BLE001 - the border between runs
            self.state.phase = phase  # the run's last word is in the journal, not here
            return [*self._break(error), *self._refuse(event, self._refusal or Unavailable(""))]
        return effects

    @property
    def excluded_count(self) -> int:
        """How many hosts are excluded from it now."""
        return len(self._run.drains.exclusions_of(self.state.run_id))

    def take_quietly(self, event: ev.BeatReceived, *, now: float) -> bool:
        """Take in a beat that says nothing new, and return whether it was one."""
        try:
            return self.is_sound and self._run.take_quietly(event, now=now)
        except Exception:  # noqa: BLE001 - the border between runs
            return False  # `handle` meets the same, and says what follows

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        return self._due if self._refusal is None else None

    def reason(self, now: float) -> str:
        """Return why the run is as it is, in words."""
        return self._run.reason(now) if self._refusal is None else str(self._refusal)

    @property
    def waits_until(self) -> float | None:
        """Until when it waits before it decides; ``None``: it does not, or has no limit."""
        return self._run.waits_until if self._refusal is None else None

    def outside(self) -> list[tuple[ev.SessionOpened, str]]:
        """Return the agents that wait outside, each with the reason."""
        return self._run.outside() if self._refusal is None else []

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        if self.is_sound:
            self._run.check_invariants()

    def _out_of_order(self, event: ev.CoreEvent) -> CoordinatorError | None:
        """Return why a record has to be sent again, after the one before it that was refused."""
        if not isinstance(event, ev.FailureReported):
            return None
        if event.is_first:
            self._refused.discard(event.record.incarnation)
        if event.record.incarnation not in self._refused:
            return None
        return Unavailable("a failure record before this one was refused")

    def _refuse(self, event: ev.CoreEvent, error: CoordinatorError) -> list[fx.Effect]:
        has_room = len(self._refused) < self._policy.incarnations_heard_max
        if isinstance(event, ev.FailureReported) and has_room:
            self._refused.add(event.record.incarnation)
        return refuse(event, error)

    def _break(self, error: Exception) -> list[fx.Effect]:
        """Let go of all sessions, and have the run read unless that has not helped before."""
        run_id, self._error = self.state.run_id, error
        refusal: CoordinatorError = RunClosed(run_id, _reason(error))
        if not self._is_ended_here:
            refusal = Unavailable(f"run {run_id} is read again after an internal error")
        self._refusal = refusal
        self._run.drains.take_back(self._run.effects)
        rejections = [fx.Reject(session_id=i, error=refusal) for i in self.members.sessions()]
        return [*rejections, fx.ReadRun(run_id=self.state.key, error=error)]

    def _take_over(self, state: RunState | None, now: float) -> list[fx.Effect]:
        """Go on from what was read; ``None`` if nothing could be."""
        if self._error is None:
            return []
        error, self._error = self._error, None
        broke_at, self._broke_at = self._broke_at, now
        if self._is_ended_here or state is None:
            self._refusal = RunClosed(self.state.run_id, _reason(error))
            return []
        self._is_ended_here = broke_at is not None and now - broke_at < BREAKS_AGAIN_WITHIN_S
        effects = _end(state, error, now) if self._is_ended_here else []
        run, ends = go_on(state, self._policy, now, self._run.drains, self.members.load)
        self._go_on(run)
        return effects + ends


def refuse(event: ev.CoreEvent, error: CoordinatorError) -> list[fx.Effect]:
    """Answer an event that is not taken in."""
    match event:
        case ev.SessionOpened() | ev.BeatReceived() | ev.AgentLeft():
            return [fx.Reject(session_id=event.session_id, error=error)]
        case ev.FailureReported() | ev.LimitsReset() | ev.SteeringAsked():
            return [fx.Answer(request_id=event.request_id, result=error)]
        case _:
            return []


def go_on(
    state: RunState, policy: Policy, now: float, drains: Drains, load: Load
) -> tuple[Run, list[fx.Effect]]:
    """Return a run as it was journaled, ended if it can't even begin from there."""
    try:
        return Run(state, policy, now=now, drains=drains, load=load), []
    except Exception as error:  # noqa: BLE001 - the border between runs
        effects = _end(state, error, now)
        return Run(state, policy, now=now, drains=drains, load=load), effects


def _end(state: RunState, error: Exception, now: float) -> list[fx.Effect]:
    """Give a run that can't go on its verdict."""
    if state.phase is Phase.ENDED:
        return []
    verdict = Verdict(
        cause=VerdictCause.INTERNAL,
        reason=_reason(error),
        restart_count=state.restart_count,
        round_id=state.round_id,
    )
    return decided(state, RunEnded(verdict=verdict, at_s=now))


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return (
        f"internal error of the coordinator, {text}; it came again when the run had been read "
        "anew from the journal; the coordinator's log has the details"
    )
