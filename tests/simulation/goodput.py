"""A world whose workers train, and what its time really went into, as its hosts know it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.core.model import GroupState
from agent.session import convert
from agent.watchdog.hang import Standing
from coordinator.core.phases.phase import RunContext
from coordinator.core.progress.goodput import Part
from coordinator.core.progress.meter import STEPS_ALONE_MAX, Meter
from coordinator.core.run.records import EndingStarted, RoundEnd, RoundEnded
from coordinator.core.run.state import Phase
from drumbeat.mapping import duration
from tests.simulation import faults
from tests.simulation.clock import START
from tests.simulation.cluster import Cluster
from tests.simulation.machines.head import HeadMachine
from tests.simulation.machines.session import SimSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from coordinator.core.model import Beat
    from coordinator.core.progress.goodput import Found, ProgressNoted
    from coordinator.core.run.records import Record
    from drumbeat.v1 import session_pb2
    from tests.simulation.plan import Plan

TICK_S, STEP_S = 0.05, 0.25
CHECKPOINT_STEPS = 20
# What a message takes in such a world, a busy agent, and the time between two looks at it.
LATE_S = 0.25


@dataclass(slots=True)
class RoundLife:
    """What the workers of one round really did, by instants."""

    base: int = 0
    due: dict[str, float] = field(default_factory=dict)
    running: float | None = None
    begun: dict[str, float] = field(default_factory=dict)
    steps: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Stretch:
    """A time between two decisions; ``is_failed``: it ended by a failure."""

    phase: Phase
    round_id: int | None
    seats: frozenset[str]
    start: float
    end: float = 0.0
    is_failed: bool = False


class TrainingCluster(Cluster):
    """Workers tell a heartbeat a while after they were started, then steps that all make together.

    Steps go on from the latest checkpoint, while all workers of the round run.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.lives: dict[int, RoundLife] = defaultdict(RoundLife)
        self.stretches: list[Stretch] = []
        self.away: list[tuple[float, float]] = []
        self._alive: list[tuple[float, set[tuple[str, int]]]] = []
        self._told: dict[tuple[str, int], tuple[int, float]] = {}
        self._latest = 0.0  # of the records
        self.noted_at = 0.0
        # When a coordinator heard of which step, by agent and round.
        self.words: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        self._known = self.checker.on_journaled
        self.checker.on_journaled = self._on_journaled  # type: ignore[method-assign]
        self.clock.after(TICK_S, None, self._tick)

    def beat(self, session: SimSession) -> session_pb2.Beat:
        """Return a beat with where the workers of its agent stand."""
        agent, beat = session._agent, session._beat
        told = None if beat.round_id is None else self._told.get((agent.name, beat.round_id))
        standings = []
        if told is not None:
            step, at = told
            size = agent.host.config.nproc_per_node
            standings = [Standing(local_rank=i, step=step, heartbeat_at=at) for i in range(size)]
        now, host = self.clock.now, agent.host.name
        return convert.beat_message(beat, standings=standings, now=now, host=host)

    def expected(self) -> dict[Part, float]:
        """Return what the time really went into, of a run that has ended."""
        parts: dict[Part, float] = defaultdict(float)
        reached = -1
        for stretch in self.stretches:
            for part, start, end in self._cut(stretch, reached):
                parts[part] += max(0.0, end - start)
            if stretch.phase is Phase.RUNNING and stretch.round_id is not None:
                steps = self.lives[stretch.round_id].steps
                reached = max([reached, *(step for _, step in steps)])
        return parts

    def _cut(self, stretch: Stretch, reached: int) -> list[tuple[Part, float, float]]:
        start, end = stretch.start, stretch.end
        if stretch.phase is Phase.ENDED:
            return []
        if stretch.phase is Phase.ENDING:
            return [(Part.STOPPING, start, end)]
        if stretch.phase is Phase.GATHERING:
            stopped = start
            if stretch.round_id is not None:
                stopped = self._stopped(stretch, end, stretch.round_id + 1)
            return [(Part.STOPPING, start, stopped), (Part.WAITING, stopped, end)]
        assert stretch.round_id is not None, "a round runs"
        life = self.lives[stretch.round_id]
        is_begun = life.begun.keys() == stretch.seats
        began = end
        if is_begun:
            began = min(end, self._told_by_all(stretch.round_id, stretch.seats))
        elif reached < 0 and not life.begun and life.running is not None:
            began = min(end, self._seen(life.running))
        stopped = self._stopped(stretch, began, stretch.round_id)
        again, since = began, end
        if is_begun and life.base <= reached:
            again = next((self._seen(at) for at, step in life.steps if step > reached), end)
        if stretch.is_failed:
            progress = [*life.begun.values(), *(at for at, _ in life.steps)]
            happened = self._failed_at(stretch.round_id)
            since = min(end, max([began, happened, *progress]))
        again = min(again, since)
        away = sum(max(0.0, min(last, since) - max(first, again)) for first, last in self._away())
        return [
            (Part.STOPPING, start, stopped),
            (Part.STARTING, stopped, began),
            (Part.REPEATED, began, again),
            (Part.TRAINING, again, since - away),
            (Part.AWAY, since - away, since),
            (Part.HANGING, since, end),
        ]

    def _seen(self, instant: float) -> float:
        """Return when a coordinator that may be away then sees that something has begun."""
        for first, last in self._away():
            if first < instant < last:
                return last
        return instant

    def _told_by_all(self, round_id: int, seats: Iterable[str]) -> float:
        """Return when a coordinator that did not forget it again knew that all had begun.

        It is told so by all of them, or by one that has come further than it could alone.
        """
        words = [self.words[name, round_id] for name in seats]
        first = min((word for each in words for word in each), default=(0.0, 0))[1]
        ahead = [at for each in words for at, step in each if step - first >= STEPS_ALONE_MAX]
        since = 0.0
        while True:
            firsts = [[at for at, _ in each if at >= since] for each in words]
            told = max(min(each, default=math.inf) for each in firsts)
            told = min([told, *(at for at in ahead if at >= since)])
            if (since := self._seen(told)) == told:
                return told

    def _away(self) -> list[tuple[float, float]]:
        """Return when the coordinator was away, each time once."""
        found: list[tuple[float, float]] = []
        for since, until in self.away:
            first = found.pop()[0] if found and since <= found[-1][1] else since
            found.append((first, until))
        return found

    def _stopped(self, stretch: Stretch, until: float, round_id: int) -> float:
        """Return when no worker of an earlier round was alive any more."""
        for at, alive in self._alive:
            left = {name for name, of_round in alive if of_round < round_id}
            if stretch.phase is Phase.RUNNING:
                left &= stretch.seats
            if at >= stretch.start and not left:
                # A decision that finds none alive is no look too early.
                return stretch.start if at - stretch.start <= TICK_S else min(at, until)
        return until

    def _failed_at(self, round_id: int) -> float:
        written = (each.failure for of_agent in self.checker.written.values() for each in of_agent)
        return min(
            (
                failure.happened_at
                for failure in written
                if failure.round_id == round_id and not failure.is_stopped_by_agent
            ),
            default=0.0,
        )

    def _tick(self) -> None:
        shadow = self.checker.shadow
        if shadow is not None and shadow.verdict is not None:
            return
        agents = {agent.name: agent for agent in self._agents()}
        beats = {name: agent.core.workers.beat(0) for name, agent in agents.items()}
        alive = {
            (name, beat.round_id)
            for name, beat in beats.items()
            if beat.workers_alive and beat.round_id is not None
        }
        self._alive.append((self.clock.now, alive))
        if shadow is not None and shadow.phase is Phase.RUNNING and shadow.round is not None:
            seats = shadow.round.seats.keys()
            here = {name for name, beat in beats.items() if beat.round_id == shadow.round.round_id}
            running = {name for name in here if beats[name].state is GroupState.RUNNING}
            self._train(shadow.round.round_id, running, is_whole=seats <= running)
        self.clock.after(TICK_S, None, self._tick)

    def _train(self, round_id: int, running: set[str], *, is_whole: bool) -> None:
        now = self.clock.now
        if round_id not in self.lives:
            steps = [step for life in self.lives.values() for _, step in life.steps]
            base = max(steps, default=0) // CHECKPOINT_STEPS * CHECKPOINT_STEPS
            self.lives[round_id] = RoundLife(base=base)
        life = self.lives[round_id]
        if is_whole and life.running is None:
            life.running = now
        for name in sorted(running - life.begun.keys()):
            random = self.clock.random(f"{name} starts in {round_id}")
            if now >= life.due.setdefault(name, now + random.uniform(0.0, 4.0)):
                life.begun[name] = now
                self._told[name, round_id] = life.base, now
        if not is_whole or not running <= life.begun.keys():
            return
        latest, step = life.steps[-1] if life.steps else (max(life.begun.values()), life.base)
        if now >= latest + STEP_S:
            life.steps.append((now, step + 1))
            for name in running:
                self._told[name, round_id] = step + 1, now

    def _on_journaled(self, record: Record) -> None:
        self._known(record)
        shadow, at_s = self.checker.shadow, getattr(record, "at_s", 0.0)
        assert shadow is not None, "it was created"
        self._latest = max(self._latest, at_s)
        last = self.stretches[-1] if self.stretches else None
        if not at_s or (last is not None and last.phase is shadow.phase):
            return
        if last is not None:
            last.end = at_s
            is_lost = isinstance(record, RoundEnded) and record.cause in (
                RoundEnd.WORKER_FAILED,
                RoundEnd.AGENT_LOST,
            )
            last.is_failed = is_lost or isinstance(record, EndingStarted)
        seats = frozenset(shadow.seats)
        round_id = shadow.round_id
        self.stretches.append(
            Stretch(phase=shadow.phase, round_id=round_id, seats=seats, start=at_s, end=at_s)
        )

    def on_resumed(self, run: RunContext) -> None:
        """A coordinator that knows what is journaled goes on with a run."""
        if self._latest and run.state.phase is Phase.RUNNING:
            self.away.append((self._latest, self.clock.now))


def make(patch: pytest.MonkeyPatch, plan: Plan) -> TrainingCluster:
    """Return a world in which beats tell where workers stand, and how old their agent is."""
    cluster = TrainingCluster(plan)
    resume, send, hear = RunContext.resume_account, SimSession._send, Meter.heard
    crash, note = HeadMachine.crash, Meter.note

    def resumed(self: RunContext, *, now: float) -> None:
        cluster.on_resumed(self)
        resume(self, now=now)

    def heard(self: Meter, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        if beat.workers and beat.round_id is not None:
            step = beat.workers[0].step or 0
            # What comes in the instant of a note, behind it, is not in it.
            at = math.nextafter(now, math.inf) if now == cluster.noted_at else now
            cluster.words[incarnation, beat.round_id].append((at, step))
        hear(self, incarnation, beat, sent_at=sent_at, now=now)

    def noted(self: Meter, *, now: float, found: Found | None = None) -> ProgressNoted:
        cluster.noted_at = now
        return note(self, now=now, found=found)

    def crashed(self: HeadMachine, *, is_silent: bool = False) -> None:
        if self.life is not None:
            self.life.writing = []  # all or nothing, as on a real disk
        crash(self, is_silent=is_silent)

    def sent(self: SimSession, message: session_pb2.AgentReport) -> None:
        message.uptime.CopyFrom(duration(self._clock.now - START + 1.0))
        send(self, message)

    patch.setattr(SimSession, "_beat_message", lambda session: cluster.beat(session))  # noqa: PLW0108 - a method
    patch.setattr(faults, "COORDINATOR_FAULTS", [faults.crash_head])
    patch.setattr(faults, "schedule_outages", lambda *_: None)
    patch.setattr(SimSession, "_send", sent)
    patch.setattr(Meter, "heard", heard)
    patch.setattr(Meter, "note", noted)
    patch.setattr(HeadMachine, "crash", crashed)
    patch.setattr(RunContext, "resume_account", resumed)
    return cluster
