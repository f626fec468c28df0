"""Pure. All runs of one coordinator: which exist, which are due, how often agents beat."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core import effects as fx
from coordinator.core.events import (
    AgentLeft,
    BeatReceived,
    CoreEvent,
    DeadlineReached,
    Event,
    FailureReported,
    FromOutside,
    LimitsReset,
    OutageEnded,
    RunRead,
    RunSuperseded,
    SessionClosed,
    SessionOpened,
)
from coordinator.core.membership.admission import differences, rounds_error, run_closed
from coordinator.core.membership.pace import PaceRules
from coordinator.core.model import DURATION_MAX_S, AgentInfo, Pace, RunSpec
from coordinator.core.registry.generations import (
    Generations,
    began_after_end,
    ended_bytes,
    is_of_predecessor,
    is_older_than_run,
)
from coordinator.core.registry.isolation import IsolatedRun
from coordinator.core.run.policy import RunPolicy
from coordinator.core.run.records import RunCreated
from coordinator.core.run.state import Phase, RunState
from coordinator.errors import (
    CoordinatorError,
    Difference,
    InvalidRequest,
    LimitReached,
    RunMissesAgents,
    StaleSession,
)
from drumbeat.deadlines import Deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPolicy:
    """Limits of a coordinator, and the pace of its agents. Durations are seconds.

    Up to ``agents_at_base_pace`` agents of a run keep the base pace; for more see ``PaceRules``.

    ``runs_max``: live runs; a hello of one more is refused.
    ``runs_ended_*``: what is remembered of runs that have ended, in all and per run id;
    the oldest is forgotten first. ``failures_bytes_max``: what the failure records of all
    runs may take together; each may have ``failures_bytes_least`` of it whatever others have.
    """

    base_pace: Pace = field(
        default_factory=lambda: Pace(
            heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25
        )
    )
    agents_at_base_pace: int = 2_000
    runs_max: int = 1_000
    runs_ended_max: int = 1_000
    runs_ended_per_id_max: int = 20
    runs_ended_bytes_max: int = 256 * 1024 * 1024
    failures_bytes_max: int = 256 * 1024 * 1024
    failures_bytes_least: int = 256 * 1024
    run: RunPolicy = field(default_factory=RunPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSession:
    """One session of one agent. ``run`` is the ``RunState.key`` of the one it serves, if any."""

    info: AgentInfo
    run: str | None


class Registry:
    """The core of a coordinator. Routes events to runs; a run never sees another."""

    def __init__(self, policy: RegistryPolicy) -> None:
        self.runs: dict[str, IsolatedRun] = {}  # by `RunState.key`
        self.generations = Generations(self.runs)
        self.sessions: dict[str, AgentSession] = {}
        self.ended: list[str] = []
        self._ended_bytes: dict[str, int] = {}
        self._failures_bytes = 0  # of all runs
        self._policy = policy
        self._deadlines: Deadlines[str] = Deadlines()
        self._pace = PaceRules(base=policy.base_pace, agents_at_base=policy.agents_at_base_pace)

    def restore(self, states: list[RunState], *, now: float) -> list[fx.Effect]:
        """Take over the runs that a journal held, in the order they were created."""
        effects: list[fx.Effect] = []
        for state in states:
            run, ends = IsolatedRun.restore(
                state, policy=self._policy.run, pace=self._pace, now=now
            )
            effects += ends
            self.generations.add(run)
            self._failures_bytes += state.failures_bytes
            self._schedule(run)
        ended = [state for state in states if state.phase is Phase.ENDED]
        for state in sorted(ended, key=lambda state: state.ended_at or 0.0):
            self._note_ended(state)
        return effects + self._forget_oldest()

    def handle(self, event: Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, DeadlineReached):
            return self._on_deadline(event, now)
        if isinstance(event, OutageEnded):
            runs = list(self.runs.values())  # delivering may forget one
            return [effect for run in runs for effect in self._deliver(run, event, now)]
        if isinstance(event, RunRead):
            read = self.runs.get(event.run_id)  # it may have been forgotten meanwhile
            return self._deliver(read, event, now) if read is not None else []
        return self._route(event, now)

    def _route(self, event: FromOutside, now: float) -> list[fx.Effect]:
        """Deliver what comes from outside to the run it is meant for."""
        match event:
            case SessionOpened():
                return self._open_session(event, now)
            case FailureReported():
                run = self.generations.of_agent(event.run_id, event.record.incarnation)
                return self._take_failure(run, event, now) if run else self._answer_unknown(event)
            case LimitsReset():
                run = self.generations.latest(event.run_id)
            case _:
                run = self._run_of(event)
        if isinstance(event, SessionClosed):
            self.sessions.pop(event.session_id, None)
        return self._deliver(run, event, now) if run else self._answer_unknown(event)

    def take_quietly(self, event: BeatReceived, *, now: float) -> bool:
        """Take in a beat that says nothing new, and return whether it was one.

        Nothing follows from it, so it needs no turn. Its run may come up for a
        deadline that has moved on, which does no harm.
        """
        run = self._run_of(event)
        return run is not None and run.take_quietly(event, now=now)

    def state(self, key: str) -> RunState | None:
        """Return a run's state if that is the fold of its records now."""
        run = self.runs.get(key)
        return run.state if run is not None and run.is_sound else None

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        return self._deadlines.next()

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        served = {session.run for session in self.sessions.values()}
        for key, run in self.runs.items():
            is_served = not run.is_sound or not run.members.connected or key in served
            assert is_served, "members without a session"
        assert len(self.ended) <= self._policy.runs_ended_max, "too many ended runs"
        held = sum(run.state.failures_bytes for run in self.runs.values())
        assert held == self._failures_bytes, "failure records are not weighed right"
        self.generations.check_invariants()
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

    def _open_session(self, event: SessionOpened, now: float) -> list[fx.Effect]:
        """Take in an agent's session, and let the agent do what it comes for."""
        run = self.generations.of_agent(event.run_id, event.agent.incarnation)
        effects = self._open(run, event, now)
        run = self.generations.of_agent(event.run_id, event.agent.incarnation)
        key = run.state.key if run is not None else None
        self.sessions[event.session_id] = AgentSession(info=event.info, run=key)
        return effects

    def _run_of(self, event: BeatReceived | AgentLeft | SessionClosed) -> IsolatedRun | None:
        """Return the run that a session serves; it speaks of no other.

        A session that is not known here is answered by the agent's run.
        """
        session = self.sessions.get(event.session_id)
        if session is None:
            return self.generations.of_agent(event.run_id, event.incarnation)
        run = self.runs.get(session.run or "")
        return run if run is not None and run.state.run_id == event.run_id else None

    def _open(self, run: IsolatedRun | None, event: SessionOpened, now: float) -> list[fx.Effect]:
        """Let an agent into its run: the one it is a member of, the latest, or a new one."""
        if run is None:
            return self._create(event, now)
        state = run.state
        if event.agent.incarnation in state.members or not run.is_sound:
            return self._deliver(run, event, now)
        if state.phase is Phase.ENDED:
            if began_after_end(event, state, now=now):
                return self._create(event, now, predecessor=state)
        elif is_of_predecessor(event, state, now=now):
            before = self.generations.before(run)
            error = run_closed(event.run_id, before.state if before is not None else None)
            return [fx.Reject(session_id=event.session_id, error=error)]
        elif not run.members.connected and (
            found := differences(theirs=event.spec, ours=state.spec)
        ):
            return self._supersede(run, found, event, now)
        return self._deliver(run, event, now)

    def _supersede(
        self, run: IsolatedRun, found: tuple[Difference, ...], event: SessionOpened, now: float
    ) -> list[fx.Effect]:
        """Start anew for an agent with other settings, in the place of a run all have left."""
        error = self._create_error(event, freed=1)
        if error is None and run.state.members:
            error = RunMissesAgents(event.run_id, found)
        if error is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        listed = "; ".join(str(difference) for difference in found)
        reason = f"all agents had left, and {event.agent.host} came with other settings: {listed}"
        end = RunSuperseded(run_id=event.run_id, reason=reason)
        effects = self._deliver(run, end, now)
        if run.state.phase is not Phase.ENDED:  # it broke
            return [*effects, *self._deliver(run, event, now)]
        return [*effects, *self._create(event, now, predecessor=run.state)]

    def _take_failure(
        self, run: IsolatedRun, event: FailureReported, now: float
    ) -> list[fx.Effect]:
        """Hand a record to its run, with what all others leave of the budget."""
        if is_older_than_run(event, run.state, now=now):
            return [fx.AcknowledgeFailure(request_id=event.request_id, is_kept=False)]
        policy, held = self._policy, run.state.failures_bytes
        left = policy.failures_bytes_max - (self._failures_bytes - held)
        room = max(policy.failures_bytes_least, min(policy.run.failures_bytes_max, left))
        run.allow_failures(room)
        return self._deliver(run, event, now)

    def _create(
        self, event: SessionOpened, now: float, *, predecessor: RunState | None = None
    ) -> list[fx.Effect]:
        if (error := self._create_error(event)) is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        policy = self._policy.run
        record = RunCreated(
            run_id=event.run_id,
            spec=event.spec,
            failures_kept_max=policy.failures_kept_max,
            history_max=policy.history_max,
            generation=predecessor.generation + 1 if predecessor is not None else 1,
            predecessor_ended_at=predecessor.ended_at if predecessor is not None else None,
        )
        run, effects = IsolatedRun.create(record, policy=policy, pace=self._pace, now=now)
        self.generations.add(run)
        effects += self._deliver(run, event, now)
        return effects + self._forget_oldest(event.run_id)

    def _create_error(self, event: SessionOpened, *, freed: int = 0) -> CoordinatorError | None:
        """Return why there can't be such a run, once ``freed`` runs have ended."""
        limit = self._policy.run.agents_max
        error: CoordinatorError | None = spec_error(event.spec)
        if error is None and event.spec.agents_min > limit:
            error = InvalidRequest("spec.agents_min", event.spec.agents_min, f"at most {limit}")
        if error is None and len(self.runs) - len(self.ended) - freed >= self._policy.runs_max:
            error = LimitReached("runs_max", self._policy.runs_max)
        return error or rounds_error(event.beat, next_round_id=0)

    def _deliver(self, run: IsolatedRun, event: CoreEvent | RunRead, now: float) -> list[fx.Effect]:
        was_ended = run.state.phase is Phase.ENDED
        failures_bytes = run.state.failures_bytes
        effects = run.handle(event, now=now)
        self._failures_bytes += run.state.failures_bytes - failures_bytes
        self._schedule(run)
        if run.state.phase is Phase.ENDED and not was_ended:
            self._note_ended(run.state)
            effects += self._forget_oldest(run.state.run_id)
        elif was_ended and not run.state.members:
            self._ended_bytes[run.state.key] = ended_bytes(run.state)
        return effects

    def _on_deadline(self, event: DeadlineReached, now: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for key in self._deadlines.pop_due(now):
            run = self.runs.get(key)  # one that is due may have been forgotten for another
            if run is not None:
                effects += self._deliver(run, event, now)
        return effects

    def _schedule(self, run: IsolatedRun) -> None:
        due = run.next_deadline()
        if due is None:
            self._deadlines.clear(run.state.key)
        else:
            self._deadlines.set(run.state.key, due)

    def _note_ended(self, state: RunState) -> None:
        self.ended.append(state.key)
        self._ended_bytes[state.key] = ended_bytes(state)

    def _forget_oldest(self, run_id: str = "") -> list[fx.Effect]:
        """Forget the oldest ended runs of this id, and of all, beyond what may be remembered."""
        policy = self._policy
        surplus = self.generations.surplus(run_id, policy.runs_ended_per_id_max)
        effects = [self._forget(key) for key in surplus]
        size = sum(self._ended_bytes.values())
        while len(self.ended) > policy.runs_ended_max or (
            len(self.ended) > 1 and size > policy.runs_ended_bytes_max
        ):
            size -= self._ended_bytes[self.ended[0]]
            effects.append(self._forget(self.ended[0]))
        return effects

    def _forget(self, key: str) -> fx.Effect:
        self.ended.remove(key)
        del self._ended_bytes[key]
        self.generations.remove(key)
        self._deadlines.clear(key)
        return fx.Forget(run_id=key)


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
