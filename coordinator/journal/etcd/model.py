"""Pure. Requests to etcd and its answers: the part of its API that coordinators use.

Keys are text, ranges are half open, and a revision counts the changes of the whole store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class KeyValue(Struct, frozen=True):
    """A key as it is at one revision."""

    key: str
    value: bytes
    create_revision: int  # of its creation; a key that is deleted and made again has another
    mod_revision: int  # of its latest change
    lease_id: int = 0  # the key is deleted with this lease; 0: none


class Put(Struct, frozen=True):
    """Give a key a value."""

    key: str
    value: bytes
    lease_id: int = 0


class Delete(Struct, frozen=True):
    """Delete the keys from ``key`` up to ``end``; without an end the one key."""

    key: str
    end: str = ""


class Get(Struct, frozen=True):
    """Read the keys from ``key`` up to ``end``; without an end the one key."""

    key: str
    end: str = ""


class IsCreated(Struct, frozen=True):
    """Holds if a key was made at this revision; 0: if there is none."""

    key: str
    revision: int


class IsModified(Struct, frozen=True):
    """Holds if a key was changed at this revision and not since; 0: if there is none."""

    key: str
    revision: int


class Transaction(Struct, frozen=True):
    """Do ``then`` if all conditions hold, else ``otherwise``; all or nothing, at one revision."""

    conditions: tuple[IsCreated | IsModified, ...]
    then: tuple[Put | Delete | Get, ...]
    otherwise: tuple[Get, ...] = ()


class TransactionOutcome(Struct, frozen=True):
    """The outcome of a transaction."""

    is_done: bool  # whether the conditions held
    revision: int  # of the store after it
    reads: tuple[tuple[KeyValue, ...], ...] = ()  # of each ``Get`` that was done, in order


class RangeReading(Struct, frozen=True):
    """All keys of a range, in their order, as they were at one revision."""

    revision: int
    pairs: tuple[KeyValue, ...]


class Lease(Struct, frozen=True):
    """A lease. If it is not kept alive, all keys that are bound to it are deleted."""

    lease_id: int
    ttl_s: float  # as granted; it may be more than requested


class Changed(Struct, frozen=True):
    """Keys that were put, and keys that were deleted, up to a revision."""

    revision: int
    put: tuple[KeyValue, ...] = ()
    deleted: tuple[str, ...] = ()


class Etcd(Protocol):
    """A cluster of etcd.

    Every method raises ``JournalOutage`` if there was no answer in time, or an error that may pass.
    The request may have been carried out all the same.
    """

    async def commit(self, transaction: Transaction) -> TransactionOutcome:
        """Do a transaction."""

    async def read(self, key: str, end: str) -> RangeReading:
        """Read the keys from ``key`` up to ``end``, linearizably."""

    async def grant(self, ttl_s: float) -> Lease:
        """Begin a lease; its duration is rounded up to whole seconds."""

    async def keep_alive(self, lease_id: int) -> float:
        """Renew a lease, and return its duration in seconds; 0.0: it has ended."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and delete its keys; harmless if it has ended."""

    def watch(self, key: str, end: str, *, after: int) -> AsyncGenerator[Changed, None]:
        """Yield the changes of a range after a revision.

        Raises ``JournalOutage`` when the stream breaks, and if some of the changes were compacted:
        read the range again then.
        """

    async def compact(self, revision: int) -> None:
        """Let etcd drop the values before a revision."""

    async def close(self) -> None:
        """Release what is held."""
