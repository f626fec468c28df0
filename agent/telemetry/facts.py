"""Pure. What has happened to an agent: one account for its status, outcome and telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import Assignment, Exit, Failure


class RoundFacts(Struct):
    """This host's part of a round; workers by local rank, and no failures that they survived."""

    assignment: Assignment
    pids: Mapping[int, int] = field(default_factory=dict)
    started_at: float = 0.0
    exits: dict[int, ev.WorkerExited] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_since: float | None = None
    is_over: bool = False  # nothing of it is alive

    def saw(self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Note an event, and what the core made of it."""
        round_id = self.assignment.round_id
        match event:
            case ev.WorkersStarted() if event.round_id == round_id:
                self.pids, self.started_at = event.pids, now
            case ev.WorkerExited() if event.round_id == round_id:
                self.exits.setdefault(event.local_rank, event)
            case ev.WorkersStopped(round_id=stopped):
                self.is_over = self.is_over or stopped == round_id
            case ev.SupervisorDied(has_lived=True):
                self.is_over = True
        for effect in effects:
            match effect:
                case fx.StopWorkers() if effect.round_id == round_id:
                    self.stopped_since = now
                case fx.WriteFailure(failure=Failure(is_survived=False) as failure) if (
                    failure.round_id == round_id
                ):
                    self.failures.setdefault(failure.local_rank, failure)


class AgentFacts(Struct):
    """One agent. ``current``: the round that the latest event came in, unless it was over before.

    ``latest`` is another one if that event's effects start a round.
    """

    name: str
    pid: int
    began_at: float
    verdict: Exit | None = None
    current: RoundFacts | None = None
    latest: RoundFacts | None = None

    def saw(self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Note an event (``None``: the start), and what the core made of it."""
        latest = self.latest
        self.current = None if latest is None or latest.is_over else latest
        match event:
            case ev.SessionWelcomed():
                self.name = event.name or self.name
            case ev.DirectiveReceived(state=Exit() as verdict):
                self.verdict = verdict
        if latest is not None:
            latest.saw(event, effects, now=now)
        for effect in effects:
            if isinstance(effect, fx.StartRound):
                self.latest = RoundFacts(effect.assignment)
