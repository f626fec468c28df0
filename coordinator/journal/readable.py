"""Pure. The runs as the journal has them: what readers see.

The core is ahead of the journal while a batch is being written, for as long as the
disk takes. Readers must not see what a crash would undo, so this folds the records a
second time, once they are durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.run.records import Record, RunCreated
from coordinator.core.run.state import RunState, key_of


class JournaledRuns:
    """States by ``RunState.key``, in order of creation. Readers change nothing."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self._generations: dict[str, list[int]] = {}  # by run id

    def restore(self, states: Iterable[RunState]) -> None:
        """Take over what a journal held. The states belong to this object from now on."""
        for state in states:
            self._add(state)

    def append(self, key: str, record: Record) -> None:
        """Fold in a record that is durable."""
        if isinstance(record, RunCreated):
            self._add(RunState.created(record))
        else:
            self.states[key].apply(record)

    def erase(self, key: str) -> None:
        """Forget a run."""
        state = self.states.pop(key)
        generations = self._generations[state.run_id]
        generations.remove(state.generation)
        if not generations:
            del self._generations[state.run_id]

    def find(self, run_id: str, generation: int = 0) -> RunState | None:
        """Return a run by its id, the latest that has it unless a generation is named."""
        known = self._generations.get(run_id)
        latest = known[-1] if known else 0
        return self.states.get(key_of(run_id, generation or latest))

    def _add(self, state: RunState) -> None:
        self.states[state.key] = state
        self._generations.setdefault(state.run_id, []).append(state.generation)
        self._generations[state.run_id].sort()
