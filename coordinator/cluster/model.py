"""Pure. Members and leader of a cluster, and the events and effects of a candidacy."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from drumbeat.coordinator.journal.etcd.model import Lease


class Member(Struct, frozen=True):
    """A coordinator, as it describes itself in etcd in JSON."""

    member_id: str  # of one process; a process that follows at the same address has another
    address: str  # ``host:port`` at which agents and operators reach it
    version: str = ""


class Leader(Struct, frozen=True):
    """A leadership, as etcd has it."""

    member: Member
    term: int  # the revision of etcd at which it began, so later leaderships have greater ones
    lease_id: int  # the leadership ends with this lease at the latest

    @property
    def address(self) -> str:
        """Address of the leader."""
        return self.member.address


class EtcdCall(Enum):
    """What a candidacy asks etcd for; one call of each kind is under way at a time."""

    GRANT = "grant"  # a lease
    KEEP_ALIVE = "keep alive"  # a lease
    ENROL = "enrol"  # as a member for as long as a lease lasts
    CAMPAIGN = "campaign"  # to lead unless another coordinator does
    RESIGN = "resign"  # leadership; the lease goes on
    REVOKE = "revoke"  # a lease, and what is left of a leadership with it


# Events. ``leader`` led at ``revision`` of etcd's store.


class LeaseGranted(Struct, frozen=True):
    """A lease began."""

    lease: Lease
    asked_at: float  # on the clock of ``now``


class LeaseKept(Struct, frozen=True):
    """A lease was kept alive."""

    lease_id: int
    ttl_s: float  # counted from ``asked_at``; 0.0: the lease has ended
    asked_at: float


class Answered(Struct, frozen=True):
    """Etcd answered a request to enrol, campaign or resign with the leader of that moment."""

    call: EtcdCall
    lease_id: int
    leader: Leader | None
    revision: int


class Revoked(Struct, frozen=True):
    """A lease was ended."""

    lease_id: int


class EtcdCallFailed(Struct, frozen=True):
    """A call had no answer or was refused; etcd may have done what it asked for all the same."""

    call: EtcdCall
    lease_id: int
    reason: str


class ClusterSeen(Struct, frozen=True):
    """The leader and all members, as they were read or have changed."""

    leader: Leader | None
    members: tuple[Member, ...]  # ordered by address
    revision: int


class WriteRefused(Struct, frozen=True):
    """Etcd refused a write of the journal, because another coordinator leads by now."""

    term: int  # of the write


class StepDownAsked(Struct, frozen=True):
    """Another coordinator is to lead in place of this one, which writes nothing any more."""

    reason: str


class DeadlineReached(Struct, frozen=True):
    """``next_deadline`` has come."""


Event = (
    LeaseGranted
    | LeaseKept
    | Answered
    | Revoked
    | EtcdCallFailed
    | ClusterSeen
    | WriteRefused
    | StepDownAsked
    | DeadlineReached
)


# Effects.


class Ask(Struct, frozen=True):
    """Ask etcd for something. The answer is an event, ``EtcdCallFailed`` at the latest."""

    call: EtcdCall
    lease_id: int = 0  # that it is about; 0: none
    term: int = 0  # to resign from


class Lead(Struct, frozen=True):
    """Lead from now on."""

    term: int
    reason: str


class StopLeading(Struct, frozen=True):
    """Stop leading at once; ``leader`` leads now, if a leader is known."""

    leader: Leader | None
    reason: str


class RefuseStepDown(Struct, frozen=True):
    """Answer ``StepDownAsked``: this coordinator leads on, or does not lead."""

    reason: str


class LeaderChanged(Struct, frozen=True):
    """Another coordinator leads, or none does, or none for another reason."""

    leader: Leader | None
    reason: str


Effect = Ask | Lead | StopLeading | RefuseStepDown | LeaderChanged
