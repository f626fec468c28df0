"""Agents made of values, and a story in which they talk to a ``Registry``.

Nothing here runs by itself: time is a number that ``Story.advance`` moves, and
an agent says only what a test makes it say, unless the story ``is_lively``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    AgentLeft,
    BeatReceived,
    DeadlineReached,
    Event,
    FailureReported,
    LimitsReset,
    SessionClosed,
    SessionOpened,
    TurnCame,
)
from drumbeat.coordinator.core.model import (
    AgentIdentity,
    Beat,
    Exit,
    FailureRecord,
    Release,
    RunSpec,
    WorkerRanks,
)
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.core.run.records import Record
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.inprocess import InprocessDirective, InterruptionKind
from drumbeat.model import Assignment, GroupState, Standby
from tests.support.inprocess.host import InprocessHost
from tests.support.journal import fold, round_trip, take_over

RUN = "run"
START = 1000.0
BEAT_S = 1.0


def a_spec(agents_min: int = 1, agents_max: int | None = None, **fields: Any) -> RunSpec:
    """Return a spec; with one number, minimum and maximum are the same."""
    most = agents_min if agents_max is None else agents_max
    return RunSpec(agents_min=agents_min, agents_max=most, **fields)


def an_agent(name: str, /, **fields: Any) -> AgentIdentity:
    """Return the identity of an agent on the host of that name."""
    given: dict[str, Any] = {
        "incarnation": f"{name}.1",
        "host": name,
        "address": f"10.{name}",
        "role": "default",
        "local_world_size": 1,
    }
    return AgentIdentity(**(given | fields))


def a_record(sequence: int = 1, **fields: Any) -> FailureRecord:
    """Return a failure record of rank 0 in round 0."""
    rank = fields.pop("rank", 0)
    ranks = WorkerRanks(rank=rank, local_rank=0, group_rank=0, role_rank=0, role="default")
    given: dict[str, Any] = {
        "incarnation": "a.1",
        "sequence": sequence,
        "round_id": 0,
        "host": "a",
        "worker": ranks,
        "exit_code": 1,
    }
    return FailureRecord(**(given | fields))


@dataclass(slots=True)
class StoryAgent:
    """What a test knows of one agent."""

    name: str
    run_id: str
    spec: RunSpec
    identity: AgentIdentity
    port: int
    life: int = 1
    session_id: str | None = None
    state: GroupState = GroupState.IDLE
    round_id: int | None = None
    workers_alive: int = 0
    is_start_impossible: bool = False
    workers: tuple[WorkerProgress, ...] = ()
    observations: tuple[Observation, ...] = ()
    sequence: int = 0
    is_silent: bool = False
    has_exited: bool = False
    desired: fx.Direct | None = None
    limits: dict[str, float] | None = None
    failure: FailureRecord | None = None
    workers_done: int = 0
    inprocess: InprocessHost | None = None
    directive: InprocessDirective | None = None
    began_at: float | None = None  # unless it says no uptime
    more: dict[str, Any] = field(default_factory=dict)  # that its beats say

    def beat(self) -> Beat:
        """Return its whole state."""
        return Beat(
            state=self.state,
            round_id=self.round_id,
            master_port=self.port,
            failures_written=self.sequence,
            workers_alive=self.workers_alive,
            is_start_impossible=self.is_start_impossible,
            workers=self.workers,
            observations=self.observations,
            inprocess=self.inprocess.report() if self.inprocess is not None else None,
            failure=self.failure,
            workers_done=self.workers_done,
            **self.more,
        )

    def iterates(self) -> InprocessHost:
        """Return its workers as those that restart in process, from the first time on."""
        if self.inprocess is None:
            self.inprocess = InprocessHost(size=self.identity.local_world_size)
        return self.inprocess

    def _obey_directive(self) -> None:
        directive, host = self.directive, self.inprocess
        if host is None or directive is None or directive.round_id != self.round_id:
            return
        host.obey(directive)
        self.workers_alive = len(host.left) if self.workers_alive else 0

    def obey(self) -> bool:
        """Become what it was told to be; return whether that changed anything."""
        if self.desired is None or self.has_exited:
            return False
        before = self.beat()
        if self.desired.master_port_spent == self.port:
            self.port += 1
        match self.desired.state:
            case Assignment(round_id=round_id):
                if self.round_id != round_id:
                    self.state, self.round_id = GroupState.RUNNING, round_id
                    self.workers_alive = self.identity.local_world_size
                    self.workers, self.observations = (), ()
                    self.inprocess = self.failure = None
                    self.workers_done = 0
                self._obey_directive()
            case Standby():
                self.state, self.round_id, self.workers_alive = GroupState.IDLE, None, 0
                self.inprocess = None
            case Exit() | Release():
                self.has_exited, self.workers_alive = True, 0
            case _:
                self.workers_alive = 0
                if self.state in {GroupState.STARTING, GroupState.RUNNING}:
                    self.state = GroupState.IDLE
        return self.has_exited or self.beat() != before


@dataclass(slots=True)
class Story:
    """Drives a registry, keeps what it wanted, and plays its agents.

    In a lively story agents do what they are told within the same instant;
    otherwise a test calls ``obey`` or sets their state itself.
    """

    # Unless a test is about it, what is planned waits for no training.
    policy: Policy = field(default_factory=lambda: Policy(checkpoint_grace_s=0.0))
    spec: RunSpec = field(default_factory=a_spec)
    now: float = START
    is_lively: bool = False
    watch: Callable[[list[fx.Effect]], None] | None = None
    agents: dict[str, StoryAgent] = field(default_factory=dict)
    journal: list[tuple[str, Record]] = field(default_factory=list)
    effects: list[fx.Effect] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    registry: Registry = field(init=False)
    _counter: int = 0
    _beat_at: float = START + BEAT_S

    def __post_init__(self) -> None:
        self.registry = Registry(self.policy)

    # What is there.

    def run(self, run_id: str = RUN) -> IsolatedRun:
        """Return the core of a run."""
        return self.registry.runs[run_id]

    def state(self, run_id: str = RUN) -> RunState:
        """Return the durable state of a run."""
        return self.registry.runs[run_id].state

    def desired(self, name: str) -> fx.Direct:
        """Return what an agent was told last."""
        desired = self.agents[name].desired
        assert desired is not None, f"{name} was told nothing"
        return desired

    def assignment(self, name: str) -> Assignment:
        """Return the assignment that an agent was sent last."""
        state = self.desired(name).state
        assert isinstance(state, Assignment), state
        return state

    def standby(self, name: str) -> Standby:
        """Return the standby order that an agent was sent last."""
        state = self.desired(name).state
        assert isinstance(state, Standby), state
        return state

    def verdict(self, name: str) -> Any:
        """Return the verdict that an agent was sent."""
        state = self.desired(name).state
        assert isinstance(state, Exit), state
        return state.verdict

    def ranks(self) -> list[str]:
        """Return the hosts of the current round by group rank."""
        current = self.state().round
        assert current is not None, "no round"
        return [seat.agent.host for seat in current.seats.values()]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the effects of this kind among those of the last call."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def records(self, kind: type[Any]) -> list[Any]:
        """Return all journaled records of this kind, of all runs."""
        return [record for _, record in self.journal if isinstance(record, kind)]

    # What happens.

    def handle(self, event: Event) -> list[fx.Effect]:
        """Deliver an event; return what the core wants done."""
        effects = self.registry.handle(event, now=self.now)
        while more := [effect for effect in effects if isinstance(effect, fx.TellMore)]:
            effects = [effect for effect in effects if effect not in more]
            for each in more:
                effects += self.registry.handle(TurnCame(run_id=each.run_id), now=self.now)
        self.effects = list(effects)
        self._absorb(effects)
        if self.is_lively:
            self.live()
        return effects

    def join(self, name: str, /, **fields: Any) -> list[fx.Effect]:
        """Let an agent open its first session: ``fields`` of its identity, perhaps ``began_at``."""
        run_id, began_at = fields.pop("run_id", RUN), fields.pop("began_at", None)
        spec = fields.pop("spec", self.spec)
        port = fields.pop("port", 20_000 + 100 * len(self.agents))
        life = self.agents[name].life + 1 if name in self.agents else 1
        identity = an_agent(name, **({"incarnation": f"{name}.{life}"} | fields))
        self.agents[name] = StoryAgent(name, run_id, spec, identity, port, life, began_at=began_at)
        return self.back(name)

    def back(self, name: str) -> list[fx.Effect]:
        """Let an agent open another session, as the same incarnation."""
        agent = self.agents[name]
        self._counter += 1
        agent.session_id = f"s{self._counter}"
        agent.is_silent = False
        self.sessions[agent.session_id] = name
        return self.handle(
            SessionOpened(
                run_id=agent.run_id,
                spec=agent.spec,
                session_id=agent.session_id,
                agent=agent.identity,
                beat=agent.beat(),
                uptime_s=None if agent.began_at is None else self.now - agent.began_at,
            )
        )

    def beat(self, name: str, state: GroupState | None = None, **fields: Any) -> list[fx.Effect]:
        """Let an agent report; ``fields`` change it first."""
        agent = self.agents[name]
        agent.state = state or agent.state
        for key, value in fields.items():
            setattr(agent, key, value)
        return self.handle(
            BeatReceived(
                run_id=agent.run_id,
                session_id=agent.session_id or "none",
                incarnation=agent.identity.incarnation,
                beat=agent.beat(),
            )
        )

    def obey(self, name: str) -> list[fx.Effect]:
        """Let an agent do what it was told last, and report it."""
        return self.beat(name) if self.agents[name].obey() else []

    def obey_all(self) -> None:
        """Let all connected agents do what they were told."""
        for name, agent in self.agents.items():
            if agent.session_id is not None:
                self.obey(name)

    def fail(self, name: str) -> list[fx.Effect]:
        """Let a worker of the agent's round fail; its record is another story."""
        return self.beat(name, GroupState.FAILED, workers_alive=0)

    def succeed(self, name: str) -> list[fx.Effect]:
        """Let all workers of the agent's round exit with 0."""
        return self.beat(name, GroupState.SUCCEEDED, workers_alive=0)

    def enter(self, name: str) -> list[fx.Effect]:
        """Let all workers of an agent enter their first or next iteration."""
        return self.beat(name) if self.agents[name].iterates().enter() else []

    def complete(self, name: str) -> list[fx.Effect]:
        """Let the function return in all workers of an agent."""
        return self.beat(name) if self.agents[name].iterates().complete() else []

    def interrupt(
        self,
        name: str,
        worker: int = 0,
        kind: InterruptionKind = InterruptionKind.EXCEPTION,
        message: str = "oh",
    ) -> list[fx.Effect]:
        """Let something befall a worker that lives on."""
        host = self.agents[name].iterates()
        return self.beat(name) if host.fail(worker, kind, message, is_end=False) else []

    def terminate(
        self,
        name: str,
        worker: int = 0,
        kind: InterruptionKind = InterruptionKind.TERMINATED,
        message: str = "killed by SIGKILL",
    ) -> list[fx.Effect]:
        """Let a worker end in an iteration."""
        agent = self.agents[name]
        if not agent.iterates().fail(worker, kind, message, is_end=True):
            return []
        agent.workers_alive = max(0, agent.workers_alive - 1)
        return self.beat(name)

    def record(self, name: str, **fields: Any) -> list[fx.Effect]:
        """Deliver the agent's next failure record, or an old one if given ``sequence``."""
        agent = self.agents[name]
        if "sequence" not in fields:
            agent.sequence += 1
        is_first = fields.pop("is_first", False)
        run = self.registry.runs.get(agent.run_id)
        seats = run.state.round.seats if run is not None and run.state.round is not None else {}
        seat = seats.get(agent.identity.incarnation)
        given = {"incarnation": agent.identity.incarnation, "host": agent.identity.host}
        place = {"round_id": agent.round_id or 0, "rank": seat.rank_first if seat else 0}
        self._counter += 1
        record = a_record(**(given | place | {"sequence": agent.sequence} | fields))
        return self.handle(
            FailureReported(
                run_id=agent.run_id, request_id=self._counter, record=record, is_first=is_first
            )
        )

    def reset_limits(self, run_id: str = RUN) -> int | None:
        """Have what was learned of a run forgotten; return how many limits there were."""
        self._counter += 1
        self.handle(LimitsReset(run_id=run_id, request_id=self._counter))
        (answer,) = self.of(fx.Answer)
        return answer.result  # type: ignore[no-any-return]

    def leave(self, name: str, reason: str = "ended by SIGTERM") -> list[fx.Effect]:
        """Let an agent say goodbye, and end."""
        self.effects = self.say_goodbye(name, reason) + self.break_session(name)
        return self.effects

    def say_goodbye(self, name: str, reason: str = "ended by SIGTERM") -> list[fx.Effect]:
        """Let an agent leave that still stops its workers."""
        agent = self.agents[name]
        who = {"run_id": agent.run_id, "incarnation": agent.identity.incarnation}
        session_id = agent.session_id or "none"
        return self.handle(AgentLeft(**who, session_id=session_id, reason=reason))

    def break_session(self, name: str, *, is_revoked: bool = False) -> list[fx.Effect]:
        """End an agent's stream."""
        agent = self.agents[name]
        session_id, agent.session_id = agent.session_id or "none", None
        return self.handle(
            SessionClosed(
                run_id=agent.run_id,
                session_id=session_id,
                incarnation=agent.identity.incarnation,
                is_revoked=is_revoked,
            )
        )

    def silence(self, name: str) -> None:
        """Cut an agent's host off, without a word."""
        self.agents[name].is_silent = True

    def advance(self, seconds: float) -> list[fx.Effect]:
        """Let time pass; agents that can, beat every second. Return all effects."""
        end, effects = self.now + seconds, list[fx.Effect]()
        for _ in range(100_000):
            due = self.registry.next_deadline()
            instant = self._beat_at if due is None else min(due, self._beat_at)
            if instant > end:
                break
            self.now = max(self.now, instant)
            if due is not None and due <= self.now:
                effects += self.handle(DeadlineReached())
            if self._beat_at <= self.now:
                self._beat_at += BEAT_S
                effects += self._beat_all()
        else:
            raise AssertionError("time stands still: a deadline is due again and again")
        self.now = end
        self.effects = list(effects)
        return effects

    def stall(self, seconds: float) -> list[fx.Effect]:
        """Stop the coordinator for a while: no beat is read, no deadline noticed."""
        self.now += seconds
        self._beat_at = self.now + BEAT_S
        return self.advance(0)

    def restart(self) -> None:
        """Kill the coordinator and start another from its journal. No stream survives."""
        drains, self.registry = self.registry.drains.kept, Registry(self.policy)
        self.registry.drains.restore(drains.values())
        take_over(self.registry, fold(round_trip(self.journal)).values(), now=self.now)
        for agent in self.agents.values():
            agent.session_id = None
        self.sessions.clear()

    # Inside.

    def _beat_all(self) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for name, agent in self.agents.items():
            if agent.session_id is not None and not agent.is_silent:
                effects += self.beat(name)
        return effects

    def _absorb(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Persist(run_id=run_id, record=record):
                    self.journal.append((run_id, record))
                case fx.Forget(run_id=run_id):
                    self.journal = [entry for entry in self.journal if entry[0] != run_id]
                case fx.Direct(session_id=session_id) as desired:
                    self.agents[self.sessions[session_id]].desired = desired
                case fx.Instruct(session_id=session_id, directive=directive):
                    self.agents[self.sessions[session_id]].directive = directive
                case fx.TellLimits(session_id=session_id, limits=limits):
                    told = {limit.section: limit.limit_s for limit in limits}
                    self.agents[self.sessions[session_id]].limits = told
                case fx.Reject(session_id=session_id):
                    agent = self.agents.get(self.sessions.get(session_id, ""))
                    if agent is not None and agent.session_id == session_id:
                        agent.session_id = None
        if self.watch is not None:
            self.watch(effects)

    def live(self) -> None:
        """Let agents do what they are told until nobody has anything left to do."""
        self.is_lively, shown = False, self.effects
        while any(self._live_one(agent) for agent in self.agents.values()):
            pass
        self.is_lively, self.effects = True, shown

    def _live_one(self, agent: StoryAgent) -> bool:
        if agent.session_id is None or agent.is_silent or not agent.obey():
            return False
        if agent.has_exited:
            self.leave(agent.name, "it was told to end")
        else:
            self.beat(agent.name)
        return True


def a_story(agents_min: int = 1, agents_max: int | None = None, **fields: Any) -> Story:
    """Return a story whose run has this spec. ``policy`` and ``is_lively`` are the story's."""
    own = {key: fields.pop(key) for key in ("policy", "is_lively") if key in fields}
    return Story(spec=a_spec(agents_min, agents_max, **fields), **own)


def a_running_story(size: int, agents_max: int | None = None, **fields: Any) -> Story:
    """Return a story in which ``size`` agents a, b, c ... run the first round."""
    story = a_story(fields.pop("agents_min", size), agents_max, **fields)
    for index in range(size):
        story.join(chr(ord("a") + index))
    if story.state().round is None:
        story.advance(story.spec.last_call_s)
    story.obey_all()
    return story
