"""Pure. What becomes of a failure record that arrives: kept, counted, or neither."""

from __future__ import annotations

from coordinator.core.failures.root_cause import TableRoom, is_telling_enough, unhealed
from coordinator.core.membership.leases import Membership
from coordinator.core.model import FailureRecord
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
    room = TableRoom(count_max=state.failures_kept_max, bytes_max=bytes_max)
    if is_telling_enough(state.failures, record, room, held=state.failures_bytes):
        return FailureRecorded(record=record, bytes_max=bytes_max)
    return FailuresCounted(heard={record.incarnation: record.sequence}, count=1)


def known_failures(state: RunState, members: Membership) -> list[FailureRecord]:
    """Return the failures that count; in short those whose records are under way. Linear."""
    heard, known = state.failures_heard, unhealed(state.failures, state.iterations)
    told = (p.failure for p in members.presences.values() if p.failure is not None)
    return known + [r for r in told if r.sequence > heard.get(r.incarnation, 0)]
