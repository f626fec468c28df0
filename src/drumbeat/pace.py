"""Pure. How far training is and how fast it goes, from its steps and when they were made."""

from __future__ import annotations

from collections import deque

POINTS_MAX = 60
# Steps in a shorter time tell no pace.
TOLD_MIN_S = 1.0
# Training that makes no step for longer, and for longer than some steps take, becomes slower.
IDLE_S, IDLE_STEPS = 30.0, 3.0


class StepPace:
    """The pace of the latest ``window_s``. Instants are seconds of one clock."""

    def __init__(self, window_s: float) -> None:
        self.step: int | None = None  # the highest
        self._window_s, self._at = window_s, 0.0
        self._points: deque[tuple[float, int]] = deque()

    def begin(self) -> None:
        """Begin anew: training may go back to an earlier step."""
        self.step = None
        self._points.clear()

    def take(self, step: int, at: float) -> None:
        """Take in that a step was made at an instant."""
        if step < 0 or (self.step is not None and step <= self.step):
            return
        self.step, self._at, points = step, at, self._points
        if not points or at - points[-1][0] >= self._window_s / POINTS_MAX:
            points.append((at, step))
        while len(points) > 1 and at - points[1][0] >= self._window_s:
            points.popleft()

    def per_second(self, now: float) -> float | None:
        """Return the steps in a second; ``None`` while too little is known."""
        if self.step is None:
            return None
        first_at, first = self._points[0]
        took, steps, idle = self._at - first_at, self.step - first, now - self._at
        if took < TOLD_MIN_S or not steps:
            return None
        return steps / (took + idle * (idle > IDLE_S + IDLE_STEPS * took / steps))
