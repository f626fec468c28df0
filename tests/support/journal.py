"""A journal as a list: folding it, and sending it through JSON as a file would."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.records import Record, RunCreated
from drumbeat.coordinator.core.run.state import RunState

KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}


def fold(journal: Iterable[tuple[str, Record]]) -> dict[str, RunState]:
    """Return the state of each run, in order of creation."""
    states: dict[str, RunState] = {}
    for run_id, record in journal:
        if isinstance(record, RunCreated):
            states[run_id] = RunState.created(record)
        else:
            states[run_id].apply(record)
    return states


def take_over(registry: Registry, states: Iterable[RunState], *, now: float) -> list[fx.Effect]:
    """Have a registry take over the runs of a journal, in the order they were created."""
    effects = [effect for state in states for effect in registry.take_over(state, now=now)]
    return effects + registry.taken_over()


def round_trip(journal: Iterable[tuple[str, Record]]) -> list[tuple[str, Record]]:
    """Return the journal as it is read back from JSON."""
    return [(run_id, json_round_trip(record)) for run_id, record in journal]


def json_round_trip(record: Record) -> Record:
    """Return one record as it is read back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(record), type=KINDS[type(record).__name__])
