"""The disk of the coordinator's machine: rows of JSON, snapshots among them, and its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.journal.batches import Change, Compact
from drumbeat.coordinator.journal.journal import JournaledRuns
from tests.support.journal import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from drumbeat.coordinator.core.run.records import Record
    from tests.simulation.clock import Clock


# Far fewer than in real life, so that every world has some.
RECORDS_PER_SNAPSHOT = 7


class Disk:
    """Keeps rows by run, each under the name of what it is. Snapshots replace all before."""

    def __init__(self, clock: Clock) -> None:
        self.slow_until = 0.0
        self.full_until = 0.0
        self.is_lost = False
        """Another coordinator has taken the journal over."""
        self.snapshots = 0
        self.drains: dict[tuple[str, str], KeptDrain] = {}
        self._clock = clock
        self._rows: dict[str, list[tuple[str, bytes]]] = {}

    def write_s(self, random: Random) -> float:
        """Return how long a write takes."""
        return random.uniform(0.0, 3.0 if self._clock.now < self.slow_until else 0.004)

    def write(self, changes: Sequence[Change]) -> list[Change]:
        """Take changes in, and return them as they will be read."""
        for change in changes:
            match change:
                case fx.Persist(run_id=key, record=record):
                    row = type(record).__name__, msgspec.json.encode(record)
                    self._rows.setdefault(key, []).append(row)
                case fx.KeepDrain(drain=drain, is_kept=is_kept):
                    self.drains.pop(drain.key, None)
                    if is_kept:
                        self.drains[drain.key] = drain
                case fx.Forget(run_id=key):
                    del self._rows[key]
                case Compact(state):
                    self.snapshots += 1
                    self._rows[state.key] = [("Snapshot", msgspec.json.encode(state))]
        return [_read_back(change) for change in changes]

    def drained(self) -> list[str]:
        """Return the hosts that are to take part in no round."""
        return [drain.name for drain in self.drains.values() if not drain.is_lifted]

    def read(self) -> JournaledRuns:
        """Return the runs as a coordinator that starts finds them."""
        runs = JournaledRuns()
        runs.records_per_snapshot = RECORDS_PER_SNAPSHOT
        for key, rows in self._rows.items():
            for name, body in rows:
                if name == "Snapshot":
                    runs.put(msgspec.json.decode(body, type=RunState))
                else:
                    record = msgspec.json.decode(body, type=KINDS[name])
                    runs.take([fx.Persist(run_id=key, record=record)])
        return runs


def _read_back(change: Change) -> Change:
    if not isinstance(change, fx.Persist):
        return change
    return fx.Persist(run_id=change.run_id, record=read_record(change))


def read_record(change: fx.Persist) -> Record:
    """Return its record as it is read from JSON."""
    body = msgspec.json.encode(change.record)
    return msgspec.json.decode(body, type=KINDS[type(change.record).__name__])
