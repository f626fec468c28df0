"""Pure. Plans changes as transactions that fit etcd's limits; the last one makes all visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.run.records import RunCreated
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal.etcd.model import Delete, Put
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import Home

# Limits of one transaction, without its head and conditions. etcd's defaults are 128 operations and
# 1.5 MiB.
OPERATIONS_MAX = 100
BYTES_MAX = layout.PART_BYTES_MAX + 128 * 1024
# Tokens, drains and ends of runs in one batch. They are visible at once, so they all belong to its
# last transaction. More of them become several batches: no two of them have to appear together.
IMMEDIATE_MAX = 80

Operation = Put | Delete


class Compact(Struct, frozen=True):
    """Replace all records of a run by the state they fold into."""

    state: RunState


Change = fx.Kept | Compact


class Batch(Struct, frozen=True, kw_only=True):
    """Changes that become visible together."""

    number: int
    changes: tuple[Change, ...]
    transactions: tuple[tuple[Operation, ...], ...]  # their operations beside the head's
    homes: dict[str, Home]  # of all runs after the batch, by ``RunState.key``


def split(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Divide changes into groups that fit a batch each; there is nearly always one group."""
    group: list[Change] = []
    immediate = 0
    for change in changes:
        if not isinstance(change, fx.Persist):
            immediate += 1
        if immediate > IMMEDIATE_MAX:
            yield tuple(group)
            group, immediate = [], 1
        group.append(change)
    yield tuple(group)


def plan(
    changes: Sequence[Change], *, number: int, keys: Keys, homes: Mapping[str, Home], release: str
) -> Batch:
    """Return the batch of a group of changes."""
    planned = _Plan(keys, number, homes, release)
    for position, change in enumerate(changes):
        planned.take(change, position)
    values = list(planned.values())
    return Batch(
        number=number,
        changes=tuple(changes),
        transactions=tuple(_packed(values, list(planned.immediate.values()))),
        homes=planned.homes,
    )


class _Plan:
    """A batch that is being planned."""

    def __init__(self, keys: Keys, number: int, homes: Mapping[str, Home], release: str) -> None:
        self.homes = dict(homes)
        self._keys, self._number, self._release = keys, number, release
        self._entries: dict[str, list[bytes]] = {}  # by ``RunState.key``
        self.immediate: dict[str, Operation] = {}  # by key; visible at once, so they come last

    def take(self, change: Change, position: int) -> None:
        keys = self._keys
        match change:
            case fx.Persist(run_id=key, record=record):
                if isinstance(record, RunCreated):
                    self._make_home(key, position)
                self._entries.setdefault(key, []).append(layout.encode_entry(record))
            case Compact(state):
                if (home := self.homes.get(state.key)) is None:
                    self._make_home(state.key, position)
                else:
                    self.homes[state.key] = Home(home.name)  # nothing is before it any more
                    self._delete(*layout.home_range(keys, home.name, before=self._number))
                self._entries[state.key] = [layout.encode_entry(state)]
            case fx.Forget(run_id=key):
                self._entries.pop(key, None)
                self._delete(*layout.home_range(keys, self.homes.pop(key).name))
            case fx.KeepToken(token_id=token_id, token=token):
                self._put(layout.token_key(keys, token_id), token)
            case fx.KeepDrain(drain=drain, is_kept=is_kept):
                placed = layout.PlacedDrain(position, drain) if is_kept else None
                self._put(layout.drain_key(keys, drain), placed)
            case fx.KeepForgets():
                self._put(keys.forgets, change)
            case fx.KeepQuorum(quorum=quorum, is_kept=is_kept):
                key = layout.quorum_key(keys, quorum.job)
                self._put(key, quorum if is_kept else None)

    def values(self) -> Iterator[Put]:
        """Yield the records of runs. Readers pass them over until the head names the batch."""
        for key, entries in self._entries.items():
            home, after = self.homes[key]
            name = layout.value_name(self._keys, home, self._number)
            body = layout.join_entries(entries)
            value, checksum = layout.seal(name, body, release=self._release, after=after)
            self.homes[key] = Home(home, checksum)
            for part_key, part in layout.parts_of(self._keys, home, self._number, value):
                yield Put(part_key, part)

    def _make_home(self, key: str, position: int) -> None:
        name = layout.new_home(key, batch=self._number, position=position)
        self.homes[key] = Home(name)

    def _put(self, key: str, value: object | None) -> None:
        """Set a key to a value; ``None`` deletes it."""
        if value is None:
            self.immediate[key] = Delete(key)
            return
        body = msgspec.json.encode(value)
        self.immediate[key] = Put(
            key, layout.seal(self._keys.name(key), body, release=self._release)[0]
        )

    def _delete(self, key: str, end: str) -> None:
        self.immediate[key] = Delete(key, end)


def _packed(
    values: Iterable[Operation], immediate: list[Operation]
) -> Iterator[tuple[Operation, ...]]:
    """Fill one transaction after the other, and put ``immediate`` into the last one."""
    packed: list[Operation] = []
    size = 0
    for operation in values:
        cost = _size(operation)
        if packed and (size + cost > BYTES_MAX or len(packed) == OPERATIONS_MAX):
            yield tuple(packed)
            packed, size = [], 0
        packed.append(operation)
        size += cost
    size += sum(map(_size, immediate))
    if packed and (size > BYTES_MAX or len(packed) + len(immediate) > OPERATIONS_MAX):
        yield tuple(packed)
        packed = []
    yield (*packed, *immediate)


def _size(operation: Operation) -> int:
    if isinstance(operation, Put):
        return len(operation.key) + len(operation.value)
    return len(operation.key) + len(operation.end)
