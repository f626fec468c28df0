"""Shell. What a journal is: the coordinator's memory across its own death."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from coordinator.core import effects as fx
from coordinator.core.run.state import RunState
from coordinator.journal.runs import JournaledRuns


class Journal(Protocol):
    """Where records are kept. One owner; calls never overlap.

    Small on purpose, so that a replicated store can take its place. All methods raise
    ``JournalOutage`` for what may pass, and end a coordinator with any other ``CommandFailed``:
    ``LostLeadership`` if another one has taken over.
    """

    runs: JournaledRuns

    async def load(self) -> float:
        """Read every run into ``runs``, which is empty before.

        Returns what to add to the monotonic clock so that it never runs backwards.
        """
        ...

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Make durable those effects that are to be kept, all or none, and show them in ``runs``.

        ``now`` is the coordinator's clock.
        """
        ...

    async def close(self) -> None:
        """Release what is held."""
        ...


class MemoryJournal:
    """A journal that ends with its process: for tests and embedded coordinators."""

    def __init__(self) -> None:
        self.runs = JournaledRuns()

    async def load(self) -> float:
        """Find nothing."""
        return 0.0

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:  # noqa: ARG002
        """Fold the records in."""
        self.runs.take(self.runs.changes(effects))

    async def close(self) -> None:
        """Do nothing."""


def read_run(runs: JournaledRuns, key: str) -> RunState | None:
    """Return a copy of a run for the core to go on from, ``None`` if it was forgotten."""
    state = runs.states.get(key)
    if state is None:
        return None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RunState)
