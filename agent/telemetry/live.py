"""Pure. What the one live line of an agent says on a terminal. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.pace import StepPace
from drumbeat.text.durations import format_duration
from drumbeat.text.format import format_pace

# Of how much time the pace is: long enough to be steady, short enough to follow.
PACE_WINDOW_S = 30.0
# A rank made no step for so long, and for so many times as one takes: that is said.
STILL_S, STILL_STEPS = 10.0, 5.0


class TrainingPace:
    """How far the slowest rank of this host is, and how fast.

    In synchronous training all ranks of the run are as far and as fast, for they wait for each
    other; so no other host is asked.
    """

    def __init__(self) -> None:
        self._round_id: int | None = None
        self._began_at = 0.0
        self._pace = StepPace(PACE_WINDOW_S)
        self._latest: WorkerProgress | None = None
        self._total = 0

    def take(self, round_id: int, standings: Sequence[WorkerProgress], *, now: float) -> None:
        """Take in where the workers of a round stand."""
        if round_id != self._round_id:
            self._round_id, self._began_at, self._latest, self._total = round_id, now, None, 0
            self._pace.begin()
        known = [
            standing
            for standing in standings
            if standing.step is not None and standing.heartbeat_at
        ]
        if not known:
            return
        slowest = min(known, key=lambda standing: (standing.step, standing.heartbeat_at))
        self._latest, step, at = slowest, slowest.step or 0, slowest.heartbeat_at or now
        self._total = max((standing.steps_total for standing in known), default=0)
        if self._pace.step is not None and step < self._pace.step:
            self._pace.begin()  # as after a restart in process
        self._pace.take(step, at)

    def text(self, *, now: float) -> str:
        """Say it; without steps, for how long the round has run."""
        latest = self._latest
        if latest is None or latest.step is None:
            return f"running for {format_duration(max(1.0, round(now - self._began_at)))}"
        of_all = f" of {self._total}" if self._total else ""
        parts = [f"step {latest.step}{of_all}"]
        still_s = now - (latest.heartbeat_at or now)
        if still_s > max(STILL_S, STILL_STEPS * (latest.step_time_s or 0.0)):
            in_scope = f" (in {latest.scope})" if latest.scope else ""
            return f"{parts[0]}, none for {format_duration(round(still_s))}{in_scope}"
        if (rate := self._pace.per_second(latest.heartbeat_at or now)) is not None:
            parts.append(format_pace(rate))
            if (steps := self._total - latest.step) > 0:
                parts.append(f"{format_duration(max(1.0, round(steps / rate)))} left")
        return ", ".join(parts)
