"""Which failure explains a round."""

from __future__ import annotations

from typing import Any

from coordinator.failures import (
    CAUSES_SHOWN_MAX,
    VICTIM_MESSAGE_CHARACTERS_MAX,
    VICTIMS_SHOWN_MAX,
    describe,
    insert_most_telling,
    make_report,
    root_causes,
)
from coordinator.model import FailureRecord
from tests.support.world import a_record


def at(instant: float, rank: int = 0, **fields: Any) -> FailureRecord:
    return a_record(incarnation=f"i{rank}", happened_at=instant, rank=rank, **fields)


def test_the_earliest_is_the_root_cause_whatever_arrived_first() -> None:
    late, early = at(2.0, 0), at(1.0, 1)
    assert root_causes([late, early], 0) == [early]


def test_who_was_being_stopped_never_is_the_cause() -> None:
    stopped, cause = at(1.0, 0, is_stopped_by_agent=True), at(5.0, 1)
    assert root_causes([stopped, cause], 0) == [cause]
    assert root_causes([stopped], 0) == []


def test_failures_within_a_millisecond_are_all_candidates_lowest_rank_first_on_a_tie() -> None:
    records = [at(1.0008, 3), at(1.0, 2), at(1.0, 1), at(1.002, 0)]
    assert root_causes(records, 0) == [records[2], records[1], records[0]]


def test_the_window_counts_from_the_earliest_and_does_not_creep() -> None:
    records = [at(1.0 + 0.0008 * step, step) for step in range(4)]
    assert root_causes(records, 0) == records[:2]


def test_other_rounds_explain_nothing() -> None:
    assert root_causes([at(1.0, round_id=0), at(2.0, round_id=2)], 1) == []
    assert make_report([at(1.0, round_id=0)], 1, world_size=4) is None


def test_a_report_names_causes_in_full_and_victims_in_short() -> None:
    long = "x" * (VICTIM_MESSAGE_CHARACTERS_MAX + 1)
    cause = at(1.0, 0, message=long, traceback="where", explanation=long)
    victim = at(2.0, 1, message=long, traceback="where", stderr_tail="tail", explanation=long)
    report = make_report([victim, cause], 0, world_size=8)
    assert report is not None
    assert report.root_causes == (cause,)
    assert (report.victims_count, report.world_size) == (7, 8)
    (shown,) = report.victims
    assert (shown.message, shown.traceback, shown.stderr_tail) == (long[:-1], "", "")
    assert shown.explanation == long[:-1]


def test_a_report_of_stopped_workers_only_has_no_cause() -> None:
    report = make_report([at(1.0, is_stopped_by_agent=True)], 0, world_size=2)
    assert report is not None
    assert (report.root_causes, report.victims_count, len(report.victims)) == ((), 2, 1)


def test_a_report_shows_the_earliest_victims_up_to_a_limit() -> None:
    records = [at(float(step), step) for step in reversed(range(100))]
    report = make_report(records, 0, world_size=100)
    assert report is not None
    shown = [record.happened_at for record in report.victims]
    assert shown == [float(step) for step in range(1, VICTIMS_SHOWN_MAX + 1)]
    assert report.victims_count == 99


def test_a_report_of_many_candidates_is_bounded_and_they_are_counted() -> None:
    """Every agent gets the report: a thousand simultaneous failures must not multiply."""
    report = make_report([at(1.0, rank) for rank in range(1000)], 0, world_size=1000)
    assert report is not None
    assert [r.worker.rank for r in report.root_causes] == list(range(CAUSES_SHOWN_MAX))
    assert (report.victims, report.victims_count) == ((), 0)


def test_causes_are_described_in_one_bounded_line() -> None:
    assert describe([at(1.0, 3, signal_name="SIGSEGV")]) == "rank 3 on a (SIGSEGV)"
    assert describe([at(1.0, 0), at(1.0, 1)]) == (
        "rank 0 on a (exit code 1) or rank 1 on a (exit code 1)"
    )
    many = describe([at(1.0, rank) for rank in range(1000)])
    assert many.endswith(f" or one of {1000 - CAUSES_SHOWN_MAX} others")
    assert len(many) < 1000


def kept(records: list[FailureRecord], limit: int) -> list[FailureRecord]:
    table: list[FailureRecord] = []
    for record in records:
        insert_most_telling(table, record, limit)
    return table


def test_a_full_table_keeps_the_latest_round_and_in_it_the_earliest_causes() -> None:
    records = [
        at(1.0, 0, round_id=0),
        at(9.0, 1, round_id=1),
        at(7.0, 2, round_id=1, is_stopped_by_agent=True),
        at(8.0, 3, round_id=1),
    ]
    assert kept(records, 4) == [records[3], records[1], records[2], records[0]]
    assert kept(records, 3) == [records[3], records[1], records[2]]
    assert kept(records, 2) == [records[3], records[1]]
    assert kept(list(reversed(records)), 1) == [records[3]]
