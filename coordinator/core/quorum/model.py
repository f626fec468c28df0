"""Pure. Quorums of replica groups: their values, and what happens to them."""

from __future__ import annotations

from msgspec import Struct


class KeptQuorum(Struct, frozen=True, kw_only=True):
    """What the journal keeps of the latest quorum of a job."""

    job: str
    quorum_id: int
    members: dict[int, str]  # replica ids by group


class QuorumRequest(Struct, frozen=True, kw_only=True):
    """A replica asks for the next quorum. ``number`` counts the requests of its agent."""

    replica_id: str
    number: int
    shrink_only: bool = False
    commit_failures: int = 0
    member: object = None  # all that it says of itself, for the other members


class Quorum(Struct, frozen=True, kw_only=True):
    """A quorum that is given to its members."""

    quorum_id: int
    requests: tuple[QuorumRequest, ...]  # that it answers, by replica id
    response: bytes = b""  # as it was encoded, if an agent has brought it back

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each member's request, by replica id."""
        return {request.replica_id: request.number for request in self.requests}

    def is_after(self, other: Quorum | None) -> bool:
        """Whether it was formed later. Quorums of one id have the same members."""
        if other is None:
            return True
        if self.quorum_id != other.quorum_id:
            return self.quorum_id > other.quorum_id
        return self.requests[0].number > other.requests[0].number


class ReplicaReported(Struct, frozen=True, kw_only=True):
    """The agent of a group said how its replica is. ``source`` is the call in which it did."""

    group: int
    source: str
    replica_id: str
    is_silent: bool = False
    request: QuorumRequest | None = None  # None: it asks for nothing
    latest: Quorum | None = None  # that the agent has got from an earlier coordinator


class CallEnded(Struct, frozen=True, kw_only=True):
    """The call of an agent ended: its replica may live."""

    group: int
    source: str


class GroupLeft(Struct, frozen=True, kw_only=True):
    """The round of a group is over, so that its replica does not live."""

    group: int
    reason: str


class QuorumKept(Struct, frozen=True, kw_only=True):
    """The quorum that ``KeepQuorum`` asked for is durable."""


class QuorumDue(Struct, frozen=True, kw_only=True):
    """The instant of ``next_deadline()`` has come."""


QuorumEvent = ReplicaReported | CallEnded | GroupLeft | QuorumKept | QuorumDue


class KeepQuorum(Struct, frozen=True, kw_only=True):
    """Journal this, and answer with ``QuorumKept``."""

    quorum: KeptQuorum


class GiveQuorum(Struct, frozen=True, kw_only=True):
    """Answer the requests that came in these calls; by call, the number of the request."""

    quorum: Quorum
    numbers: dict[str, int]


class QuorumDecided(Struct, frozen=True, kw_only=True):
    """Log what was decided, and why. ``decision`` is a fixed phrase."""

    decision: str
    reason: str


QuorumEffect = KeepQuorum | GiveQuorum | QuorumDecided
