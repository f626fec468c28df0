"""Pure. What becomes of a failure that is told: kept, counted, or taken back."""

from __future__ import annotations

from coordinator.core.failures.root_cause import room_for, unhealed
from coordinator.core.membership.leases import Membership
from coordinator.core.model import FailureRecord, Round
from coordinator.core.run.records import FailureRecorded, FailuresCounted
from coordinator.core.run.state import Phase, RunState


def is_wanted(state: RunState, record: FailureRecord, *, incarnations_max: int) -> bool:
    """Return whether a record is new, of a round there was, and can be told from others."""
    heard = state.failures_heard
    if state.phase is Phase.ENDED or record.round_id >= state.next_round_id:
        return False
    if record.round_id == state.round_id and record.incarnation not in state.seats:
        return False  # of a run of this name in an earlier life: its rounds were others
    if record.incarnation not in heard and len(heard) >= incarnations_max:
        return False
    return record.sequence > heard.get(record.incarnation, 0)


def taken(
    state: RunState, record: FailureRecord, *, bytes_max: int
) -> FailureRecorded | FailuresCounted:
    """Return what to journal: a record that would be dropped at once is only counted."""
    held, most = state.failures_bytes, state.failures_kept_max
    if room_for(state.failures, record, held=held, count_max=most, bytes_max=bytes_max):
        return FailureRecorded(record=record, bytes_max=bytes_max)
    return FailuresCounted(heard={record.incarnation: record.sequence}, count=1)


def known_failures(state: RunState, members: Membership) -> list[FailureRecord]:
    """Return the failures that count; in short those whose records are under way. Linear."""
    heard, known = state.failures_heard, unhealed(state.failures, state.iterations)
    told = (p.failure for p in members.presences.values() if p.failure is not None)
    return known + [r for r in told if r.sequence > heard.get(r.incarnation, 0)]


class SilentAtFailure:
    """Participants not heard since the latest failure, each with the restarts charged meanwhile.

    If one of them turns out to be lost, the failure was perhaps a consequence of that,
    so its restarts are given back.
    """

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}

    def note(
        self, current: Round, members: Membership, *, since: float | None, charged: int
    ) -> None:
        """Note who is silent as a round that failed at ``since`` ends. Linear."""
        presences = members.presences
        self.charged = {
            i: self.charged.get(i, 0) + charged
            for i in current.seats.keys() & presences.keys()
            if since is not None and presences[i].silent_since < since
        }

    def heard(self, incarnation: str) -> None:
        """Take in that an agent lives."""
        self.charged.pop(incarnation, None)

    def take_back(self, incarnation: str) -> int | None:
        """Return the restarts that the loss of this agent gives back, once for all agents.

        ``None`` if it was heard after the latest failure.
        """
        returned = self.charged.get(incarnation)
        if returned is not None:
            self.charged.clear()
        return returned
