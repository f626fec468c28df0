"""Pure. The runs as the journal has them, and what to write next.

The core is ahead of the journal while a batch is being written, for as long as the disk takes.
Readers must not see what a crash would undo, so the records are folded a second time once they
are durable. From that fold also come the snapshots that keep a journal small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordinator.core import effects as fx
from coordinator.core.run.records import FailuresCounted, RunCreated, weight
from coordinator.core.run.state import RunState, key_of

# A run's records are replaced by one snapshot when this many have come since the
# last one: replaying stays fast and the file stays small, however long a run lives.
RECORDS_PER_SNAPSHOT = 5_000


@dataclass(frozen=True, slots=True)
class Compact:
    """Replace all records of a run by the state they fold into."""

    state: RunState


Change = fx.Kept | Compact


class JournaledRuns:
    """States by ``RunState.key``, in order of creation. Readers change nothing."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self.records_per_snapshot = RECORDS_PER_SNAPSHOT
        self._generations: dict[str, list[int]] = {}  # by run id
        self._sizes: dict[str, int] = {}  # usual records since the last snapshot

    def changes(self, effects: Iterable[fx.Effect]) -> list[Change]:
        """Return what to write for these effects: those that are kept, and snapshots that are due.

        Counted failure records of one run are put together.
        """
        kept: list[Change] = []
        counted: dict[str, tuple[int, list[FailuresCounted]]] = {}
        for effect in effects:
            if not isinstance(effect, fx.Kept):
                continue
            if isinstance(effect, fx.Persist) and isinstance(effect.record, FailuresCounted):
                _, together = counted.setdefault(effect.run_id, (len(kept), []))
                together.append(effect.record)
                if len(together) > 1:
                    continue
            kept.append(effect)
        for key, (place, records) in counted.items():
            kept[place] = fx.Persist(run_id=key, record=FailuresCounted.together(records))
        changed = {change.run_id: None for change in kept if isinstance(change, fx.Kept)}
        due = [key for key in changed if self._sizes.get(key, 0) >= self.records_per_snapshot]
        return [*(Compact(self.states[key]) for key in due), *kept]

    def take(self, changes: Sequence[Change]) -> None:
        """Let readers see what is durable now."""
        for change in changes:
            match change:
                case fx.Persist(run_id=key, record=RunCreated() as record):
                    self.put(RunState.created(record))
                case fx.Persist(run_id=key, record=record):
                    self.states[key].apply(record)
                    self._sizes[key] += weight(record)
                case fx.Forget(run_id=key):
                    self._erase(key)
                case Compact(state):
                    self._sizes[state.key] = 0

    def put(self, state: RunState) -> None:
        """Take in a new run, or one read from a snapshot; it belongs to this object now."""
        self.states[state.key] = state
        self._sizes[state.key] = 0
        self._generations.setdefault(state.run_id, []).append(state.generation)
        self._generations[state.run_id].sort()

    def sort(self, keys: Iterable[str]) -> None:
        """Put the runs in this order."""
        self.states = {key: self.states[key] for key in keys}

    def find(self, run_id: str, generation: int = 0) -> RunState | None:
        """Return a run by its id, the latest that has it unless a generation is named."""
        known = self._generations.get(run_id)
        latest = known[-1] if known else 0
        return self.states.get(key_of(run_id, generation or latest))

    def _erase(self, key: str) -> None:
        state = self.states.pop(key)
        del self._sizes[key]
        generations = self._generations[state.run_id]
        generations.remove(state.generation)
        if not generations:
            del self._generations[state.run_id]
