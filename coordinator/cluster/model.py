"""Pure. Coordinators of a cluster and their leadership, and what happens to a candidacy."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from drumbeat.coordinator.journal.etcd.model import Lease


class Member(Struct, frozen=True):
    """A coordinator: what it says of itself in etcd, in JSON."""

    member_id: str  # of one process; another one at the same address has another
    address: str  # where agents and operators reach it, as ``host:port``
    version: str = ""


class Leader(Struct, frozen=True):
    """A leadership, as it is in etcd."""

    member: Member
    term: int  # the revision at which it began; each later one has a greater
    lease_id: int  # it ends with this lease at the latest

    @property
    def address(self) -> str:
        """Where it is reached."""
        return self.member.address


class Call(Enum):
    """What is asked of etcd; of each kind one call is under way at a time."""

    GRANT = "grant"
    KEEP_ALIVE = "keep alive"
    ENROL = "enrol"
    CAMPAIGN = "campaign"
    RESIGN = "resign"
    REVOKE = "revoke"


# Events. ``revision`` is of etcd's store: what is said of the leader is as it was then.


class LeaseGranted(Struct, frozen=True):
    """A lease began."""

    lease: Lease
    asked_at: float  # when it was asked for, on the clock of ``now``


class LeaseKept(Struct, frozen=True):
    """A lease was kept alive."""

    lease_id: int
    ttl_s: float  # from when it was asked for, at least; 0.0: there is no such lease any more
    asked_at: float


class Answered(Struct, frozen=True):
    """What was asked was answered with who leads now, this one or another."""

    call: Call  # to enrol, campaign or resign
    lease_id: int  # that it was about
    leader: Leader | None
    revision: int


class Revoked(Struct, frozen=True):
    """A lease was ended."""

    lease_id: int


class CallFailed(Struct, frozen=True):
    """A call was not answered, or refused: what was asked for may have happened all the same."""

    call: Call
    lease_id: int  # that it was about; 0: none
    reason: str


class ClusterSeen(Struct, frozen=True):
    """The leader and the members were read, or one of them changed; this is all of it."""

    leader: Leader | None
    members: tuple[Member, ...]  # ordered by address
    revision: int


class WriteRefused(Struct, frozen=True):
    """A write of the journal was refused, because this coordinator does not lead any more."""

    term: int  # in which it was written


class StepDownAsked(Struct, frozen=True):
    """Another coordinator is to lead instead of this one; nothing is written any more."""

    reason: str


class DeadlineReached(Struct, frozen=True):
    """The next deadline has come."""


Event = (
    LeaseGranted
    | LeaseKept
    | Answered
    | Revoked
    | CallFailed
    | ClusterSeen
    | WriteRefused
    | StepDownAsked
    | DeadlineReached
)


# Effects. Each of the first six ends as an event, ``CallFailed`` at the latest.


class Grant(Struct, frozen=True):
    """Begin a lease."""

    ttl_s: float


class KeepAlive(Struct, frozen=True):
    """Keep a lease alive."""

    lease_id: int


class Enrol(Struct, frozen=True):
    """Be a member as long as a lease lasts."""

    lease_id: int


class Campaign(Struct, frozen=True):
    """Lead, unless another one does."""

    lease_id: int


class Resign(Struct, frozen=True):
    """Give a leadership back; the lease stays."""

    lease_id: int
    term: int


class Revoke(Struct, frozen=True):
    """End a lease, and what is left of a leadership by it."""

    lease_id: int


class Lead(Struct, frozen=True):
    """Lead from now on."""

    term: int
    reason: str


class StopLeading(Struct, frozen=True):
    """Lead no more, from now on; ``leader`` does, if one is known."""

    leader: Leader | None
    reason: str


class RefuseStepDown(Struct, frozen=True):
    """Say why leadership is not given away; it stays as it was."""

    reason: str


class Tell(Struct, frozen=True):
    """Say who leads, or why none does as far as is known."""

    leader: Leader | None
    reason: str


Effect = (
    Grant
    | KeepAlive
    | Enrol
    | Campaign
    | Resign
    | Revoke
    | Lead
    | StopLeading
    | RefuseStepDown
    | Tell
)
