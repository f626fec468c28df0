"""Pure. All runs of one coordinator: which exist, which are due, how often agents beat."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator import effects as fx
from coordinator.deadlines import Deadlines
from coordinator.errors import CoordinatorError, InvalidRequest, LimitReached, StaleSession
from coordinator.events import (
    AgentLeft,
    BeatReceived,
    DeadlineReached,
    Event,
    FailureReported,
    RunEvent,
    SessionClosed,
    SessionOpened,
)
from coordinator.model import Pace, RunSpec
from coordinator.policy import RunPolicy
from coordinator.run import Run
from coordinator.run_state import Phase, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPolicy:
    """Limits of a coordinator, and the pace of its agents. Durations are seconds.

    Up to ``agents_at_base_pace`` connected agents beat at the base pace; each
    doubling beyond it doubles interval, lease and reconnect delay, so that the
    load of heartbeats stays what it was.
    """

    base_pace: Pace = field(
        default_factory=lambda: Pace(
            heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=1.0
        )
    )
    agents_at_base_pace: int = 2_000
    runs_max: int = 1_000
    runs_ended_max: int = 1_000
    run: RunPolicy = field(default_factory=RunPolicy)


class Registry:
    """The core of a coordinator. Routes events to runs; a run never sees another."""

    def __init__(self, policy: RegistryPolicy) -> None:
        self.runs: dict[str, Run] = {}
        self.ended: list[str] = []
        self._policy = policy
        self._deadlines: Deadlines[str] = Deadlines()
        self._agents_connected = 0
        self._stretch = 1

    def restore(self, states: list[RunState], *, now: float) -> None:
        """Take over the runs that a journal held, in the order they were created."""
        for state in states:
            run = Run(state, policy=self._policy.run, pace=self._pace(), now=now)
            self.runs[state.run_id] = run
            if state.phase is Phase.ENDED:
                self.ended.append(state.run_id)
            self._schedule(run)

    def handle(self, event: Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, DeadlineReached):
            return self._on_deadline(event, now)
        run = self.runs.get(event.run_id)
        if run is not None:
            return self._deliver(run, event, now)
        match event:
            case SessionOpened():
                return self._create(event, now)
            case BeatReceived() | AgentLeft():
                error = StaleSession("its run is not known here")
                return [fx.Reject(session_id=event.session_id, error=error)]
            case FailureReported():
                return [fx.AcknowledgeFailure(request_id=event.request_id, is_kept=False)]
            case SessionClosed():
                return []

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        return self._deadlines.next()

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        connected = sum(len(run.members.connected) for run in self.runs.values())
        assert connected == self._agents_connected, "connected agents are miscounted"
        assert len(self.ended) <= self._policy.runs_ended_max, "too many ended runs"
        for run in self.runs.values():
            run.check_invariants()

    def _create(self, event: SessionOpened, now: float) -> list[fx.Effect]:
        error: CoordinatorError | None = spec_error(event.spec)
        if error is None and len(self.runs) - len(self.ended) >= self._policy.runs_max:
            error = LimitReached("runs_max", self._policy.runs_max)
        if error is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        run, effects = Run.create(
            event.run_id, event.spec, policy=self._policy.run, pace=self._pace(), now=now
        )
        self.runs[event.run_id] = run
        return [*effects, *self._deliver(run, event, now)]

    def _deliver(self, run: Run, event: RunEvent | DeadlineReached, now: float) -> list[fx.Effect]:
        was_ended = run.state.phase is Phase.ENDED
        connected = len(run.members.connected)
        effects = run.handle(event, now=now)
        self._agents_connected += len(run.members.connected) - connected
        self._schedule(run)
        if run.state.phase is Phase.ENDED and not was_ended:
            self.ended.append(run.state.run_id)
            effects += self._forget_oldest()
        return effects + self._keep_pace(now)

    def _on_deadline(self, event: DeadlineReached, now: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for run_id in self._deadlines.pop_due(now):
            effects += self._deliver(self.runs[run_id], event, now)
        return effects

    def _schedule(self, run: Run) -> None:
        due = run.next_deadline()
        if due is None:
            self._deadlines.clear(run.state.run_id)
        else:
            self._deadlines.set(run.state.run_id, due)

    def _forget_oldest(self) -> list[fx.Effect]:
        if len(self.ended) <= self._policy.runs_ended_max:
            return []
        run_id = self.ended.pop(0)
        self._agents_connected -= len(self.runs.pop(run_id).members.connected)
        self._deadlines.clear(run_id)
        return [fx.Forget(run_id=run_id)]

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
        if self._agents_connected > room:
            self._stretch *= 2
        elif self._stretch > 1 and self._agents_connected < room // 4:
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
    durations = {
        "spec.join_timeout": spec.join_timeout_s,
        "spec.last_call": spec.last_call_s,
        "spec.exit_barrier_timeout": spec.exit_barrier_timeout_s or 0.0,
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
    for name, value in durations.items():
        if not 0 <= value < float("inf"):
            return InvalidRequest(name, value, "a duration of 0 or more")
    return None
