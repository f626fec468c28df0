"""Jobs with replica groups, a seed each: groups die, hang and come back, and coordinators restart.

What a job may do is judged by a reference that knows only when runs began and how they ended.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import RestartAsked, StopAsked
from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import RunCreated, RunEnded
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.model import GroupState, ReplicaGroup
from tests.support.operator import ask
from tests.support.world import Story, a_spec

JOB = "ft"
JOIN_TIMEOUT_S = 30.0
ACTS = (
    *("join", "join", "join", "fail", "silence", "die", "leave", "succeed", "operator"),
    *("restart", "crash"),
)
CHAOS_STEPS, STEP_MAX_S = 60, 12.0
# After this every lease, every restart delay and every wait for agents is over.
CALM_S = JOIN_TIMEOUT_S + 60.0


@dataclass
class Life:
    """One run of a group, as the reference knows it."""

    index: int
    began_at: float
    ended_at: float = math.inf
    cause: VerdictCause | None = None


class GroupsWorld:
    """One job, its hosts, and one coordinator after the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed}/groups")
        self.count = self.random.randint(2, 5)
        self.least = self.random.randint(1, self.count)
        self.hosts = self.random.randint(1, 2)
        self.story = Story(policy=Policy(checkpoint_grace_s=0.0))
        self.story.watch = self._hear
        self.lives: dict[str, Life] = {}  # by the key of the run
        self.stopped: set[str] = set()  # keys of runs that an operator stopped
        self.names = 0
        self.waits_seen = self.closed = self.succeeded = 0

    def run(self) -> None:
        """Live through chaos; then wait until all that goes on by itself has come to rest."""
        for _ in range(CHAOS_STEPS):
            self._act()
            self.check()
            self.story.advance(self.random.uniform(0.0, STEP_MAX_S))
            self._obey()
            self.check()
        for _ in range(int(CALM_S)):
            self.story.advance(1.0)
            self._obey()
            self.check()
        for state in self._latest():
            assert state.phase in (Phase.RUNNING, Phase.ENDED), f"{state.run_id} waits for ever"
        for agent in self.story.agents.values():
            run = self.story.registry.groups_of(JOB).get(self._index(agent.run_id))
            if agent.session_id is not None and not agent.is_silent and run is not None:
                is_trained = run.phase is Phase.RUNNING and agent.state is GroupState.RUNNING
                assert is_trained or agent.has_exited or run.verdict is None, agent.name
        self.story.registry.check_invariants()

    # What happens.

    def _act(self) -> None:
        agents = [a for a in self.story.agents.values() if a.session_id is not None]
        living = [agent.name for agent in agents if not agent.is_silent]
        training = [a.name for a in agents if a.state is GroupState.RUNNING and not a.is_silent]
        act = self.random.choice(ACTS)
        before = len(self.story.journal), {a.name: a.desired for a in self.story.agents.values()}
        if act == "join":
            self._join()
        elif act == "operator":
            self._operate()
        elif act == "restart":
            self._restart()
        elif act == "succeed" and training:
            run_id = self.story.agents[self.random.choice(training)].run_id
            for name in training:
                if self.story.agents[name].run_id == run_id:
                    self.story.succeed(name)
        elif act in ("fail", "crash") and training:
            name = self.random.choice(training)
            self.story.fail(name)
            if act == "crash":
                self._crash(*before)
        elif act == "silence" and living:
            self.story.silence(self.random.choice(living))
        elif act == "die" and living:
            self.story.break_session(self.random.choice(living))
        elif act == "leave" and living:
            self.story.leave(self.random.choice(living))

    def _join(self) -> None:
        """Start a host of a group; half of the time one that began a while ago."""
        index = self.random.randrange(self.count)
        self.names += 1
        group = ReplicaGroup(job=JOB, index=index, count=self.count, groups_min=self.least)
        spec = a_spec(
            self.hosts,
            replica_group=group,
            restarts_max=1,
            join_timeout_s=JOIN_TIMEOUT_S,
            coordinator_grace_s=10.0,
        )
        began_at = self.story.now - self.random.choice([0.0, 0.0, 5.0, 20.0])
        self.story.join(f"h{self.names}", run_id=group.run_id, spec=spec, began_at=began_at)

    def _operate(self) -> None:
        kind: Any = self.random.choice([StopAsked, RestartAsked, RestartAsked])
        run_id = self.random.choice([JOB, *(f"{JOB}.{index}" for index in range(self.count))])
        living = [state for state in self._latest() if state.verdict is None]
        if kind is StopAsked:
            self.stopped |= {s.key for s in living if run_id in (JOB, s.run_id)}
        ask(self.story, kind, run_id=run_id)

    def _restart(self) -> None:
        lost = [a.name for a in self.story.agents.values() if a.session_id is None]
        self.story.restart()
        for name, agent in list(self.story.agents.items()):
            if name not in lost and not agent.is_silent and not agent.has_exited:
                self.story.back(name)

    def _crash(self, journaled: int, desired: dict[str, fx.Direct | None]) -> None:
        """Kill the coordinator amid its writes: nothing of what it decided last was sent."""
        kept = self.random.randint(journaled, max(journaled, len(self.story.journal)))
        lost, self.story.journal = self.story.journal[kept:], self.story.journal[:kept]
        for key, record in lost:
            if isinstance(record, RunEnded):
                self.lives[key].ended_at, self.lives[key].cause = math.inf, None
            elif isinstance(record, RunCreated):
                del self.lives[key]
        for name, told in desired.items():
            self.story.agents[name].desired = told
        self._restart()

    def _obey(self) -> None:
        for agent in self.story.agents.values():
            if agent.session_id is not None and not agent.is_silent:
                self.story.obey(agent.name)
                if agent.has_exited:
                    self.story.leave(agent.name, "it was told to end")

    # What holds.

    def _hear(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Persist) and isinstance(effect.record, RunCreated):
                group = effect.record.spec.replica_group
                assert group is not None
                self.lives[effect.run_id] = Life(group.index, self.story.now)
            elif isinstance(effect, fx.Persist) and isinstance(effect.record, RunEnded):
                verdict = effect.record.verdict
                if verdict.cause is VerdictCause.GROUPS_MISSING:
                    failed = self._failed(effect.run_id)
                    assert self.count - failed < self.least, "a job ended that could go on"
                    assert effect.run_id not in self.stopped, "it was to end in another way"
                    self.closed += 1
                life = self.lives[effect.run_id]
                life.ended_at, life.cause = self.story.now, verdict.cause
                self.succeeded += verdict.is_success

    def _failed(self, key: str) -> int:
        """Count groups that can't go on, of the life of the job that this run is a part of.

        Not those that ended because others could not. By what touches what, in any order.
        """
        together, is_more = {key}, True
        while is_more:
            parts = [self.lives[each] for each in together]
            more = {
                each
                for each, life in self.lives.items()
                if any(
                    life.began_at < part.ended_at and part.began_at < life.ended_at
                    for part in parts
                )
            }
            is_more, together = not more <= together, together | more
        latest: dict[int, Life] = {}
        for each in sorted(together, key=lambda each: self.lives[each].began_at):
            latest[self.lives[each].index] = self.lives[each]
        others = (VerdictCause.SUCCEEDED, VerdictCause.GROUPS_MISSING, None)
        return sum(life.cause not in others for life in latest.values())

    def check(self) -> None:
        """Assert that no group goes on of a job that has too few of them."""
        for state in self._latest():
            is_ending = state.phase in (Phase.ENDING, Phase.ENDED) or state.stop_reason
            if not is_ending and self.story.registry.runs:
                failed = self._failed(state.key)
                assert self.count - failed >= self.least, f"{state.run_id} goes on in vain"
                self.waits_seen += failed > 0

    def _latest(self) -> list[RunState]:
        return [run.state for run in self.story.registry.runs.values() if run.state.verdict is None]

    @staticmethod
    def _index(run_id: str) -> int:
        return int(run_id.rpartition(".")[2])
