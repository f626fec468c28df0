"""A host whose workers restart in process: does what it is told, says what is the case."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from drumbeat.coordinator.core.inprocess.records import InprocessReport, InprocessSpec
from drumbeat.inprocess import (
    InprocessDirective,
    InprocessSeat,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationInterrupt,
)

ENTERED, RUNNING = InprocessStep.ENTERED, InprocessStep.RUNNING
INTERRUPTED, COMPLETED = InprocessStep.INTERRUPTED, InprocessStep.COMPLETED


@dataclass(slots=True, kw_only=True)
class InprocessHost:
    """The workers of one agent in one round.

    ``step`` is ``None`` before they call the function for the first time; after
    they returned from it ``is_out``.
    """

    size: int
    spec: InprocessSpec = field(default_factory=InprocessSpec)
    iteration: int = 0
    step: InprocessStep | None = None
    is_out: bool = False
    terminated: dict[int, Interruption] = field(default_factory=dict)
    interruptions: dict[int, Interruption] = field(default_factory=dict)
    seats: tuple[InprocessSeat, ...] = ()

    @property
    def left(self) -> list[int]:
        """The workers that still take part."""
        return [worker for worker in range(self.size) if worker not in self.terminated]

    def report(self) -> InprocessReport | None:
        """Return all there is to say; ``None`` before there was anything."""
        if self.step is None:
            return None
        return InprocessReport(
            iteration=self.iteration,
            step=self.step,
            terminated=tuple(self.terminated[worker] for worker in sorted(self.terminated)),
            interruptions=tuple(self.interruptions.values()),
            spec=self.spec if self.step is ENTERED else None,
        )

    def enter(self) -> bool:
        """Let the workers call the function, or have cleaned up; tell whether they could."""
        if not self.left:
            return False
        if self.step is None:
            self.step = ENTERED
        elif self.is_out or self.step is INTERRUPTED:
            self.iteration, self.step, self.is_out = self.iteration + 1, ENTERED, False
            self.interruptions = {}
        else:
            return False
        return True

    def complete(self) -> bool:
        """Let the function return in all workers; tell whether it could."""
        if self.step is not RUNNING or not self.left:
            return False
        self.step = COMPLETED
        return True

    def fail(self, worker: int, kind: InterruptionKind, message: str, *, is_end: bool) -> bool:
        """Let something befall a worker; tell whether there was one."""
        if self.step is None or self.is_out or worker in self.terminated or worker >= self.size:
            return False
        fault = Interruption(local_rank=worker, kind=kind, message=message)
        if self.step is not ENTERED:
            self.step = INTERRUPTED
            self.interruptions[worker] = fault
        elif not is_end:
            return False
        if is_end:
            self.terminated[worker] = fault
        return True

    def obey(self, directive: InprocessDirective) -> bool:
        """Do what it is told; tell whether that changed anything."""
        before = (self.iteration, self.step, self.is_out, len(self.terminated))
        iteration, kind = directive.iteration, directive.kind
        is_left_already = self.step is INTERRUPTED and iteration == self.iteration
        if self.step is None or iteration < self.iteration or is_left_already:
            return False
        self._leave(directive.terminated)
        match kind:
            case IterationBegin():
                self._begin(iteration, kind)
            case IterationInterrupt():
                if iteration != self.iteration:
                    self.interruptions = {}
                self.iteration, self.step, self.is_out = iteration, INTERRUPTED, False
            case _:
                self.step, self.is_out = COMPLETED, True
        return before != (self.iteration, self.step, self.is_out, len(self.terminated))

    def _leave(self, workers: Iterable[int]) -> None:
        for worker in set(self.left) & set(workers):
            self.terminated[worker] = Interruption(
                local_rank=worker, kind=InterruptionKind.DISCARDED, message="it has no seat"
            )

    def _begin(self, iteration: int, begin: IterationBegin) -> None:
        seated = {seat.local_rank for seat in begin.seats}
        self._leave(set(self.left) - seated)
        if self.step is ENTERED and iteration == self.iteration:
            self.step, self.seats = RUNNING, begin.seats
