"""Pure. What workers say of the pace and the end of training, and of their checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.pace import StepPace

PACE_WINDOW_S = 300.0  # steady, and soon what it is now

Checkpoint = tuple[float, int]  # when it was saved, on the coordinator's clock, and its step


def latest(*checkpoints: Checkpoint | None) -> Checkpoint | None:
    """Return the one that was saved last."""
    return max(filter(None, checkpoints), default=None)


class Progress:
    """The pace of the round or iteration that runs, and what its workers say beside their steps."""

    def __init__(self) -> None:
        self.pace = StepPace(PACE_WINDOW_S)
        self.steps_total = 0
        self.checkpoint: Checkpoint | None = None

    def hear(self, workers: Iterable[WorkerProgress], sent_at: float) -> None:
        """Take in what workers say of the end of training, and of their checkpoints."""
        for worker in workers:
            self.steps_total = worker.steps_total or self.steps_total
            if worker.saved_age_s is not None:
                saved = sent_at - worker.saved_age_s, worker.saved_step
                self.checkpoint = latest(self.checkpoint, saved)
