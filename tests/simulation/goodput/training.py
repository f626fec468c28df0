"""Workers of a world that train: heartbeats, steps that all make together, and hangs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drumbeat.agent.model.hang import Hang, HangEvidence, WorkerProgress
from drumbeat.model import HangKind
from tests.simulation.checks.checker import Listener
from tests.simulation.clock import START
from tests.simulation.machines.training import Progress
from tests.simulation.machines.wrapped import At
from tests.simulation.plan import Kind

if TYPE_CHECKING:
    from drumbeat.agent.core.model import Beat
    from drumbeat.agent.model.messages import WorkerExited
    from drumbeat.inprocess import IterationBegin
    from tests.simulation.machines.host import Agent, Host
    from tests.simulation.machines.processes import Process
    from tests.simulation.machines.wrapped import Program
    from tests.simulation.world import World

STEP_S = 0.5
CHECKPOINT_STEPS = 20
FIRST_HEARTBEAT_MAX_S = 4.0
# What agents call their uptime at the start of a world: older than any run that ended in it.
UPTIME_S = 1e6


@dataclass(slots=True, eq=False)
class Worker:
    """What one process of a round did, by true instants."""

    process: Process
    host: str
    spawned: float
    ended: float | None = None
    first: float | None = None  # heartbeat of the round
    latest: float | None = None
    step: int | None = None
    iteration: int | None = None  # that it trains in
    has_begun: bool = False  # and has told a heartbeat of
    is_stuck: bool = False
    heartbeats: list[tuple[float, int]] = field(default_factory=list)  # with their steps

    @property
    def is_training(self) -> bool:
        """Whether it would make a step with the others."""
        program = self.process.program
        if not self.process.is_alive or self.is_stuck or not self.has_begun:
            return False
        if program is None:
            return True
        is_inside = program.at is At.RUNNING and program.iteration == self.iteration
        return is_inside and not program.actor.is_stalled


@dataclass(slots=True)
class Team:
    """The workers of one round."""

    workers: list[Worker] = field(default_factory=list)
    base: int | None = None  # the latest step
    iteration: int | None = None  # that it is of
    is_pulsing: bool = False


class Training(Listener, Progress):
    """All workers of a world. What their agents say of them goes into beats.

    A worker tells a heartbeat a while after it began, then all make steps together, from the
    latest checkpoint on, while none of the round is missing. Some never tell anything, some
    name no steps, some hang and are found out by their agent.
    """

    def __init__(self, world: World) -> None:
        self.teams: dict[int, Team] = defaultdict(Team)
        self.others: list[Worker] = []  # what workers left behind
        self._world, self._clock = world, world.clock
        self._random = world.clock.random("training")
        told = self._random.random()
        self.is_told = told < 0.9
        self.names_steps = told < 0.7
        self._highest = 0
        self._workers: dict[Process, Worker] = {}
        self._hangs: dict[tuple[str, int, int], Hang] = {}

        for host in world.hosts:
            host.progress = self
        world.checker.listeners.append(self)

    def begin(self) -> None:
        """Begin with the world: perhaps workers hang in it."""
        if self._world.plan.kind is not Kind.COORDINATOR and self._random.random() < 0.5:
            self._clock.after(self._random.expovariate(1 / 15.0), None, self._hang)

    # The workers.

    def on_spawn(self, host: Host, process: Process) -> None:
        """Have a worker train, in a while."""
        worker = Worker(process, host.name, self._clock.now)
        self._workers[process] = worker
        if process.local_rank is None:
            self.others.append(worker)
            return
        team = self.teams[process.round_id]
        team.workers.append(worker)
        if host.conduct is None:
            self._begin(worker)
        if not team.is_pulsing:
            team.is_pulsing = True
            self._clock.after(STEP_S, None, partial(self._pulse, process.round_id))

    def on_exit(self, process: Process, _exit_code: int) -> None:
        """Have a worker end."""
        self._workers[process].ended = self._clock.now

    def on_begun(self, program: Program, begin: IterationBegin) -> None:
        """Have a worker train in an iteration."""
        if begin.seats[0].active_rank is not None:
            worker = self._workers[program.process]
            worker.iteration, worker.has_begun = program.iteration, False
            self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        """Have a worker tell its first heartbeat of a round or iteration soon."""
        iteration, process = worker.iteration, worker.process
        team = self.teams[process.round_id]

        def tell() -> None:
            program = process.program
            is_there = process.is_alive and not worker.is_stuck and worker.iteration == iteration
            if program is not None and (program.at is not At.RUNNING or program.actor.is_stalled):
                is_there = False
            if not is_there or not self.is_told:
                return
            if team.base is None or team.iteration != iteration:
                team.base = self._highest // CHECKPOINT_STEPS * CHECKPOINT_STEPS
                team.iteration = iteration
            self._tell(worker, team.base)

        self._clock.after(self._random.uniform(0.0, FIRST_HEARTBEAT_MAX_S), None, tell)

    def _tell(self, worker: Worker, step: int) -> None:
        worker.latest, worker.has_begun = self._clock.now, True
        worker.heartbeats.append((worker.latest, step))
        worker.first = worker.latest if worker.first is None else worker.first
        worker.step = step if self.names_steps else None

    def _pulse(self, round_id: int) -> None:
        """All workers of a round make a step, if none of them is missing."""
        team = self.teams[round_id]
        if not any(worker.process.is_alive for worker in team.workers):
            team.is_pulsing = False
            return
        active = [worker for worker in team.workers if worker.iteration == team.iteration]
        if team.base is not None and self._is_whole(round_id, team, active):
            step = team.base = team.base + 1
            self._highest = max(self._highest, step)
            for worker in active:
                self._tell(worker, step)
        self._clock.after(STEP_S, None, partial(self._pulse, round_id))

    def _is_whole(self, round_id: int, team: Team, active: list[Worker]) -> bool:
        size = self._world.checker.rounds[round_id].world_size
        if team.iteration is not None:
            begun = self._world.checker.iterations.begun.get((round_id, team.iteration))
            size = begun.active_world_size if begun is not None else 0
        return len(active) == size and all(worker.is_training for worker in active)

    # Hangs.

    def _hang(self) -> None:
        """A worker is stuck; its agent finds that out after a while."""
        random = self._random
        if self._world.is_healed:
            return
        self._clock.after(random.expovariate(1 / 20.0), None, self._hang)
        alive = [
            (worker, host.agent)
            for host in self._world.hosts
            if host.agent is not None
            for worker in self._workers.values()
            if worker.process.owner == host.agent.name and worker.process.is_alive
            if worker.process.local_rank is not None
        ]
        if not alive:
            return
        worker, agent = random.choice(alive)
        worker.is_stuck = True
        self._clock.note(worker.host, f"pid {worker.process.pid} HANGS")
        limit_s = random.uniform(3.0, 12.0)
        self._clock.after(limit_s, agent.actor, partial(self._find, worker, agent, limit_s))

    def _find(self, worker: Worker, agent: Agent, limit_s: float) -> None:
        process, supervisor = worker.process, agent.supervisor
        if not process.is_alive or supervisor is None or process.local_rank is None:
            return
        now, latest = self._clock.now, worker.latest
        kind = HangKind.STARTUP if latest is None else HangKind.PROGRESS
        key = process.owner, process.round_id, process.local_rank
        self._hangs[key] = Hang(
            kind=kind,
            limit_s=limit_s,
            elapsed_s=now - (worker.spawned if latest is None else latest),
            standing=WorkerProgress(local_rank=process.local_rank),
            noticed_at=now,
            evidence=HangEvidence(),
        )
        supervisor.end(process, -9)

    def hang_of(self, agent: Agent, event: WorkerExited) -> Hang | None:
        """Return what the agent of a stuck worker has found out."""
        return self._hangs.get((agent.name, event.round_id, event.local_rank))

    # What is told.

    def uptime_s(self, now: float) -> float:
        """Return how long every agent seems to have been running."""
        return now - START + UPTIME_S

    def standings(self, agent: Agent, beat: Beat) -> list[WorkerProgress]:
        """Return the latest heartbeats of an agent's workers."""
        return [
            WorkerProgress(
                local_rank=worker.process.local_rank or 0,
                step=worker.step,
                heartbeat_at=worker.latest,
            )
            for worker in (self.teams[beat.round_id].workers if beat.round_id is not None else ())
            if worker.process.owner == agent.name and worker.process.is_alive
            if worker.latest is not None
        ]
