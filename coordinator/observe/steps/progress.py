"""Pure. What workers say of the pace and the end of training, and of their checkpoints."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.pace import StepPace

PACE_WINDOW_S = 300.0  # steady, and soon what it is now
LOSSES_KEPT = 1_000  # of each round, one for a beat: the steps that are repeated are among them

Losses = deque[tuple[int, float]]  # steps with their losses, as they were told

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
        self._losses: Losses = deque(maxlen=LOSSES_KEPT)
        self._losses_before: Losses = deque(maxlen=LOSSES_KEPT)  # of the latest round that told any

    def begin(self) -> None:
        """Take in that training begins anew."""
        self.pace.begin()
        if self._losses:
            self._losses_before, self._losses = self._losses, deque(maxlen=LOSSES_KEPT)

    def hear(self, workers: Iterable[WorkerProgress], sent_at: float) -> None:
        """Take in what workers say of the end of training, and of their checkpoints."""
        for worker in workers:
            self.steps_total = worker.steps_total or self.steps_total
            if worker.saved_age_s is not None:
                saved = sent_at - worker.saved_age_s, worker.saved_step
                self.checkpoint = latest(self.checkpoint, saved)
            if (loss := worker.loss) is None or (step := worker.step) is None:
                continue
            is_next = not self._losses or step > self._losses[-1][0]
            if is_next and math.isfinite(loss):
                self._losses.append((step, loss))

    def loss_jump(self) -> tuple[float, float] | None:
        """Return the loss of before and the first one since training began anew.

        The former is that of the same step, or of the latest before it that was told.
        """
        if not self._losses or not self._losses_before:
            return None
        step, after = self._losses[0]
        before = [(told, loss) for told, loss in self._losses_before if told <= step]
        return max(before, default=self._losses_before[0], key=lambda pair: pair[0])[1], after
