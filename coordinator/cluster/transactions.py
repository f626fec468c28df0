"""Pure. The keys of leader and members in etcd: how they are written, and what they say."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from drumbeat.coordinator.cluster.model import Leader, Member
from drumbeat.coordinator.journal.etcd.model import (
    Delete,
    Get,
    IsCreated,
    KeyValue,
    Put,
    Transaction,
    TransactionOutcome,
)
from drumbeat.coordinator.journal.keys import Keys


def range_of(keys: Keys) -> tuple[str, str]:
    """Return the range of the leader and the members; nothing else is in it."""
    return keys.leader, keys.members[1]


def enrol(keys: Keys, member: Member, lease_id: int) -> Transaction:
    """Be a member as long as a lease lasts, and read who leads."""
    put = Put(keys.member(member.member_id), msgspec.json.encode(member), lease_id)
    return Transaction((), (put, Get(keys.leader)))


def campaign(keys: Keys, member: Member, lease_id: int) -> Transaction:
    """Lead as long as a lease lasts, unless another one leads: then read who."""
    put = Put(keys.leader, msgspec.json.encode(member), lease_id)
    return Transaction((IsCreated(keys.leader, 0),), (put,), (Get(keys.leader),))


def resign(keys: Keys, term: int) -> Transaction:
    """Give a leadership back; if it has ended already, read who leads."""
    condition = IsCreated(keys.leader, term)
    return Transaction((condition,), (Delete(keys.leader),), (Get(keys.leader),))


def campaigned(outcome: TransactionOutcome, member: Member, lease_id: int) -> Leader:
    """Return who leads after a campaign."""
    if outcome.is_done:
        return Leader(member, outcome.revision, lease_id)
    leader = leader_of(outcome)
    assert leader is not None, "a campaign fails because there is one"
    return leader


def leader_of(outcome: TransactionOutcome) -> Leader | None:
    """Return who leads, as a transaction has read it."""
    return next((_leader(pair) for pairs in outcome.reads for pair in pairs), None)


def cluster(pairs: Iterable[KeyValue], keys: Keys) -> tuple[Leader | None, tuple[Member, ...]]:
    """Return the leader and the members, from all keys of their range."""
    leader, members = None, list[Member]()
    for pair in sorted(pairs, key=lambda pair: pair.key):
        if pair.key == keys.leader:
            leader = _leader(pair)
        elif keys.members[0] <= pair.key < keys.members[1]:
            members.append(_member(pair))
    return leader, tuple(sorted(members, key=lambda member: (member.address, member.member_id)))


def _leader(pair: KeyValue) -> Leader:
    return Leader(_member(pair), pair.create_revision, pair.lease_id)


def _member(pair: KeyValue) -> Member:
    """Return who wrote a key; of what cannot be read no address is known."""
    try:
        return msgspec.json.decode(pair.value, type=Member)
    except msgspec.DecodeError:
        return Member(pair.key, "")
