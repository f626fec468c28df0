"""Pure. Reads the keys and values of a journal, and names what cannot be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from drumbeat.coordinator.core.effects import KeepForgets
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.run.records import Record
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.core.tokens.token_table import KeptToken, TokenTable
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal.etcd.model import KeyValue
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import Head, Home, Item, Unreadable

Value = TypeVar("Value")


class Problem(NamedTuple):
    """A key that cannot be read, the reason, and what is lost."""

    key: str
    reason: str
    lost: str


class KeptRun(Struct):
    """The entries of one run: its latest snapshot, if there is one, and later records."""

    key: str  # ``RunState.key``
    home: Home
    entries: list[Record | RunState] = msgspec.field(default_factory=list)
    problem: str = ""  # why it cannot be read; empty: it can


class Contents(Struct):
    """All that a journal holds."""

    head: Head | None = None
    leader: KeyValue | None = None
    authority: bytes | None = None
    runs: list[KeptRun] = msgspec.field(default_factory=list)  # in order of creation
    tokens: TokenTable = msgspec.field(default_factory=TokenTable)
    drains: dict[tuple[str, str], KeptDrain] = msgspec.field(default_factory=dict)
    quorums: dict[str, KeptQuorum] = msgspec.field(default_factory=dict)  # by job
    forgets: KeepForgets = msgspec.field(default_factory=KeepForgets)
    # Keys of a batch whose last transaction was never written.
    unfinished: list[str] = msgspec.field(default_factory=list)
    problems: list[Problem] = msgspec.field(default_factory=list)  # those of runs among them
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever kept in it."""
        others = self.quorums or self.forgets.calls
        return not (self.runs or self.tokens.tokens or self.drains or others)


def read_contents(keys: Keys, pairs: Iterable[KeyValue]) -> Contents:
    """Read all keys below a prefix, as they were at one revision."""
    return _Reader(keys).read(pairs)


class _Reader:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._spoiled: dict[str, str] = {}  # homes that lack a value, and why
        self.contents = Contents()

    def read(self, stored: Iterable[KeyValue]) -> Contents:
        keys, contents = self._keys, self.contents
        pairs = {pair.key: pair for pair in stored}
        contents.size_bytes = sum(len(pair.key) + len(pair.value) for pair in pairs.values())
        contents.leader = pairs.pop(keys.leader, None)
        _take(pairs, keys.members)
        if (authority := pairs.pop(keys.authority, None)) is not None:
            contents.authority = authority.value
        if (head := pairs.pop(keys.head, None)) is not None:
            contents.head = self._decoded(
                head, lambda value: layout.decode_head(keys, value), "the journal cannot be used"
            )
        elif pairs:
            self._note(keys.head, layout.HEAD_MISSING, "the journal cannot be used")
        if (forgets := pairs.pop(keys.forgets, None)) is not None:
            lost = "the number of a forgotten run may be used again"
            contents.forgets = self._opened(forgets, KeepForgets, lost) or KeepForgets()
        self._read_tokens(_take(pairs, keys.tokens))
        self._read_drains(_take(pairs, keys.drains))
        for pair in _take(pairs, keys.quorums):
            lost = "the id of a quorum may be used again: restart the groups of this job"
            if (quorum := self._opened(pair, KeptQuorum, lost)) is not None:
                contents.quorums[quorum.job] = quorum
        self._read_runs(_take(pairs, keys.runs))
        for pair in pairs.values():
            self._note(pair.key, "unexpected name of a key", "the record in it")
        return contents

    def _read_tokens(self, pairs: list[KeyValue]) -> None:
        """Read tokens, in order of their creation."""
        tokens = []
        for pair in pairs:
            lost = "this token is not accepted, or its revocation is lost"
            token = self._opened(pair, KeptToken, lost)
            if token is not None:
                tokens.append((token.created_at, pair.create_revision, token))
        for *_, token in sorted(tokens, key=lambda placed: placed[:2]):
            self.contents.tokens.put(token.token_id, token)

    def _read_drains(self, pairs: list[KeyValue]) -> None:
        """Read drains, in the order of their last changes."""
        drains = []
        for pair in pairs:
            placed = self._opened(pair, layout.PlacedDrain, "this drain: ask for it again")
            if placed is not None:
                drains.append((pair.mod_revision, placed.position, placed.drain))
        for *_, drain in sorted(drains, key=lambda placed: placed[:2]):
            self.contents.drains[drain.key] = drain

    def _read_runs(self, pairs: list[KeyValue]) -> None:
        """Read runs, whose keys are sorted by home, batch and part."""
        contents = self.contents
        batch_max = math.inf if contents.head is None else contents.head.batch
        values: dict[tuple[str, int], list[tuple[Item, KeyValue]]] = {}
        for pair in pairs:
            try:
                item = Item.parse(self._keys, pair.key)
            except Unreadable as error:
                self._note(pair.key, str(error), "the run of this record")
                self._spoil(pair, str(error))
                continue
            if item.batch > batch_max:
                contents.unfinished.append(pair.key)
            else:
                values.setdefault((item.home, item.batch), []).append((item, pair))
        runs: dict[str, KeptRun] = {}
        for (home, _), parts in values.items():
            run = runs.setdefault(home, KeptRun(layout.run_of(home), Home(home)))
            if not run.problem:
                self._read_value(run, parts)
        contents.runs = list(runs.values())
        for run in contents.runs:
            run.problem = run.problem or self._spoiled.get(run.home.name, "")

    def _read_value(self, run: KeptRun, parts: list[tuple[Item, KeyValue]]) -> None:
        """Add the entries of one batch to a run, or note why they cannot be read."""
        first, pair = parts[0]
        try:
            sealed = layout.unseal(_joined(parts))
            name = layout.value_name(self._keys, first.home, first.batch)
            sealed.check(name, after=run.home.checksum)
            run.entries += layout.decode_entries(sealed)
            run.home = Home(first.home, sealed.checksum)
        except Unreadable as error:
            run.problem = f"{pair.key}: {error}"
            self._note(pair.key, str(error), f"run {run.key}, which is set aside")
            self._spoil(pair, run.problem)

    def _spoil(self, pair: KeyValue, problem: str) -> None:
        """Note the run that lacks a value, if the value names it."""
        try:
            home = layout.home_of(self._keys, layout.unseal(pair.value).name)
        except Unreadable:
            return
        self._spoiled.setdefault(home, problem)

    def _opened(self, pair: KeyValue, kind: type[Value], lost: str) -> Value | None:
        """Return the content of a sealed value; ``None`` if it cannot be read, which is noted."""
        name = self._keys.name(pair.key)

        def decode(value: bytes) -> Value:
            content: Value = layout.opened(layout.unseal(value).check(name), kind)
            return content

        return self._decoded(pair, decode, lost)

    def _decoded(self, pair: KeyValue, decode: Callable[[bytes], Value], lost: str) -> Value | None:
        try:
            return decode(pair.value)
        except Unreadable as error:
            self._note(pair.key, str(error), lost)
            return None

    def _note(self, key: str, reason: str, lost: str) -> None:
        self.contents.problems.append(Problem(key, reason, lost))


def _joined(parts: list[tuple[Item, KeyValue]]) -> bytes:
    """Return a value that was written in parts."""
    if [item.part for item, _ in parts] != list(range(parts[0][0].parts)):
        raise Unreadable(f"{len(parts)} of its {parts[0][0].parts} parts are there")
    return b"".join(pair.value for _, pair in parts)


def _take(pairs: dict[str, KeyValue], keys: tuple[str, str]) -> list[KeyValue]:
    """Remove a range from the pairs, and return it in order."""
    return [pairs.pop(key) for key in sorted(pairs) if keys[0] <= key < keys[1]]
