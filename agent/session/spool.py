"""Shell. Failure records, on disk and on their way, until the coordinator has acknowledged them.

One file a record, in the agent's private directory, with what proves whose it is. What a dead agent
could not deliver, the next agent of its run on this host adopts; those of other runs leave it alone
for a day, then drop it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from google.protobuf.message import DecodeError

from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host.boot_id import read_boot_id
from drumbeat.agent.host.private_directory import SPOOL, PrivateDirectory, write_whole
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.transport import Connection, Failures, TransportError
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.wire.mapping import duration

log = structlog.get_logger()

# Before another stream is tried within a session whose last one failed.
RETRY_S = 1.0

# More failures than this, undelivered, explain nothing that the first ones don't.
# As many may be adopted, of all dead agents together.
RECORDS_MAX = ADOPTED_MAX = 1_000

KEPT_S = 24 * 3600.0
"""How long records wait for another agent of their run."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A record on disk. ``happened_at`` is the monotonic clock of the boot ``boot_id``."""

    boot_id: str
    happened_at: float
    record: bytes
    incarnation_key: bytes = b""  # of an earlier version's agent: none


class Spooled(NamedTuple):
    """A record that waits for its acknowledgement."""

    happened_at: float
    record: failure_pb2.FailureRecord
    incarnation_key: bytes = b""

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the record everywhere."""
        return self.record.fence.incarnation, self.record.sequence


class Spool:
    """This agent's records and those adopted from dead ones; a standalone one's are in memory.

    No later agent could deliver these, for its coordinator ends with it.
    """

    def __init__(
        self, directory: PrivateDirectory, config: AgentConfig, identity: Identity
    ) -> None:
        self._directory, self._identity = directory, identity
        self._is_on_disk = not config.is_standalone
        self._folder, self._boot_id = f"run={config.run_id}", read_boot_id() or "unknown"
        self._written = 0
        self._pending: dict[tuple[str, int], Spooled] = {}
        self._left: dict[tuple[str, int], Path] = {}
        """Where adopted records lie that could not be moved here."""
        self._changed = asyncio.Event()
        self._removed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many records were not acknowledged yet."""
        return len(self._pending)

    def write(self, spooled: Spooled) -> bool:
        """Deliver a record in a session to come; ``False`` if it is in memory only till then."""
        self._pending[spooled.key] = spooled
        self._changed.set()
        if not self._is_on_disk:
            return False
        if self._written >= RECORDS_MAX:
            log.warning("failure record not spooled", reason=f"{RECORDS_MAX} are waiting")
            return False
        is_kept = self._keep(spooled)
        self._written += is_kept
        return is_kept

    def remove(self, key: tuple[str, int]) -> None:
        """Forget a record that was delivered."""
        if self._pending.pop(key, None) is not None:
            self._removed.set()
            own = self._directory.path / SPOOL / self._folder / _name(key)
            with suppress(OSError):
                self._left.get(key, own).unlink()
                self._written -= key[0] == self._identity.incarnation

    def adopt(self) -> list[Spooled]:
        """Take over the records of agents of this run that are no more, in their order."""
        inherited: dict[tuple[str, int], Spooled] = {}

        def inherit(dead: Path) -> bool:
            is_all_kept = True
            for spooled in self._read(dead / SPOOL / self._folder):
                if len(inherited) < ADOPTED_MAX:
                    inherited[spooled.key] = spooled
                    if not self._take(dead, spooled):
                        is_all_kept = False
                        self._left[spooled.key] = dead / SPOOL / self._folder / _name(spooled.key)
            if is_all_kept:
                shutil.rmtree(dead / SPOOL / self._folder, ignore_errors=True)
            return not is_all_kept or _is_young(dead / SPOOL)

        self._directory.collect(inherit)
        adopted = [inherited[key] for key in sorted(inherited)]
        self._pending |= {spooled.key: spooled for spooled in adopted}
        return adopted

    def drop(self) -> None:
        """Forget what was not delivered, of a run that has ended and takes no more."""
        for key in list(self._pending):
            self.remove(key)

    async def delivered(self, *, timeout_s: float) -> None:
        """Return once nothing waits, or after that long. Call it while something delivers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._pending:
                    self._removed.clear()
                    await self._removed.wait()

    def close(self) -> None:
        """Leave what was not delivered to a later agent."""
        with suppress(OSError):  # not empty
            (self._directory.path / SPOOL / self._folder).rmdir()
            (self._directory.path / SPOOL).rmdir()
        if self._left:
            self._directory.collect(lambda dead: _is_young(dead / SPOOL))

    async def deliver(self, connection: Connection) -> None:
        """Send all that is pending, then whatever comes, until cancelled: once a session."""
        while True:
            while not self._pending:
                self._changed.clear()
                await self._changed.wait()
            try:
                await connection.report(self._requests(), self._acknowledged)
            except TransportError as error:
                if error.refusal in ("INVALID", "FORBIDDEN"):
                    # It would be refused for ever; the ones behind it shall arrive.
                    key = next(iter(self._pending))
                    log.warning("failure record refused", reason=error.reason, sequence=key[1])
                    self.remove(key)
                    continue
                log.debug("failure stream ended", reason=error.reason)
            await asyncio.sleep(RETRY_S)

    def _acknowledged(self, response: session_pb2.ReportFailuresResponse) -> None:
        self.remove((response.incarnation, response.sequence))

    async def _requests(self) -> Failures:
        sent: set[tuple[str, int]] = set()
        while True:
            self._changed.clear()
            for key, spooled in list(self._pending.items()):
                if key not in sent:
                    sent.add(key)
                    now = time.monotonic()
                    request = session_pb2.ReportFailuresRequest(
                        record=spooled.record, incarnation_key=spooled.incarnation_key
                    )
                    request.record.age.CopyFrom(duration(max(0.0, now - spooled.happened_at)))
                    if key[0] == self._identity.incarnation:
                        request.uptime.CopyFrom(duration(now - self._identity.began_at))
                    yield request
            await self._changed.wait()

    def _take(self, dead: Path, spooled: Spooled) -> bool:
        """Move a record of a dead agent here, which needs no room; ``False`` if it stays there."""
        name = _name(spooled.key)
        try:
            own = self._directory.ensure(SPOOL, self._folder)
            (dead / SPOOL / self._folder / name).replace(own / name)
        except (OSError, PrivateDirectoryUnusable):  # another file system
            return self._keep(spooled)
        return True

    def _keep(self, spooled: Spooled) -> bool:
        """Write a record down; ``False`` if that does not work."""
        entry = Entry(
            boot_id=self._boot_id,
            happened_at=spooled.happened_at,
            record=spooled.record.SerializeToString(),
            incarnation_key=spooled.incarnation_key,
        )
        try:
            path = self._directory.ensure(SPOOL, self._folder) / _name(spooled.key)
            write_whole(path, msgspec.msgpack.encode(entry))
        except (OSError, PrivateDirectoryUnusable) as error:
            reason = getattr(error, "strerror", None) or str(error)
            log.warning("failure record not spooled", reason=reason)
            return False
        return True

    def _read(self, folder: Path) -> Iterator[Spooled]:
        for path in sorted(folder.glob("*.record")):
            try:
                entry = msgspec.msgpack.decode(path.read_bytes(), type=Entry)
                record = failure_pb2.FailureRecord.FromString(entry.record)
            except (OSError, msgspec.MsgspecError, DecodeError) as error:
                log.warning("spooled failure record unreadable", reason=f"{path}: {error}")
                continue
            # Of an earlier boot nothing is known but that it was before this one.
            happened_at = entry.happened_at if entry.boot_id == self._boot_id else 0.0
            spooled = Spooled(happened_at, record, entry.incarnation_key)
            if _name(spooled.key) == path.name:
                yield spooled
            else:
                why = f"{path}: it lies where another record belongs"
                log.warning("spooled failure record unreadable", reason=why)


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]:012d}.record"


def _is_young(spool: Path) -> bool:
    """Return whether there are records that an agent of their run may still come for."""
    newest = 0.0
    with suppress(OSError):
        newest = max((path.stat().st_mtime for path in spool.glob("*/*.record")), default=0.0)
    return time.time() - newest < KEPT_S
