"""Pure. What is remembered of runs: which of an id each is, and what an ended one costs."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

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
    size = 32
    match value:
        case str():
            size = 80 + _text_bytes(value)
        case bytes():
            size = 64 + len(value)
        case HistoryEntry():  # as below, and quicker: it is most of a state
            size = 448 + _text_bytes(value.reason) + _text_bytes(value.caller)
        case Struct():
            names = value.__struct_fields__
            size = 64 + sum(8 + _bytes_of(getattr(value, name)) for name in names)
        case dict():
            items = value.items()
            size = 256 + sum(128 + _bytes_of(key) + _bytes_of(each) for key, each in items)
        case list() | tuple():
            size = 128 + sum(16 + _bytes_of(each) for each in value)
        case set() | frozenset():
            size = 256 + sum(128 + _bytes_of(each) for each in value)
        case _ if is_dataclass(value):
            size = 64 + sum(8 + _bytes_of(getattr(value, field.name)) for field in fields(value))
    return size


def _text_bytes(text: str) -> int:
    return len(text) * (1 if text.isascii() else 4)
