"""Pure. Which failures count, and how a run ended, as all its agents are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from drumbeat.coordinator.core.failures.root_cause import (
    CAUSES_SHOWN_MAX,
    explains,
    room_for,
    root_causes,
    unhealed,
)
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.model import (
    FailureRecord,
    FailureReport,
    HangDiagnosis,
    Round,
    Verdict,
    VerdictCause,
)
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.records import FailureRecorded, FailuresCounted
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.steps.worker_progress import NOWHERE, Standings

# A report goes to every agent, so it holds few records; the rest is a number.
VICTIMS_SHOWN_MAX = 16
EARLIER_SHOWN_MAX = 8
# Of a victim the report needs who and how, not every line.
VICTIM_MESSAGE_CHARACTERS_MAX = 500


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


def known_failures(state: RunState, members: RunMembers) -> list[FailureRecord]:
    """Return the failures that count; in short those whose records are under way. Linear."""
    heard, known = state.failures_heard, unhealed(state.failures, state.iterations)
    announced = (p.failure for p in members.presences.values() if p.failure is not None)
    return known + [r for r in announced if r.sequence > heard.get(r.incarnation, 0)]


class SilentAtFailure:
    """Participants not heard since the latest failure, each with the restarts charged meanwhile.

    If one of them turns out to be lost, the failure was perhaps a consequence of that,
    so its restarts are given back.
    """

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}

    def note(
        self, current: Round, members: RunMembers, *, since: float | None, charged: int
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
        """Return the restarts that its loss gives back; ``None`` if it was heard meanwhile."""
        returned = self.charged.get(incarnation)
        if returned is not None:
            self.charged.clear()  # once, for all agents
        return returned


def make_verdict(
    state: RunState,
    members: RunMembers,
    done: Mapping[str, int],
    *,
    cause: VerdictCause,
    reason: str,
) -> Verdict:
    """Return the verdict on a run, with a report on its last round if that failed.

    ``done`` are the workers of each participant that had ended well before.
    """
    report = None
    if state.round is not None and cause not in (VerdictCause.SUCCEEDED, VerdictCause.STOPPED):
        ends = (entry.reason for entry in state.history if entry.decision == "round ended")
        report = make_report(
            known_failures(state, members),
            state.round.round_id,
            world_size=state.round.world_size,
            done=sum(done.values()),
            where=state.where,
            hang=state.hang,
            # Those that failed or lost hosts, and not those that more agents joined.
            earlier=[reason for reason in ends if reason.startswith("round ")],
        )
    return Verdict(
        cause=cause,
        reason=reasons.with_budget(reason, state),
        restart_count=state.restart_count,
        round_id=state.round_id,
        report=report,
    )


def make_report(  # noqa: PLR0913 - all that is known of a round
    records: Iterable[FailureRecord],
    round_id: int,
    *,
    world_size: int,
    done: int = 0,
    where: Standings = NOWHERE,
    hang: HangDiagnosis | None = None,
    earlier: Sequence[str] = (),
) -> FailureReport | None:
    """Return the report of a round, ``None`` if nothing is known of it.

    ``where`` is who was where when it failed, ``hang`` the latest that was judged, ``earlier``
    what ended the rounds before.
    """
    of_round = [record for record in records if record.round_id == round_id]
    has_hung = explains(hang, root_causes(of_round, round_id), round_id)
    if not of_round and not where.shown and not earlier and not has_hung:
        return None
    causes = root_causes(of_round, round_id, hang)
    explained = {(record.incarnation, record.sequence) for record in causes}
    # A worker that restarts in process can have several. That it was stopped in the end is
    # the least of what there is to say of it.
    failed = {_worker(record) for record in of_round if not record.is_victim}
    victims = [
        record
        for record in sorted(of_round, key=lambda r: r.happened_at)
        if (record.incarnation, record.sequence) not in explained
        and not (record.is_victim and _worker(record) in failed)
    ]
    # A round of which no record came may have ended in another way than by failing.
    unexplained = world_size - done - len({_worker(cause) for cause in causes})
    return FailureReport(
        root_causes=tuple(causes[:CAUSES_SHOWN_MAX]),
        victims=tuple(_shortened(record) for record in victims[:VICTIMS_SHOWN_MAX]),
        victims_count=max(0, unexplained) if of_round or where.shown or has_hung else 0,
        world_size=world_size,
        standings=where.shown,
        standings_count=where.count,
        earlier=tuple(earlier[-EARLIER_SHOWN_MAX:]),
        hang=hang if has_hung else None,
    )


def _worker(record: FailureRecord) -> tuple[str, int]:
    return record.incarnation, record.worker.local_rank


def _shortened(record: FailureRecord) -> FailureRecord:
    most, hang = VICTIM_MESSAGE_CHARACTERS_MAX, record.hang
    return replace(
        record,
        message=record.message[:most],
        traceback="",
        stderr_tail="",
        output_files=(),
        explanation=record.explanation[:most],
        hang=replace(hang, stacks="", evidence=hang.evidence[:most]) if hang else None,
    )
