"""The state of a cluster of etcd 3.5, as far as coordinators use it: requests in, answers out.

No I/O and no clock: the simulation runs it in virtual time, ``EtcdModel`` behind the interface that
coordinators know. ``tests/integration/coordinator/test_etcd_model.py`` compares it with a real one.
"""

import math
from dataclasses import dataclass

from drumbeat.coordinator.errors import JournalUnusable
from drumbeat.coordinator.journal.etcd.model import (
    Changed,
    Delete,
    Get,
    IsCreated,
    IsModified,
    KeyValue,
    Lease,
    Put,
    RangeReading,
    Transaction,
    TransactionOutcome,
)

# What etcd takes by default (--max-txn-ops, --max-request-bytes).
OPERATIONS_MAX = 128
REQUEST_BYTES_MAX = 1_572_864
# A request is its keys and values, and about this much for each operation and for itself.
OVERHEAD_BYTES = 16
# The least that etcd grants with its own default of election timeouts.
TTL_MIN_S = 2
# It looks for leases that are over this often, and so ends them up to this much later.
EXPIRY_LAG_MAX_S = 0.5


class Refused(JournalUnusable):
    """A request that etcd will never do, in its own words."""

    def __init__(self, words: str) -> None:
        super().__init__("on etcd", words, "")


class Compacted(Exception):
    """Changes that were asked for are forgotten."""


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_at: float


class EtcdState:
    """What all members agree on. Every method is one request, done at once; ``now`` is in seconds.

    Leases end in ``expire`` alone, so that the owner of the clock decides how late.
    """

    def __init__(self, *, ttl_min_s: int = TTL_MIN_S) -> None:
        self.revision = 1
        self.compacted = 0
        self._ttl_min_s = ttl_min_s
        self._keys: dict[str, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        # What each revision changed; ``None`` stands for a key that was deleted.
        self._history: list[tuple[int, dict[str, KeyValue | None]]] = []

    def commit(self, transaction: Transaction) -> TransactionOutcome:
        """Do a transaction, if it is one that etcd takes."""
        _check(transaction)
        is_done = all(map(self._holds, transaction.conditions))
        operations = transaction.then if is_done else transaction.otherwise
        self._expect_leases(operations)
        changes: dict[str, KeyValue | None] = {}
        found = []
        for operation in operations:
            match operation:
                case Put():
                    changes[operation.key] = self._put(operation)
                case Delete(key, end):
                    for pair in self._range(key, end):
                        changes[pair.key] = None
                        del self._keys[pair.key]
                case Get(key, end):
                    found.append(self._range(key, end))
        self._changed(changes)
        return TransactionOutcome(is_done=is_done, revision=self.revision, reads=tuple(found))

    def read(self, key: str, end: str) -> RangeReading:
        """Read a range."""
        return RangeReading(revision=self.revision, pairs=self._range(key, end))

    # Leases.

    def grant(self, ttl_s: float, *, now: float) -> Lease:
        """Begin a lease."""
        self._last_lease += 1
        granted_s = float(max(math.ceil(ttl_s), self._ttl_min_s))
        self._leases[self._last_lease] = _Lease(granted_s, now + granted_s)
        return Lease(lease_id=self._last_lease, ttl_s=granted_s)

    def keep_alive(self, lease_id: int, *, now: float) -> float:
        """Begin the time of a lease anew; one whose time is over waits for its end alone."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.ends_at <= now:
            return 0.0
        lease.ends_at = now + lease.ttl_s
        return lease.ttl_s

    def revoke(self, lease_id: int) -> None:
        """End a lease."""
        if self._leases.pop(lease_id, None) is None:
            return
        bound = [key for key, pair in self._keys.items() if pair.lease_id == lease_id]
        for key in bound:
            del self._keys[key]
        self._changed(dict.fromkeys(bound))

    def expire(self, *, now: float) -> None:
        """End what is over."""
        over = [lease_id for lease_id, lease in self._leases.items() if lease.ends_at <= now]
        for lease_id in over:
            self.revoke(lease_id)

    def elect(self, *, now: float) -> None:
        """Elect another leader among the members: it doesn't know when leases were kept alive."""
        for lease in self._leases.values():
            lease.ends_at = now + lease.ttl_s

    def next_expiry(self) -> float | None:
        """Return when the next lease is over, unless it is kept alive."""
        return min((lease.ends_at for lease in self._leases.values()), default=None)

    # History.

    def changes(self, key: str, end: str, *, after: int) -> Changed | None:
        """Return what of a range is another one than it was at a revision; ``None``: nothing."""
        if after + 1 < self.compacted:
            raise Compacted
        latest: dict[str, KeyValue | None] = {}
        for revision, changes in self._history:
            if revision > after:
                latest |= {at: pair for at, pair in changes.items() if _is_within(at, key, end)}
        if not latest:
            return None
        put = tuple(pair for pair in latest.values() if pair is not None)
        deleted = tuple(at for at, pair in latest.items() if pair is None)
        return Changed(revision=self.revision, put=put, deleted=deleted)

    def compact(self, revision: int) -> None:
        """Forget history; what is forgotten already stays so."""
        if revision > self.revision:
            raise Refused("mvcc: required revision is a future revision")
        self.compacted = max(self.compacted, revision)
        self._history = [entry for entry in self._history if entry[0] >= self.compacted]

    # Parts of it.

    def _holds(self, condition: IsCreated | IsModified) -> bool:
        pair = self._keys.get(condition.key)
        if pair is None:
            return condition.revision == 0
        if isinstance(condition, IsCreated):
            return condition.revision == pair.create_revision
        return condition.revision == pair.mod_revision

    def _range(self, key: str, end: str) -> tuple[KeyValue, ...]:
        if not end:
            return (self._keys[key],) if key in self._keys else ()
        return tuple(self._keys[at] for at in sorted(self._keys) if _is_within(at, key, end))

    def _expect_leases(self, operations: tuple[Put | Delete | Get, ...]) -> None:
        for operation in operations:
            lease_id = operation.lease_id if isinstance(operation, Put) else 0
            if lease_id and lease_id not in self._leases:
                raise Refused("etcdserver: requested lease not found")

    def _put(self, put: Put) -> KeyValue:
        before = self._keys.get(put.key)
        pair = KeyValue(
            key=put.key,
            value=put.value,
            create_revision=before.create_revision if before else self.revision + 1,
            mod_revision=self.revision + 1,
            lease_id=put.lease_id,
        )
        self._keys[put.key] = pair
        return pair

    def _changed(self, changes: dict[str, KeyValue | None]) -> None:
        if changes:
            self.revision += 1
            self._history.append((self.revision, changes))


def _is_within(at: str, key: str, end: str) -> bool:
    return key <= at < end if end else at == key


def _check(transaction: Transaction) -> None:
    branches = transaction.then, transaction.otherwise
    if max(map(len, (transaction.conditions, *branches))) > OPERATIONS_MAX:
        raise Refused("etcdserver: too many operations in txn request")
    for branch in branches:
        puts = [operation.key for operation in branch if isinstance(operation, Put)]
        deletes = [operation for operation in branch if isinstance(operation, Delete)]
        is_deleted = any(_is_within(at, each.key, each.end) for at in puts for each in deletes)
        if len(set(puts)) < len(puts) or is_deleted:
            raise Refused("etcdserver: duplicate key given in txn request")
    if _bytes(transaction) > REQUEST_BYTES_MAX:
        raise Refused("etcdserver: request is too large")


def _bytes(transaction: Transaction) -> int:
    parts = (*transaction.conditions, *transaction.then, *transaction.otherwise)
    size = OVERHEAD_BYTES * (1 + len(parts))
    for part in parts:
        size += len(part.key)
        if isinstance(part, Put):
            size += len(part.value)
        elif isinstance(part, Get | Delete):
            size += len(part.end)
    return size
