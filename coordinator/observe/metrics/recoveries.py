"""Pure. Durations of failure detection and of recovery, from journal records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drumbeat.command.metrics import Sample
from drumbeat.coordinator.core.inprocess.records import IterationBegan, IterationInterrupted
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.observe.goodput.stretches import ProgressNoted
from drumbeat.coordinator.observe.metrics.declared import DETECTED, DETECTION, REFORMING
from drumbeat.text.durations import SECOND, nanoseconds


class _Reforming(NamedTuple):
    """A run between two rounds, since an instant in nanoseconds."""

    since: int
    is_seated: bool = False  # the next round has begun
    is_running: bool = False  # its workers run, which was measured


class Recoveries:
    """Follows the records of all runs. What began under another leader is not measured."""

    def __init__(self) -> None:
        self._reforming: dict[str, _Reforming] = {}
        self._interrupted: dict[str, float] = {}

    def forget(self, key: str) -> None:
        """Forget a run."""
        self._reforming.pop(key, None)
        self._interrupted.pop(key, None)

    def saw(self, key: str, record: rec.Record) -> Iterator[Sample]:
        """Take in a journaled record, and yield the durations that it completes."""
        match record:
            case ProgressNoted():
                yield from self._noted(key, record)
            case rec.RoundEnded():
                self.forget(key)
                self._reforming[key] = _Reforming(nanoseconds(record.at_s))
            case rec.RoundStarted() if (reforming := self._reforming.get(key)) is not None:
                self._reforming[key] = reforming._replace(is_seated=True)
            case rec.EndingStarted() | rec.RunEnded():
                self.forget(key)
            case IterationInterrupted():
                self._interrupted[key] = record.at_s
            case IterationBegan() if (since := self._interrupted.pop(key, None)) is not None:
                yield REFORMING, ("in_process", "running"), max(0.0, record.at_s - since)

    def _noted(self, key: str, noted: ProgressNoted) -> Iterator[Sample]:
        ending, marks = noted.end, noted.marks
        if ending is not None and ending.since is not None and ending.cause in DETECTED:
            took = nanoseconds(noted.at_s) - ending.since
            yield DETECTION, (ending.cause.lower(),), max(0, took) / SECOND
        reforming = self._reforming.get(key)
        if reforming is None or not reforming.is_seated:
            return
        if marks.running is not None and not reforming.is_running:
            self._reforming[key] = reforming._replace(is_running=True)
            yield REFORMING, ("round", "running"), max(0, marks.running - reforming.since) / SECOND
        if marks.began is not None:
            del self._reforming[key]
            yield REFORMING, ("round", "progress"), max(0, marks.began - reforming.since) / SECOND
