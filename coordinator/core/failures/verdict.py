"""Pure. How a run ended, as all its agents are told, with a report on its last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from coordinator.core.failures.intake import known_failures
from coordinator.core.failures.root_cause import CAUSES_SHOWN_MAX, root_causes
from coordinator.core.membership.leases import Membership
from coordinator.core.model import FailureRecord, FailureReport, Verdict, VerdictCause
from coordinator.core.progress.worker_progress import NOWHERE, Standings
from coordinator.core.run import reasons
from coordinator.core.run.state import RunState

# A report goes to every agent, so it holds few records; the rest is a number.
VICTIMS_SHOWN_MAX = 16
EARLIER_SHOWN_MAX = 8
# Of a victim the report needs who and how, not every line.
VICTIM_MESSAGE_CHARACTERS_MAX = 500


def make_verdict(
    state: RunState,
    members: Membership,
    done: Mapping[str, int],
    *,
    cause: VerdictCause,
    reason: str,
) -> Verdict:
    """Return the verdict on a run, with a report on its last round if that failed.

    ``done`` are the workers of each participant that had ended well before.
    """
    report = None
    if state.round is not None and cause is not VerdictCause.SUCCEEDED:
        ends = (entry.reason for entry in state.history if entry.decision == "round ended")
        report = make_report(
            known_failures(state, members),
            state.round.round_id,
            world_size=state.round.world_size,
            done=sum(done.values()),
            where=state.where,
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


def make_report(
    records: Iterable[FailureRecord],
    round_id: int,
    *,
    world_size: int,
    done: int = 0,
    where: Standings = NOWHERE,
    earlier: Sequence[str] = (),
) -> FailureReport | None:
    """Return the report of a round; ``None`` if nothing is known of it.

    ``done`` workers had ended well before; ``where`` is who was where when it failed,
    ``earlier`` what ended the rounds before.
    """
    of_round = [record for record in records if record.round_id == round_id]
    if not of_round and not where.shown and not earlier:
        return None
    causes = root_causes(of_round, round_id)
    explained = {(record.incarnation, record.sequence) for record in causes}
    # A worker that restarts in process can have several. That it was stopped in the end is
    # the least of what there is to say of it.
    told = {_worker(record) for record in of_round if not record.is_victim}
    victims = [
        record
        for record in sorted(of_round, key=lambda r: r.happened_at)
        if (record.incarnation, record.sequence) not in explained
        and not (record.is_victim and _worker(record) in told)
    ]
    # A round of which no record came may have ended in another way than by failing.
    unexplained = world_size - done - len({_worker(cause) for cause in causes})
    return FailureReport(
        root_causes=tuple(causes[:CAUSES_SHOWN_MAX]),
        victims=tuple(_shortened(record) for record in victims[:VICTIMS_SHOWN_MAX]),
        victims_count=max(0, unexplained) if of_round or where.shown else 0,
        world_size=world_size,
        standings=where.shown,
        standings_count=where.count,
        earlier=tuple(earlier[-EARLIER_SHOWN_MAX:]),
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
        explanation=record.explanation[:most],
        hang=replace(hang, stacks="", evidence=hang.evidence[:most]) if hang else None,
    )
