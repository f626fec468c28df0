"""Shell. Failure records on disk until the coordinator has them.

One file a record, in the agent's private directory. What a dead agent could not deliver is
adopted by the next agent of the same run on this host; agents of other runs leave it alone for a
day, and then throw it away.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from google.protobuf.message import DecodeError

from agent.errors import PrivateDirectoryUnusable
from agent.runtime.private_directory import SPOOL, PrivateDirectory
from drumbeat.v1 import failure_pb2

log = structlog.get_logger()

# More failures than this, undelivered, explain nothing that the first ones don't.
RECORDS_MAX = 1_000

# As many may be adopted, of all dead agents together.
ADOPTED_MAX = RECORDS_MAX

KEPT_S = 24 * 3600.0
"""How long records wait for another agent of their run."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A record on disk. ``happened_at`` is the monotonic clock of the boot ``boot_id``."""

    boot_id: str
    happened_at: float
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A record that waits for its acknowledgement."""

    happened_at: float
    record: failure_pb2.FailureRecord

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the record everywhere."""
        return self.record.fence.incarnation, self.record.sequence


class Spool:
    """This incarnation's records, and those adopted from dead ones.

    ``is_on_disk`` is False where no later agent could deliver them: that of a standalone run
    takes its coordinator with it.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        run_id: str,
        incarnation: str,
        *,
        is_on_disk: bool = True,
    ) -> None:
        self._directory = directory
        self._is_on_disk = is_on_disk
        self._folder = f"run={run_id}"
        self._incarnation = incarnation
        self._boot_id = _read_boot_id()
        self._written = 0

    def write(self, spooled: Spooled) -> bool:
        """Keep a record; ``False`` if it can only be kept in memory (disk full, too many)."""
        if not self._is_on_disk:
            return False
        if self._written >= RECORDS_MAX:
            log.warning("failure record not spooled", reason=f"{RECORDS_MAX} are waiting")
            return False
        if not self._keep(spooled):
            return False
        self._written += 1
        return True

    def remove(self, key: tuple[str, int]) -> None:
        """Forget a record that was delivered."""
        with suppress(OSError):
            (self._directory.path / SPOOL / self._folder / _name(key)).unlink()
            if key[0] == self._incarnation:
                self._written -= 1

    def adopt(self) -> list[Spooled]:
        """Take over the records of agents of this run that are no more, in their order."""
        found: dict[tuple[str, int], Spooled] = {}

        def inherit(dead: Path) -> bool:
            is_all_kept = True
            for spooled in self._read(dead / SPOOL / self._folder):
                if len(found) < ADOPTED_MAX:
                    is_all_kept = self._keep(spooled) and is_all_kept
                    found[spooled.key] = spooled
            if is_all_kept:
                shutil.rmtree(dead / SPOOL / self._folder, ignore_errors=True)
            return not is_all_kept or _is_young(dead / SPOOL)

        self._directory.collect(inherit)
        return [found[key] for key in sorted(found)]

    def close(self) -> None:
        """Leave what was not delivered to a later agent."""
        with suppress(OSError):  # not empty
            (self._directory.path / SPOOL / self._folder).rmdir()
            (self._directory.path / SPOOL).rmdir()

    def _keep(self, spooled: Spooled) -> bool:
        """Write a record down; ``False`` if that does not work."""
        entry = Entry(
            boot_id=self._boot_id,
            happened_at=spooled.happened_at,
            record=spooled.record.SerializeToString(),
        )
        try:
            path = self._directory.ensure(SPOOL, self._folder) / _name(spooled.key)
            path.with_suffix(".new").write_bytes(msgspec.msgpack.encode(entry))
            path.with_suffix(".new").rename(path)
        except (OSError, PrivateDirectoryUnusable) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("failure record not spooled", reason=reason)
            return False
        return True

    def _read(self, folder: Path) -> Iterator[Spooled]:
        for path in sorted(folder.glob("*.record")):
            try:
                yield self._read_entry(path)
            except (OSError, ValueError, msgspec.MsgspecError, DecodeError) as error:
                log.warning("spooled failure record unreadable", reason=f"{path}: {error}")

    def _read_entry(self, path: Path) -> Spooled:
        entry = msgspec.msgpack.decode(path.read_bytes(), type=Entry)
        record = failure_pb2.FailureRecord.FromString(entry.record)
        # Of an earlier boot nothing is known but that it was before this one.
        happened_at = entry.happened_at if entry.boot_id == self._boot_id else 0.0
        spooled = Spooled(happened_at=happened_at, record=record)
        if _name(spooled.key) != path.name:
            raise ValueError("it lies where another record belongs")
        return spooled


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]:012d}.record"


def _is_young(spool: Path) -> bool:
    """Return whether there are records that an agent of their run may still come for."""
    newest = 0.0
    with suppress(OSError):
        newest = max((path.stat().st_mtime for path in spool.glob("*/*.record")), default=0.0)
    return time.time() - newest < KEPT_S


def _read_boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "unknown"
