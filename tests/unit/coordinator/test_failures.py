"""Which failure explains a round."""

from typing import Any

import pytest

from drumbeat.coordinator.core.failures.root_cause import (
    CAUSES_SHOWN_MAX,
    HANG_END_S,
    describe,
    insert_most_telling,
    root_causes,
    unhealed,
)
from drumbeat.coordinator.core.failures.verdict import (
    EARLIER_SHOWN_MAX,
    VICTIM_MESSAGE_CHARACTERS_MAX,
    VICTIMS_SHOWN_MAX,
    make_report,
)
from drumbeat.coordinator.core.inprocess.records import IterationPhase, IterationState
from drumbeat.coordinator.core.model import FailureRecord, Hang
from drumbeat.coordinator.observe.steps.worker_progress import Standing, Standings, WorkerProgress
from drumbeat.inprocess import InterruptionKind
from drumbeat.model import HangKind
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
        insert_most_telling(table, record, held=0, count_max=limit)
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


def a_hang(**fields: Any) -> Hang:
    given: dict[str, Any] = {"kind": HangKind.TIMER, "limit_s": 60.0, "elapsed_s": 60.0}
    return Hang(**(given | fields))


def test_a_worker_that_hung_is_no_victim_although_it_was_being_stopped_when_it_ended() -> None:
    hung, later = at(5.0, 0, is_stopped_by_agent=True, hang=a_hang()), at(6.0, 1)
    assert root_causes([later, hung], 0) == [hung]
    assert kept([at(9.0, 2), hung], 1) == [hung]


def test_a_failure_while_a_hung_worker_is_being_ended_leaves_both_as_candidates() -> None:
    """The hang was found out before that, and its process took its time to die."""
    other, hung = at(61.0, 1), at(65.0, 0, hang=a_hang())
    assert root_causes([hung, other], 0) == [other, hung]
    assert root_causes([at(61.0 + HANG_END_S + 4.1, 0, hang=a_hang()), other], 0) == [other]


def test_of_many_that_hung_the_first_to_end_counts() -> None:
    records = [at(60.0 + rank, rank, hang=a_hang()) for rank in range(3)]
    assert root_causes(records, 0) == records[:1]
    assert root_causes([at(59.0, 9), *records], 0) == [at(59.0, 9), records[0]]


@pytest.mark.parametrize(
    ("hang", "told"),
    [
        (a_hang(scope="all-reduce"), "timer 'all-reduce' not released within 60 s"),
        (a_hang(kind=HangKind.SECTION, scope="save"), "section 'save' not left within 60 s"),
        (a_hang(kind=HangKind.STARTUP), "no first heartbeat within 60 s of its start"),
        (a_hang(kind=HangKind.PROGRESS), "no further heartbeat within 60 s"),
        (a_hang(kind=HangKind.RUNTIME), "its interpreter gave no sign of life within 60 s"),
        (a_hang(kind=HangKind.EXIT), "its interpreter did not end within 60 s"),
    ],
)
def test_a_hang_is_described_by_the_limit_it_broke(hang: Hang, told: str) -> None:
    assert describe([at(1.0, 3, signal_name="SIGTERM", hang=hang)]) == f"rank 3 on a hung: {told}"


def test_a_hostile_name_of_a_timer_stays_one_short_line() -> None:
    line = describe([at(1.0, hang=a_hang(scope="a\n\x1b" * 1000))])
    assert line.isprintable()
    assert len(line) < 300


def test_the_stacks_of_a_victim_are_left_out() -> None:
    victim = at(20.0, 1, hang=a_hang(stacks="File", evidence="x" * 10_000))
    report = make_report([at(1.0), victim], 0, world_size=2)
    assert report is not None
    shown = report.victims[0].hang
    assert shown is not None
    assert (shown.stacks, len(shown.evidence)) == ("", VICTIM_MESSAGE_CHARACTERS_MAX)


def test_who_was_where_is_a_report_even_without_records() -> None:
    where = Standings(
        shown=(Standing(rank=1, host="h", progress=WorkerProgress(local_rank=0)),), count=3
    )
    report = make_report([], 0, world_size=4, where=where)
    assert report is not None
    assert (report.standings, report.standings_count) == (where.shown, 3)
    assert (report.root_causes, report.victims_count) == ((), 4)


def an_interruption(sequence: int, iteration: int, **fields: Any) -> FailureRecord:
    kind = fields.pop("kind", InterruptionKind.EXCEPTION)
    return a_record(sequence, interruption=kind, iteration=iteration, **fields)


def iterations_at(iteration: int, phase: IterationPhase) -> IterationState:
    return IterationState(round_id=0, world_size=2, iteration=iteration, phase=phase)


@pytest.mark.parametrize(
    ("phase", "counted"),
    [
        (IterationPhase.RUNNING, [2, 3, 4]),
        (IterationPhase.INTERRUPTED, [2, 3, 4]),
        (IterationPhase.COMPLETED, [3, 4]),
    ],
)
def test_what_a_restart_in_process_healed_explains_nothing(
    phase: IterationPhase, counted: list[int]
) -> None:
    records = [
        an_interruption(1, 1),
        an_interruption(2, 2),
        an_interruption(3, 0, round_id=1),
        a_record(4),
    ]
    found = unhealed(records, iterations_at(2, phase))
    assert [record.sequence for record in found] == counted
    assert unhealed(records, None) == records
    assert unhealed(records, iterations_at(-1, IterationPhase.NONE)) == records


@pytest.mark.parametrize("kind", InterruptionKind)
def test_who_was_ended_for_a_fault_of_its_own_is_no_victim(kind: InterruptionKind) -> None:
    at_fault = {
        InterruptionKind.HARD_TIMEOUT,
        InterruptionKind.UNRESPONSIVE,
        InterruptionKind.BARRIER_TIMEOUT,
    }
    record = an_interruption(1, 0, kind=kind, is_stopped_by_agent=True)
    assert record.is_victim == (kind not in at_fault)
    assert not an_interruption(1, 0, kind=kind).is_victim


def test_an_interruption_is_described_by_what_it_was() -> None:
    record = an_interruption(1, 0, rank=3, exit_code=0, message="ValueError: no\nmore")
    assert describe([record]) == "rank 3 on a: EXCEPTION: ValueError: no"
    assert describe([an_interruption(1, 0, exit_code=0)]) == "rank 0 on a: EXCEPTION"


def test_a_full_table_keeps_the_last_iteration() -> None:
    records: list[FailureRecord] = []
    for iteration in range(4):
        for at in (2.0, 1.0):
            found = an_interruption(iteration * 10 + int(at), iteration, happened_at=at)
            insert_most_telling(records, found, held=0, count_max=3)
    assert [record.sequence for record in records] == [31, 32, 21]
    insert_most_telling(records, a_record(99, happened_at=9.0), held=0, count_max=3)
    assert [record.sequence for record in records] == [99, 31, 32]


def test_a_cause_is_described_with_the_first_line_of_what_it_said() -> None:
    said = at(1.0, message="ValueError: b\x07oom\nmore")
    assert describe([said]) == "rank 0 on a (exit code 1, ValueError: b\\x07oom)"


def test_a_report_has_what_ended_the_rounds_before_even_without_records_of_its_own() -> None:
    why = [f"round {number} failed" for number in range(EARLIER_SHOWN_MAX + 1)]
    report = make_report([], 9, world_size=4, earlier=why)
    assert report is not None
    assert report.earlier == tuple(why[1:])
    assert report.victims_count == 0


def test_a_worker_that_was_told_to_end_is_a_victim_of_what_it_did_itself() -> None:
    """Also if it is the cause; and a cause that failed once more says so."""
    cause, other = at(1.0, 0), at(2.0, 1)
    told = [at(9.0, rank, is_stopped_by_agent=True, sequence=2) for rank in range(3)]
    failed = at(3.0, 0, message="finalize failed", sequence=3)
    report = make_report([cause, other, failed, *told], 0, world_size=3)
    assert report is not None
    assert report.root_causes == (cause,)
    shown = [(record.worker.rank, record.message) for record in report.victims]
    assert shown == [(1, other.message), (0, "finalize failed"), (2, told[2].message)]
    assert report.victims_count == 2
