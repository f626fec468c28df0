"""Pure. What is remembered of runs: which of an id each is, and what an ended one costs."""

from __future__ import annotations

from dataclasses import is_dataclass

from msgspec import Struct

from coordinator.core.run.state import HistoryEntry, RunState

# The core of a run, without its state.
CORE_BYTES = 16 * 1024


def id_and_generation(key: str) -> tuple[str, int]:
    """Return what a ``RunState.key`` is made of."""
    run_id, _, generation = key.partition("#")
    return run_id, int(generation) if generation.isdecimal() else 1


def ended_bytes(state: RunState) -> int:
    """Return what an ended run holds in memory, never less than it does. Linear in the state.

    Readers have a state of their own, and its core some more.
    """
    return CORE_BYTES + 2 * _bytes_of(state)


def _bytes_of(value: object) -> int:
    """Return what a value takes with all that is in it. Measured with CPython 3.11, rounded up."""
    if isinstance(value, str):
        return 80 + len(value) * (1 if value.isascii() else 4)
    if isinstance(value, bytes):
        return 64 + len(value)
    if isinstance(value, HistoryEntry):  # as below, and quicker: it is most of a state
        text = value.reason + value.caller
        return 448 + len(text) * (1 if text.isascii() else 4)
    if isinstance(value, Struct) or is_dataclass(value):
        names = getattr(value, "__struct_fields__", None) or value.__dataclass_fields__
        return 64 + sum(8 + _bytes_of(getattr(value, name)) for name in names)
    if isinstance(value, dict):
        return 256 + sum(128 + _bytes_of(key) + _bytes_of(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return 128 + sum(16 + _bytes_of(each) for each in value)
    if isinstance(value, set | frozenset):
        return 256 + sum(128 + _bytes_of(each) for each in value)
    return 32
