"""Pure. Which failure explains a round, and which ones it explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.model import FailureRecord, FailureReport

# Ages are measured on each host and travel over the network; what is closer
# together than this can't be put in order honestly.
CANDIDATE_WINDOW_S = 0.001

# A report goes to every agent, so it holds few victims; the rest is a number.
VICTIMS_SHOWN_MAX = 16
# Of a victim people need who and how, not every line.
VICTIM_MESSAGE_CHARACTERS_MAX = 500


def root_causes(records: Iterable[FailureRecord], round_id: int) -> list[FailureRecord]:
    """Return the earliest failures of the round whose worker was not being stopped.

    Several only if they lie within ``CANDIDATE_WINDOW_S``. Instants are those of
    the coordinator's clock.
    """
    causes = sorted(
        (r for r in records if r.round_id == round_id and not r.is_stopped_by_agent),
        key=lambda r: (r.happened_at, r.worker.rank),
    )
    return [r for r in causes if r.happened_at - causes[0].happened_at <= CANDIDATE_WINDOW_S]


def make_report(
    records: Iterable[FailureRecord], round_id: int, *, world_size: int
) -> FailureReport | None:
    """Return the report of a round; ``None`` if nothing is known of it."""
    of_round = [record for record in records if record.round_id == round_id]
    causes = root_causes(of_round, round_id)
    if not of_round:
        return None
    victims = sorted(
        (record for record in of_round if record not in causes), key=lambda r: r.happened_at
    )
    return FailureReport(
        root_causes=tuple(causes),
        victims=tuple(_shortened(record) for record in victims[:VICTIMS_SHOWN_MAX]),
        victims_count=max(0, world_size - len(causes)),
        world_size=world_size,
    )


def describe(causes: list[FailureRecord]) -> str:
    """Name the causes in one line, for people."""
    return " or ".join(
        f"rank {record.worker.rank} on {record.host} ({record.ending()})" for record in causes
    )


def keep_most_telling(records: list[FailureRecord], limit: int) -> list[FailureRecord]:
    """Return at most ``limit`` records: the latest rounds first, in them the earliest failures.

    What explains the present outlives what explained the past.
    """
    if len(records) <= limit:
        return records
    ranked = sorted(records, key=lambda r: (-r.round_id, r.is_stopped_by_agent, r.happened_at))
    return ranked[:limit]


def _shortened(record: FailureRecord) -> FailureRecord:
    return replace(
        record, message=record.message[:VICTIM_MESSAGE_CHARACTERS_MAX], traceback="", stderr_tail=""
    )
