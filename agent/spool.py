"""Shell. Failure records on disk until the coordinator has them.

One file a record, in a directory per incarnation that its owner keeps locked.
What a dead agent could not deliver is adopted by the next agent of the same run
on this host: an unlocked directory has no owner any more.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from google.protobuf.message import DecodeError

from drumbeat.v1 import failure_pb2

log = structlog.get_logger()

# More failures than this, undelivered, explain nothing that the first ones don't.
RECORDS_MAX = 1_000

# Others look at a directory for a moment; it can't be taken away more often than that.
OWN_ATTEMPTS_MAX = 100

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK = "lock"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A record on disk. ``happened_at`` is the monotonic clock of the boot ``boot_id``."""

    boot_id: str
    happened_at: float
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A record that waits for its acknowledgement."""

    incarnation: str
    sequence: int
    happened_at: float
    record: failure_pb2.FailureRecord

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the record everywhere."""
        return self.incarnation, self.sequence


class Spool:
    """This incarnation's records, and those adopted from dead ones."""

    def __init__(self, directory: Path, incarnation: str) -> None:
        self._directory = directory
        self._incarnation = incarnation
        self._boot_id = _read_boot_id()
        self._locks: dict[str, int] = {}
        self._own_directory = directory / incarnation
        self._make_own()
        self._written = 0

    def write(self, spooled: Spooled) -> bool:
        """Keep a record; ``False`` if it can only be kept in memory (disk full, too many)."""
        if self._written >= RECORDS_MAX:
            log.warning("failure record not spooled", reason=f"{RECORDS_MAX} are waiting")
            return False
        entry = Entry(
            boot_id=self._boot_id,
            happened_at=spooled.happened_at,
            record=spooled.record.SerializeToString(),
        )
        path = self._path(spooled.key)
        try:
            path.with_suffix(".new").write_bytes(msgspec.json.encode(entry))
            path.with_suffix(".new").rename(path)
        except OSError as error:
            log.warning("failure record not spooled", reason=error.strerror)
            return False
        self._written += 1
        return True

    def remove(self, key: tuple[str, int]) -> None:
        """Forget a record that was delivered, and the directory of a dead agent with its last."""
        with suppress(OSError):
            self._path(key).unlink()
            if key[0] == self._incarnation:
                self._written -= 1
        if key[0] != self._incarnation:
            self._drop_if_empty(key[0])

    def adopt(self) -> list[Spooled]:
        """Take over the records of agents that are no more, in their order."""
        found: list[Spooled] = []
        for directory in sorted(self._directory.iterdir()):
            if directory.name not in self._locks and self._lock(directory.name):
                found += self._read(directory)
                self._drop_if_empty(directory.name)
        return found

    def close(self) -> None:
        """Let go; what is left is for a later agent."""
        self._drop_if_empty(self._incarnation)
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()
        with suppress(OSError):
            self._directory.rmdir()  # only if empty

    def _make_own(self) -> None:
        """Make this incarnation's directory and hold it.

        Until it is locked, another agent may take it for a dead one's and remove it.
        """
        for _ in range(OWN_ATTEMPTS_MAX):
            with suppress(FileNotFoundError):  # the parent went with its last agent
                self._own_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._lock(self._incarnation, is_patient=True):
                return
        # Writing will fail, and say so; records are then kept in memory.

    def _read(self, directory: Path) -> Iterator[Spooled]:
        for path in sorted(directory.glob("*.json")):
            try:
                yield self._read_entry(path)
            except (OSError, ValueError, msgspec.MsgspecError, DecodeError) as error:
                log.warning("spooled failure record unreadable", reason=f"{path}: {error}")
                with suppress(OSError):
                    path.unlink()

    def _read_entry(self, path: Path) -> Spooled:
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        record = failure_pb2.FailureRecord.FromString(entry.record)
        # Of an earlier boot nothing is known but that it was before this one.
        happened_at = entry.happened_at if entry.boot_id == self._boot_id else 0.0
        spooled = Spooled(
            incarnation=record.fence.incarnation,
            sequence=record.sequence,
            happened_at=happened_at,
            record=record,
        )
        if self._path(spooled.key) != path:
            raise ValueError("it lies where another record belongs")
        return spooled

    def _path(self, key: tuple[str, int]) -> Path:
        return self._directory / key[0] / f"{key[1]:012d}.json"

    def _lock(self, incarnation: str, *, is_patient: bool = False) -> bool:
        """Hold a directory until closed; ``False`` if it has an owner, or is no more."""
        path = self._directory / incarnation / _LOCK
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False  # its owner has just removed it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
            # Whoever held it before may have removed it: then it locks nothing.
            is_there = os.path.samestat(os.fstat(lock), path.stat())
        except OSError:
            is_there = False
        if not is_there:
            os.close(lock)
            return False
        self._locks[incarnation] = lock
        return True

    def _drop_if_empty(self, incarnation: str) -> None:
        directory = self._directory / incarnation
        with suppress(OSError):
            if any(directory.glob("*.json")):
                return
            for unfinished in directory.glob("*.new"):
                unfinished.unlink()
            (directory / _LOCK).unlink(missing_ok=True)
            directory.rmdir()
            os.close(self._locks.pop(incarnation))


def _read_boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "unknown"
