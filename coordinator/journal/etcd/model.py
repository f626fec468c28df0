"""Pure. What is asked of etcd and what it answers: of its API the part that coordinators need.

Keys are text, ranges are half open, a revision counts the changes of the whole store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class KeyValue(Struct, frozen=True):
    """A key as it is at one revision."""

    key: str
    value: bytes
    create_revision: int  # of the change that made it; another one if it was deleted meanwhile
    mod_revision: int  # of its latest change
    lease_id: int = 0  # it is deleted with it; 0: with none


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


class Outcome(Struct, frozen=True):
    """What came of a transaction."""

    is_done: bool  # whether the conditions held
    revision: int  # of the store after it
    reads: tuple[tuple[KeyValue, ...], ...] = ()  # of each ``Get`` that was done, in order


class Reading(Struct, frozen=True):
    """All keys of a range, in their order, as they were at one revision."""

    revision: int
    pairs: tuple[KeyValue, ...]


class Lease(Struct, frozen=True):
    """Keys that are bound to it are deleted if it is not kept alive."""

    lease_id: int
    ttl_s: float  # as granted, which may be more than was asked for


class Changed(Struct, frozen=True):
    """Keys that were put, and keys that were deleted, up to a revision."""

    revision: int
    put: tuple[KeyValue, ...] = ()
    deleted: tuple[str, ...] = ()


class Etcd(Protocol):
    """A cluster of etcd.

    Every method raises ``JournalOutage`` if no answer came in time, or one that may be another
    later: what was asked for may have happened all the same.
    """

    async def commit(self, transaction: Transaction) -> Outcome:
        """Do a transaction."""
        ...

    async def read(self, key: str, end: str) -> Reading:
        """Read the keys from ``key`` up to ``end``, linearizably."""
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Begin a lease; etcd takes whole seconds, and rounds them up."""
        ...

    async def keep_alive(self, lease_id: int) -> float:
        """Return how many seconds a lease has from now on, 0.0 if there is none any more."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and delete its keys; harmless if there is none any more."""
        ...

    def watch(self, key: str, end: str, *, after: int) -> AsyncGenerator[Changed, None]:
        """Yield what changes in a range after a revision.

        Raises ``JournalOutage`` when the stream breaks, and if changes after that revision were
        compacted: read again then.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Let etcd forget how keys were before a revision."""
        ...

    async def close(self) -> None:
        """Release what is held."""
        ...
