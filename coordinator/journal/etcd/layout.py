"""Pure. What the keys and values of a journal on etcd mean.

A run has a home, a folder of keys that sort by when runs were created. In it each batch of changes
has one value with all that it brought the run, in parts if it is large. Only what is of a batch up
to that of the head is there for readers: so a batch of many transactions comes into being whole.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import get_args
from urllib.parse import quote

import msgspec
from msgspec import Struct

from coordinator.core.model import KeptDrain
from coordinator.core.run.records import Record
from coordinator.core.run.state import RunState
from coordinator.journal.etcd.keys import Keys, below

LAYOUT_VERSION = 1
# etcd takes 1.5 MiB in a request; a value leaves room for keys, conditions and the head.
PART_BYTES_MAX = 1024 * 1024

# Without it nothing tells which batches have come about, so nothing must be done about any.
HEAD_MISSING = "it is missing, though there are runs"

SNAPSHOT = "Snapshot"
KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Record)} | {SNAPSHOT: RunState}

_ITEM = re.compile(r"([0-9a-f]{16}-[^/]+)/([0-9a-f]{10})\.([0-9a-f]{4})-([0-9a-f]{4})")


class Head(Struct, frozen=True, kw_only=True):
    """What each write of a leader changes, and thereby makes sure that it is the next one."""

    term: int
    sequence: int  # counts the writes
    batch: int  # the latest that is there as a whole
    # The coordinator's clock and the wall's when it was written; what to add to the monotonic
    # clock of the host's boot to have the former.
    clock: float
    wall: float
    offset: float
    boot_id: str
    version: int = LAYOUT_VERSION

    def offset_at(self, *, boot_id: str, monotonic: float, wall: float) -> float:
        """Return what to add to the monotonic clock of this host so that time goes on.

        On another host, or after a boot, as much has passed as the clocks on the wall say, and
        never less than nothing.
        """
        if boot_id == self.boot_id:
            return max(self.offset, self.clock - monotonic)
        return self.clock + max(0.0, wall - self.wall) - monotonic


class Item(Struct, frozen=True):
    """A key in the home of a run: a part of what one batch brought it."""

    home: str  # below the range of runs
    batch: int
    part: int  # from 0
    parts: int

    @staticmethod
    def parse(keys: Keys, key: str) -> Item:
        """Read a key. Raises ``ValueError``."""
        match = _ITEM.fullmatch(key.removeprefix(keys.runs[0]))
        if match is None:
            raise ValueError("its name is none that a coordinator gives")
        home, *numbers = match.groups()
        return Item(home, *(int(number, 16) for number in numbers))

    def key(self, keys: Keys) -> str:
        """Return its key."""
        return f"{keys.runs[0]}{self.home}/{self.batch:010x}.{self.part:04x}-{self.parts:04x}"


def new_home(run_key: str, *, batch: int, position: int) -> str:
    """Return the home of a run that a batch creates, by a change at some place in it."""
    return f"{batch:010x}{position:06x}-{run_key}"


def run_of(home: str) -> str:
    """Return whose home it is: ``RunState.key``."""
    return home.partition("-")[2]


def home_range(keys: Keys, home: str, *, before: int | None = None) -> tuple[str, str]:
    """Return the range of all keys of a home, or of those of batches before one."""
    first, end = below(f"{keys.runs[0]}{home}/")
    return (first, end) if before is None else (first, f"{first}{before:010x}")


def parts_of(keys: Keys, home: str, batch: int, value: bytes) -> list[tuple[str, bytes]]:
    """Return a value as keys and values that are small enough."""
    pieces = [value[at : at + PART_BYTES_MAX] for at in range(0, len(value), PART_BYTES_MAX)]
    items = (Item(home, batch, part, len(pieces)) for part in range(len(pieces)))
    return [(item.key(keys), piece) for item, piece in zip(items, pieces, strict=True)]


def encode_entry(entry: Record | RunState) -> bytes:
    """Return a record or a snapshot as one entry of a value."""
    kind = SNAPSHOT if isinstance(entry, RunState) else type(entry).__name__
    return b'["%s",%s]' % (kind.encode(), msgspec.json.encode(entry))


def join_entries(entries: list[bytes]) -> bytes:
    """Return the value that has these entries."""
    return b"[%s]" % b",".join(entries)


def decode_entries(value: bytes) -> list[Record | RunState]:
    """Return the entries of a value. Raises ``ValueError``, also as ``msgspec.MsgspecError``."""
    entries = msgspec.json.decode(value, type=list[tuple[str, msgspec.Raw]])
    if unknown := [kind for kind, _ in entries if kind not in KINDS]:
        raise ValueError(f"it has {unknown[0]!r}, which this coordinator does not know")
    return [msgspec.json.decode(body, type=KINDS[kind]) for kind, body in entries]


def decode_head(value: bytes) -> Head:
    """Read a head. Raises ``ValueError``, also as ``msgspec.MsgspecError``."""
    head = msgspec.json.decode(value, type=Head)
    if head.version != LAYOUT_VERSION:
        version = f"version {head.version}, this coordinator reads {LAYOUT_VERSION}"
        raise ValueError(f"the journal has {version}")
    if not all(map(isfinite, (head.clock, head.wall, head.offset))):
        raise ValueError(f"its clock is {head.clock}")
    return head


def token_key(keys: Keys, token_id: str) -> str:
    """Return the key of a token; its value is a ``KeptToken``."""
    return f"{keys.tokens[0]}{token_id}"


def drain_key(keys: Keys, drain: KeptDrain) -> str:
    """Return the key of a drain; its value is a ``PlacedDrain``."""
    return f"{keys.drains[0]}{quote(drain.run_id, safe='')}/{quote(drain.name, safe='')}"


class PlacedDrain(Struct, frozen=True):
    """A drain, and its place among those of the same batch."""

    position: int
    drain: KeptDrain
