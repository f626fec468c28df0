"""Pure. What is remembered of runs: which of an id each is, and what an ended one costs."""

from __future__ import annotations

import msgspec

from drumbeat.coordinator.core.run.records import HistoryEntry
from drumbeat.coordinator.core.run.state import RunState

# Of an ended run in memory, measured with CPython 3.11 and rounded up: its core without the state;
# what a state takes beyond its bytes in a message, of both that there are; an event without text.
CORE_BYTES = 16 * 1024
BYTES_PER_ENCODED_BYTE = 8
ENTRY_BYTES = 896


def id_and_generation(key: str) -> tuple[str, int]:
    """Return what a ``RunState.key`` is made of."""
    run_id, _, generation = key.partition("#")
    return run_id, int(generation) if generation.isdecimal() else 1


def ended_bytes(state: RunState) -> int:
    """Return what an ended run holds in memory, never less than it does. Linear in the state.

    Readers have a state of their own beside that of the core.
    """
    fields = [getattr(state, name) for name in RunState.__slots__ if name != "history"]
    size = BYTES_PER_ENCODED_BYTE * len(msgspec.msgpack.encode(fields))
    return CORE_BYTES + size + sum(map(_entry_bytes, state.history))


def _entry_bytes(entry: HistoryEntry) -> int:
    text = "".join((entry.reason, entry.caller, *entry.names, entry.tail, entry.latest))
    return ENTRY_BYTES + len(text) * (2 if text.isascii() else 8)
