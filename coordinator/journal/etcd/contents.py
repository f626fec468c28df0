"""Pure. Keys and values of etcd as what a journal holds, and what of it cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from coordinator.access.token_table import KeptToken, TokenTable
from coordinator.core.model import KeptDrain
from coordinator.core.run.records import Record
from coordinator.core.run.state import RunState
from coordinator.journal.etcd import layout
from coordinator.journal.etcd.keys import Keys
from coordinator.journal.etcd.layout import Head, Item
from coordinator.journal.etcd.model import KeyValue

Value = TypeVar("Value")


class KeptRun(Struct):
    """What there is of one run: what came since its snapshot, if it has one."""

    key: str  # ``RunState.key``
    home: str
    entries: list[Record | RunState]


class Contents(Struct):
    """All that a journal holds."""

    head: Head | None = None
    leader: KeyValue | None = None
    authority: bytes | None = None
    runs: list[KeptRun] = msgspec.field(default_factory=list)  # in order of creation
    tokens: TokenTable = msgspec.field(default_factory=TokenTable)
    drains: dict[tuple[str, str], KeptDrain] = msgspec.field(default_factory=dict)
    forgets: tuple[str, ...] = ()
    unfinished: list[str] = msgspec.field(
        default_factory=list
    )  # keys of a batch that never came about
    problems: list[tuple[str, str]] = msgspec.field(default_factory=list)  # keys, what is wrong
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever kept in it."""
        return not (self.runs or self.tokens.tokens or self.drains or self.forgets)


def read_contents(keys: Keys, found: Iterable[KeyValue]) -> Contents:
    """Read all keys below a prefix, as they were at one revision."""
    return _Reader(keys).read(found)


class _Reader:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.contents = Contents()

    def read(self, found: Iterable[KeyValue]) -> Contents:
        keys, contents = self._keys, self.contents
        pairs = {pair.key: pair for pair in found}
        contents.size_bytes = sum(len(pair.key) + len(pair.value) for pair in pairs.values())
        contents.leader = pairs.get(keys.leader)
        if (authority := pairs.get(keys.authority)) is not None:
            contents.authority = authority.value
        if (head := pairs.get(keys.head)) is not None:
            contents.head = self._decoded(head, layout.decode_head)
        if (forgets := pairs.get(keys.forgets)) is not None:
            calls = self._decoded(forgets, lambda value: _json(value, tuple[str, ...]))
            contents.forgets = calls or ()
        self._read_tokens(_within(pairs.values(), keys.tokens))
        self._read_drains(_within(pairs.values(), keys.drains))
        self._read_runs(_within(pairs.values(), keys.runs))
        if keys.head not in pairs and contents.unfinished:
            contents.problems.append((keys.head, layout.HEAD_MISSING))
        return contents

    def _read_tokens(self, pairs: list[KeyValue]) -> None:
        """Take tokens in, in order of their creation."""
        tokens = []
        for pair in pairs:
            token = self._decoded(pair, lambda value: _json(value, KeptToken))
            if token is None:
                continue
            if layout.token_key(self._keys, token.token_id) != pair.key:
                self.contents.problems.append((pair.key, "it has the token of another id"))
            tokens.append((token.created_at, pair.create_revision, token))
        for *_, token in sorted(tokens, key=lambda each: each[:2]):
            self.contents.tokens.put(token.token_id, token)

    def _read_drains(self, pairs: list[KeyValue]) -> None:
        """Take drains in, in the order of their last changes."""
        drains = []
        for pair in pairs:
            placed = self._decoded(pair, lambda value: _json(value, layout.PlacedDrain))
            if placed is not None:
                drains.append((pair.mod_revision, placed.position, placed.drain))
        for *_, drain in sorted(drains, key=lambda each: each[:2]):
            self.contents.drains[drain.key] = drain

    def _read_runs(self, pairs: list[KeyValue]) -> None:
        """Take runs in: their keys are in the order of homes, batches and parts."""
        contents = self.contents
        batch_max = contents.head.batch if contents.head is not None else 0
        values: dict[tuple[str, int], list[tuple[Item, KeyValue]]] = {}
        for pair in pairs:
            item = self._decoded(pair, self._item(pair.key))
            if item is None:
                continue
            if item.batch > batch_max:
                contents.unfinished.append(pair.key)
            else:
                values.setdefault((item.home, item.batch), []).append((item, pair))
        runs: dict[str, KeptRun] = {}
        for (home, _), parts in values.items():
            run = runs.setdefault(home, KeptRun(layout.run_of(home), home, []))
            first, pair = parts[0]
            if [item.part for item, _ in parts] != list(range(first.parts)):
                problem = f"{len(parts)} of its {first.parts} parts are there"
                contents.problems.append((pair.key, problem))
                continue
            whole = replace(pair, value=b"".join(part.value for _, part in parts))
            entries = self._decoded(whole, layout.decode_entries)
            run.entries += entries or []
        contents.runs = list(runs.values())

    def _item(self, key: str) -> Callable[[bytes], Item]:
        return lambda _value: Item.parse(self._keys, key)

    def _decoded(self, pair: KeyValue, decode: Callable[[bytes], Value]) -> Value | None:
        """Return a value, or None once it is noted why it cannot be read."""
        try:
            return decode(pair.value)
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            self.contents.problems.append((pair.key, f"{type(error).__name__}: {error}"))
            return None


def _json(value: bytes, kind: Any) -> Any:
    return msgspec.json.decode(value, type=kind)


def _within(pairs: Iterable[KeyValue], keys: tuple[str, str]) -> list[KeyValue]:
    return [pair for pair in pairs if keys[0] <= pair.key < keys[1]]
