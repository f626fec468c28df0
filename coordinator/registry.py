"""Pure. All runs of one coordinator: which exist, which are due, how often agents beat."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator import effects as fx
from coordinator.admission import rounds_error
from coordinator.errors import CoordinatorError, InvalidRequest, LimitReached, StaleSession
from coordinator.events import (
    AgentLeft,
    BeatReceived,
    DeadlineReached,
    Event,
    FailureReported,
    LimitsReset,
    OutageEnded,
    RunEvent,
    RunRead,
    SessionClosed,
    SessionOpened,
)
from coordinator.isolation import IsolatedRun
from coordinator.model import DURATION_MAX_S, Pace, RunSpec
from coordinator.policy import RunPolicy
from coordinator.run_state import Phase, RunState
from drumbeat.deadlines import Deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPolicy:
    """Limits of a coordinator, and the pace of its agents. Durations are seconds.

    Up to ``agents_at_base_pace`` agents beat at the base pace; each
    doubling beyond it doubles interval, lease and reconnect delay, so that the
    load of heartbeats stays what it was.
    """

    base_pace: Pace = field(
        default_factory=lambda: Pace(
            heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25
        )
    )
    agents_at_base_pace: int = 2_000
    runs_max: int = 1_000
    runs_ended_max: int = 1_000
    run: RunPolicy = field(default_factory=RunPolicy)


class Registry:
    """The core of a coordinator. Routes events to runs; a run never sees another."""

    def __init__(self, policy: RegistryPolicy) -> None:
        self.runs: dict[str, IsolatedRun] = {}
        self.ended: list[str] = []
        self._policy = policy
        self._deadlines: Deadlines[str] = Deadlines()
        self._agents = 0  # members that are connected or missed, of all runs
        self._stretch = 1

    def restore(self, states: list[RunState], *, now: float) -> list[fx.Effect]:
        """Take over the runs that a journal held, in the order they were created.

        The pace is that of all agents they had, because all will return at once.
        """
        expected = sum(len(state.members) for state in states if state.phase is not Phase.ENDED)
        while expected > self._policy.agents_at_base_pace * self._stretch:
            self._stretch *= 2
        effects: list[fx.Effect] = []
        for state in states:
            run, ends = IsolatedRun.restore(
                state, policy=self._policy.run, pace=self._pace(), now=now
            )
            effects += ends
            self.runs[state.run_id] = run
            self._agents += len(run.members.presences)
            if state.phase is Phase.ENDED:
                self.ended.append(state.run_id)
            self._schedule(run)
        return effects + self._forget_oldest()

    def handle(self, event: Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, DeadlineReached):
            return self._on_deadline(event, now)
        if isinstance(event, OutageEnded):
            runs = list(self.runs.values())  # delivering may forget one
            return [effect for run in runs for effect in self._deliver(run, event, now)]
        run = self.runs.get(event.run_id)
        if run is not None:
            return self._deliver(run, event, now)
        if isinstance(event, RunRead):
            return []  # forgotten meanwhile
        if isinstance(event, SessionOpened):
            return self._create(event, now)
        return self._answer_unknown(event)

    def state(self, run_id: str) -> RunState | None:
        """Return a run's state if that is the fold of its records now."""
        run = self.runs.get(run_id)
        return run.state if run is not None and run.is_sound else None

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        return self._deadlines.next()

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        agents = sum(len(run.members.presences) for run in self.runs.values())
        assert agents == self._agents, "agents are miscounted"
        assert len(self.ended) <= self._policy.runs_ended_max, "too many ended runs"
        for run in self.runs.values():
            run.check_invariants()

    def _answer_unknown(
        self, event: BeatReceived | AgentLeft | SessionClosed | FailureReported | LimitsReset
    ) -> list[fx.Effect]:
        """Answer an event of a run that is not here."""
        match event:
            case BeatReceived() | AgentLeft():
                error = StaleSession("its run is not known here")
                return [fx.Reject(session_id=event.session_id, error=error)]
            case FailureReported():
                return [fx.AcknowledgeFailure(request_id=event.request_id, is_kept=False)]
            case LimitsReset():
                return [fx.AnswerReset(request_id=event.request_id, forgotten=None)]
            case SessionClosed():
                return []

    def _create(self, event: SessionOpened, now: float) -> list[fx.Effect]:
        limit = self._policy.run.agents_max
        error: CoordinatorError | None = spec_error(event.spec)
        if error is None and event.spec.agents_min > limit:
            error = InvalidRequest("spec.agents_min", event.spec.agents_min, f"at most {limit}")
        if error is None and len(self.runs) - len(self.ended) >= self._policy.runs_max:
            error = LimitReached("runs_max", self._policy.runs_max)
        if error is None:
            error = rounds_error(event.beat, next_round_id=0)
        if error is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        run, effects = IsolatedRun.create(
            event.run_id, event.spec, policy=self._policy.run, pace=self._pace(), now=now
        )
        self.runs[event.run_id] = run
        return [*effects, *self._deliver(run, event, now)]

    def _deliver(
        self,
        run: IsolatedRun,
        event: RunEvent | DeadlineReached | OutageEnded | RunRead,
        now: float,
    ) -> list[fx.Effect]:
        was_ended = run.state.phase is Phase.ENDED
        agents = len(run.members.presences)
        effects = run.handle(event, now=now)
        self._agents += len(run.members.presences) - agents
        self._schedule(run)
        if run.state.phase is Phase.ENDED and not was_ended:
            self.ended.append(run.state.run_id)
            effects += self._forget_oldest()
        return effects + self._keep_pace(now)

    def _on_deadline(self, event: DeadlineReached, now: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for run_id in self._deadlines.pop_due(now):
            run = self.runs.get(run_id)  # one that is due may have been forgotten for another
            if run is not None:
                effects += self._deliver(run, event, now)
        return effects

    def _schedule(self, run: IsolatedRun) -> None:
        due = run.next_deadline()
        if due is None:
            self._deadlines.clear(run.state.run_id)
        else:
            self._deadlines.set(run.state.run_id, due)

    def _forget_oldest(self) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        while len(self.ended) > self._policy.runs_ended_max:
            run_id = self.ended.pop(0)
            self._agents -= len(self.runs.pop(run_id).members.presences)
            self._deadlines.clear(run_id)
            effects.append(fx.Forget(run_id=run_id))
        return effects

    def _pace(self) -> Pace:
        base, stretch = self._policy.base_pace, self._stretch
        return Pace(
            heartbeat_interval_s=base.heartbeat_interval_s * stretch,
            lease_s=base.lease_s * stretch,
            reconnect_delay_max_s=base.reconnect_delay_max_s * stretch,
        )

    def _keep_pace(self, now: float) -> list[fx.Effect]:
        """Stretch or tighten the pace when agents have doubled or halved; else nothing."""
        room = self._policy.agents_at_base_pace * self._stretch
        if self._agents > room:
            self._stretch *= 2
        elif self._stretch > 1 and self._agents < room // 4:
            self._stretch //= 2
        else:
            return []
        effects: list[fx.Effect] = []
        for run in self.runs.values():
            effects += run.set_pace(self._pace(), now=now)
            self._schedule(run)
        return effects


def spec_error(spec: RunSpec) -> InvalidRequest | None:
    """Return what is impossible about a spec, ``None`` if nothing is."""
    barrier = spec.exit_barrier_timeout_s
    durations = {
        "spec.join_timeout": spec.join_timeout_s,
        "spec.last_call": spec.last_call_s,
        "spec.exit_barrier_timeout": 0.0 if barrier is None else barrier,
        "spec.shutdown_timeout": spec.shutdown_timeout_s,
        "spec.coordinator_grace": spec.coordinator_grace_s,
    }
    if spec.agents_min < 1:
        return InvalidRequest("spec.agents_min", spec.agents_min, "at least 1")
    if spec.agents_max < spec.agents_min:
        allowed = f"at least agents_min ({spec.agents_min})"
        return InvalidRequest("spec.agents_max", spec.agents_max, allowed)
    if not 0 <= spec.master_port <= 65535:
        return InvalidRequest("spec.master_port", spec.master_port, "0 to 65535")
    if barrier == 0:
        return InvalidRequest(
            "spec.exit_barrier_timeout", barrier, "above 0, or unset for no limit"
        )
    for name, value in durations.items():
        if not 0 <= value <= DURATION_MAX_S:
            return InvalidRequest(name, value, f"0 to {DURATION_MAX_S:g} seconds")
    return None
