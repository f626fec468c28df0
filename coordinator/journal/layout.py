"""Pure. The format of a journal's keys and values, the same on etcd and in SQLite.

Each value begins with a line, its seal: the format, the release that wrote it, its name and a
checksum. The checksums of a run's values are chained, so that a missing value is noticed.

A run has a home, a folder of keys; homes sort by when their runs were created. Each batch of
changes writes one value into the home of each run that it changes, in parts if it is large. Readers
pass over batches later than the head's, so that a batch of many transactions appears as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, get_args
from urllib.parse import quote
from zlib import crc32

import msgspec
from msgspec import Struct

from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.run.records import Record
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.journal.keys import Keys, below

# Raised whenever an older release could not read what this one writes.
FORMAT = 2
# etcd takes 1.5 MiB in a request; a value leaves room for keys, conditions and the head.
PART_BYTES_MAX = 1024 * 1024

# Without a head it is unknown which batches are complete, so a journal without one is refused.
HEAD_MISSING = "the head of the journal is missing, though there are records"

SNAPSHOT = "Snapshot"
KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Record)} | {SNAPSHOT: RunState}

_ITEM = re.compile(r"([0-9a-f]{16}-[^/]+)/([0-9a-f]{10})\.([0-9a-f]{4})-([0-9a-f]{4})")


class Unreadable(ValueError):
    """A value that was damaged, or that this release does not understand."""


class NewerRelease(Unreadable):
    """A value in a format that this release does not know."""

    def __init__(self, release: str) -> None:
        super().__init__(f"it was written by a newer release ({release})")
        self.release = release


class Sealed(NamedTuple):
    """A value with its seal."""

    release: str
    name: str  # its key below the prefix; without the part, of a value in parts
    checksum: int
    body: bytes

    def check(self, name: str, *, after: int = 0) -> Sealed:
        """Return this if it was written with a name, after a checksum. Raises ``Unreadable``."""
        if self.name != name:
            raise Unreadable(f"it was written as {self.name}")
        if self.checksum != _checksum(self.release, name, self.body, after):
            raise Unreadable("it was changed, or what was written before it is missing")
        return self


def seal(name: str, body: bytes, *, release: str, after: int = 0) -> tuple[bytes, int]:
    """Return a body with its seal, and the checksum."""
    checksum = _checksum(release, name, body, after)
    return msgspec.json.encode((FORMAT, release, name, checksum)) + b"\n" + body, checksum


def unseal(value: bytes) -> Sealed:
    """Read a seal without checking it. Raises ``Unreadable``."""
    line, _, body = value.partition(b"\n")
    try:
        number, release = msgspec.json.decode(line, type=list[Any])[:2]
        if number == FORMAT:
            _, release, name, checksum = msgspec.json.decode(line, type=tuple[int, str, str, int])
            return Sealed(release, name, checksum, body)
    except (ValueError, msgspec.MsgspecError):
        raise Unreadable("it does not begin as a record of a journal") from None
    if isinstance(number, int) and number > FORMAT and isinstance(release, str):
        raise NewerRelease(release)
    raise Unreadable(f"it is of a format before {FORMAT}, which this release does not read")


def opened(sealed: Sealed, kind: Any) -> Any:
    """Decode the body of a sealed value as JSON. Raises ``Unreadable``."""
    return decoded(sealed, lambda body: msgspec.json.decode(body, type=kind))


def decoded(sealed: Sealed, decode: Callable[[bytes], Any]) -> Any:
    """Decode the body of a sealed value with ``decode``. Raises ``Unreadable``."""
    try:
        return decode(sealed.body)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        problem = f"{type(error).__name__}: {error}; release {sealed.release} wrote it"
        raise Unreadable(problem) from error


def _checksum(release: str, name: str, body: bytes, after: int) -> int:
    return crc32(body, crc32(f"{FORMAT} {release} {name}\n".encode(), after))


class Home(NamedTuple):
    """The folder of a run's values, and the checksum that the next value continues."""

    name: str  # below the range of runs
    checksum: int = 0


class Head(Struct, frozen=True, kw_only=True):
    """What each write changes; a write that expects another head is refused."""

    term: int
    sequence: int  # counts the writes
    batch: int  # the latest complete one
    # The coordinator's clock and the wall's when it was written; what to add to the monotonic
    # clock of the host's boot to have the former.
    clock: float
    wall: float
    offset: float
    boot_id: str
    is_partial: bool = False  # an import has begun and not ended

    @staticmethod
    def none() -> Head:
        """Return the head of a journal that has none yet."""
        return Head(term=1, sequence=0, batch=0, clock=0.0, wall=0.0, offset=0.0, boot_id="")


class Item(Struct, frozen=True):
    """A key in the home of a run: one part of the value of one batch."""

    home: str  # below the range of runs
    batch: int
    part: int  # from 0
    parts: int

    @staticmethod
    def parse(keys: Keys, key: str) -> Item:
        """Read a key. Raises ``Unreadable``."""
        match = _ITEM.fullmatch(key.removeprefix(keys.runs[0]))
        if match is None:
            raise Unreadable("unexpected name of a key")
        home, *numbers = match.groups()
        return Item(home, *(int(number, 16) for number in numbers))

    def key(self, keys: Keys) -> str:
        """Return its key."""
        return f"{keys.runs[0]}{self.home}/{self.batch:010x}.{self.part:04x}-{self.parts:04x}"


def new_home(run_key: str, *, batch: int, position: int) -> str:
    """Return the home of a run that is created by the change at a position of a batch."""
    return f"{batch:010x}{position:06x}-{run_key}"


def run_of(home: str) -> str:
    """Return the ``RunState.key`` of a home."""
    return home.partition("-")[2]


def home_range(keys: Keys, home: str, *, before: int | None = None) -> tuple[str, str]:
    """Return the range of all keys of a home, or of its batches before one."""
    first, end = below(f"{keys.runs[0]}{home}/")
    return (first, end) if before is None else (first, f"{first}{before:010x}")


def value_name(keys: Keys, home: str, batch: int) -> str:
    """Return the name in the seal of the value of one batch."""
    return keys.name(f"{keys.runs[0]}{home}/{batch:010x}")


def home_of(keys: Keys, name: str) -> str:
    """Return the home of the value with a name; empty: none."""
    runs = keys.name(keys.runs[0])
    return name.removeprefix(runs).rpartition("/")[0] if name.startswith(runs) else ""


def parts_of(keys: Keys, home: str, batch: int, value: bytes) -> list[tuple[str, bytes]]:
    """Return the parts of a value with their keys."""
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


def decode_entries(sealed: Sealed) -> list[Record | RunState]:
    """Return the entries of a value. Raises ``Unreadable``."""

    def decode(body: bytes) -> list[Record | RunState]:
        entries = msgspec.json.decode(body, type=list[tuple[str, msgspec.Raw]])
        if unknown := [kind for kind, _ in entries if kind not in KINDS]:
            raise ValueError(f"this release does not know {unknown[0]!r}")
        return [msgspec.json.decode(entry, type=KINDS[kind]) for kind, entry in entries]

    entries: list[Record | RunState] = decoded(sealed, decode)
    return entries


def encode_head(keys: Keys, head: Head, *, release: str) -> bytes:
    """Return the value of a head."""
    return seal(keys.name(keys.head), msgspec.json.encode(head), release=release)[0]


def decode_head(keys: Keys, value: bytes) -> Head:
    """Read a head. Raises ``Unreadable``."""
    head: Head = opened(unseal(value).check(keys.name(keys.head)), Head)
    if not all(map(isfinite, (head.clock, head.wall, head.offset))):
        raise Unreadable(f"its clock is {head.clock}")
    return head


def token_key(keys: Keys, token_id: str) -> str:
    """Return the key of a token; its value is a ``KeptToken``."""
    return f"{keys.tokens[0]}{token_id}"


def drain_key(keys: Keys, drain: KeptDrain) -> str:
    """Return the key of a drain; its value is a ``PlacedDrain``."""
    return f"{keys.drains[0]}{quote(drain.run_id, safe='')}/{quote(drain.name, safe='')}"


def quorum_key(keys: Keys, job: str) -> str:
    """Return the key of the latest quorum of a job; its value is a ``KeptQuorum``."""
    return f"{keys.quorums[0]}{quote(job, safe='')}"


class PlacedDrain(Struct, frozen=True):
    """A drain, and its place among those of the same batch."""

    position: int
    drain: KeptDrain
