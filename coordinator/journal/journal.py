"""Shell. The interface of a journal, which keeps runs across the coordinator's death.

The core is ahead of the journal while a batch is being written. Readers must not see what a crash
would undo, so records are folded a second time once they are durable, and snapshots are taken of
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import Phase, RunState, key_of
from drumbeat.coordinator.core.tokens.token_table import TokenTable
from drumbeat.coordinator.journal.batches import Change, Compact
from drumbeat.coordinator.journal.contents import Problem
from drumbeat.coordinator.journal.watches import Watches

# Records of a run after which they are replaced by one snapshot, so that a journal stays small and
# quick to read however long a run lives.
RECORDS_PER_SNAPSHOT = 1_000


class JournaledRuns:
    """States by ``RunState.key``, in order of creation. Readers change nothing."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self.watches = Watches()  # of readers that want to see each durable record at once
        # Called with each record once it is durable, and with its run as it was before it.
        self.on_record: Callable[[RunState, rec.Record], None] = lambda _state, _record: None
        self.on_forgotten: Callable[[RunState], None] = lambda _state: None
        self.records_per_snapshot = RECORDS_PER_SNAPSHOT
        self._latest: dict[str, int] = {}  # the latest generation of each run id
        self._sizes: dict[str, int] = {}  # usual records since the last snapshot

    def changes(self, effects: Iterable[fx.Effect]) -> list[Change]:
        """Return the changes of runs that these effects ask for, and snapshots that are due.

        Counted failure records of one run become one, which comes last but for the run's end.
        """
        kept: list[fx.Persist | fx.Forget] = []
        counted: dict[str, list[rec.FailuresCounted]] = {}
        for effect in effects:
            match effect:
                case fx.Persist(run_id=key, record=rec.FailuresCounted() as record):
                    counted.setdefault(key, []).append(record)
                case fx.Persist() | fx.Forget():
                    kept.append(effect)
        for key, records in counted.items():
            ends = (at for at, change in enumerate(kept) if _is_end(change, key))
            together = fx.Persist(run_id=key, record=rec.FailuresCounted.together(records))
            kept.insert(next(ends, len(kept)), together)
        changed = dict.fromkeys(change.run_id for change in kept)
        due = [key for key in changed if self._sizes.get(key, 0) >= self.records_per_snapshot]
        snapshots = [Compact(self.states[key]) for key in due]
        return [*snapshots, *kept, *self._of_ended(kept)]

    def _of_ended(self, kept: Iterable[fx.Persist | fx.Forget]) -> Iterator[Compact]:
        """Return a snapshot of each run that has ended, of which nothing else is kept."""
        records: dict[str, list[rec.Record]] = {}
        for change in kept:
            if isinstance(change, fx.Forget):
                records.pop(change.run_id, None)
            else:
                records.setdefault(change.run_id, []).append(change.record)
        for key, of_run in records.items():
            state = self.states.get(key)
            has_ended = state is not None and state.phase is Phase.ENDED
            if has_ended or any(isinstance(record, rec.RunEnded) for record in of_run):
                state = self.copy(key)
                for record in of_run:
                    if state is None:
                        assert isinstance(record, rec.RunCreated), "a run begins with it"
                        state = RunState.created(record)
                    else:
                        state.apply(record)
                assert state is not None, "it has records"
                yield Compact(state)

    def take(self, changes: Sequence[Change]) -> None:
        """Show durable changes to readers."""
        for change in changes:
            match change:
                case fx.Persist(run_id=key, record=rec.RunCreated() as record):
                    state = RunState.created(record)
                    before = self._latest.get(state.run_id, 0)
                    self.watches.changed(key_of(state.run_id, before))  # it is not the latest now
                    self.put(state)
                case fx.Persist(run_id=key, record=record):
                    self.on_record(self.states[key], record)
                    self.states[key].apply(record)
                    self._sizes[key] += rec.weight(record)
                    self.watches.changed(key)
                case fx.Forget(run_id=key):
                    if key not in self.states:
                        continue  # it cannot be read
                    state = self.states.pop(key)
                    del self._sizes[key]
                    if self._latest[state.run_id] == state.generation:
                        del self._latest[state.run_id]
                    self.on_forgotten(state)
                    self.watches.changed(key)
                case Compact(state):
                    self._sizes[state.key] = 0

    def put(self, state: RunState, size: int = 0) -> None:
        """Add a run with ``size`` records since its snapshot. The object keeps ``state``."""
        self.states[state.key] = state
        self._sizes[state.key] = size
        self._latest[state.run_id] = max(self._latest.get(state.run_id, 0), state.generation)

    def find(self, run_id: str, generation: int = 0) -> RunState | None:
        """Return a run by its id: the latest one, unless a generation is given."""
        return self.states.get(key_of(run_id, generation or self._latest.get(run_id, 0)))

    def copy(self, key: str) -> RunState | None:
        """Return a copy of a run, which the core may change; ``None`` if it was forgotten."""
        if (state := self.states.get(key)) is None:
            return None
        return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RunState)


def _is_end(change: fx.Persist | fx.Forget, key: str) -> bool:
    is_end = isinstance(change, fx.Forget) or isinstance(change.record, rec.RunEnded)
    return is_end and change.run_id == key


class Journal:
    """A journal in memory, and the base of those that last. One owner; calls never overlap.

    Methods of the others raise ``JournalOutage`` for what may pass. Any other ``CommandFailed``
    ends the coordinator: ``LostLeadership`` if another one has taken over.
    """

    term = 1  # in which it is written; a coordinator that is alone has 1

    def __init__(self) -> None:
        self.runs = JournaledRuns()
        self.tokens = TokenTable()
        self.drains: dict[tuple[str, str], KeptDrain] = {}
        self.quorums: dict[str, KeptQuorum] = {}
        self.forgets = fx.KeepForgets()
        self.set_aside: dict[str, str] = {}  # why a run cannot be read, by ``RunState.key``
        self.problems: list[Problem] = []  # all that could not be read

    def changes(self, effects: Sequence[fx.Effect]) -> list[Change]:
        """Return the changes that these effects ask for, to be written together."""
        kinds = fx.KeepToken | fx.KeepDrain | fx.KeepForgets | fx.KeepQuorum
        kept = [effect for effect in effects if isinstance(effect, kinds)]
        return [*self.runs.changes(effects), *kept]

    def take(self, changes: Sequence[Change]) -> None:
        """Show durable changes to readers."""
        self.runs.take(changes)
        for change in changes:
            if isinstance(change, fx.KeepToken):
                self.tokens.put(change.token_id, change.token)
            elif isinstance(change, fx.KeepDrain):
                self.drains.pop(change.drain.key, None)
                if change.is_kept:
                    self.drains[change.drain.key] = change.drain
            elif isinstance(change, fx.KeepQuorum):
                self.quorums.pop(change.quorum.job, None)
                if change.is_kept:
                    self.quorums[change.quorum.job] = change.quorum
            elif isinstance(change, fx.KeepForgets):
                self.forgets = change
            elif isinstance(change, fx.Forget):
                self.set_aside.pop(change.run_id, None)

    async def load(self) -> float:
        """Read everything; return the coordinator's clock minus the monotonic clock."""
        return 0.0

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:  # noqa: ARG002
        """Make the changes of these effects durable, all or none, and show them to readers."""
        self.take(self.changes(effects))

    async def close(self) -> None:
        """Release what is held."""
