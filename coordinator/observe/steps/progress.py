"""Pure. How fast training goes, and what its workers say of its end and their checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress

# The pace is that of so long, from so many points: steady, and soon what it is now.
WINDOW_S, POINTS = 300.0, 60
# Steps in a shorter time tell no pace.
TOLD_MIN_S = 1.0
# Training that makes no step for longer, and for longer than some steps take, becomes slower.
IDLE_S, IDLE_STEPS = 30.0, 3.0

Checkpoint = tuple[float, int]  # when it was saved, on the coordinator's clock, and its step


def latest(*checkpoints: Checkpoint | None) -> Checkpoint | None:
    """Return the one that was saved last."""
    return max(filter(None, checkpoints), default=None)


class Pace:
    """The steps of the round or iteration that runs, and what its workers say beside them."""

    def __init__(self) -> None:
        self.step: int | None = None  # the highest
        self.steps_total = 0
        self.checkpoint: Checkpoint | None = None
        self._at = 0.0
        self._points: deque[tuple[float, int]] = deque()

    def begin(self) -> None:
        """Begin another round or iteration: training may go back to an earlier step."""
        self.step = None
        self._points.clear()

    def hear(self, workers: Iterable[WorkerProgress], sent_at: float) -> None:
        """Take in what workers say of the end of training, and of their checkpoints."""
        for worker in workers:
            self.steps_total = worker.steps_total or self.steps_total
            if worker.saved_age_s is not None:
                saved = sent_at - worker.saved_age_s, worker.saved_step
                self.checkpoint = latest(self.checkpoint, saved)

    def take(self, step: int, at: float) -> None:
        """Take in that a worker made a step at an instant."""
        if step < 0 or (self.step is not None and step <= self.step):
            return
        self.step, self._at, points = step, at, self._points
        if not points or at - points[-1][0] >= WINDOW_S / POINTS:
            points.append((at, step))
        while len(points) > 1 and at - points[1][0] >= WINDOW_S:
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
