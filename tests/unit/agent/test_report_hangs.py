"""The readable report of a run that hung."""

from __future__ import annotations

from drumbeat.agent.workers.failures.report import HangDiagnosis, HangGroup
from drumbeat.agent.workers.failures.verdict import read_report
from drumbeat.v1 import failure_pb2, session_pb2
from tests.unit.agent.test_report import BAR, LINE, a_record, rendered

CAUSE = failure_pb2.HangGroup(
    count=1,
    ranks="3",
    place="in load (data.py:7)",
    activity="does something else",
    stack='  File "data.py", line 7 in load\n',
    is_cause=True,
)
WAITING = failure_pb2.HangGroup(
    count=3,
    ranks="0-2",
    place="in all_reduce (train.py:20)",
    activity="waits for other ranks",
    stack='  File "train.py", line 20 in all_reduce\n  File "train.py", line 4 in main\n',
)
CANNOT_TELL = "cannot tell which rank causes the hang: no rank gave a stack (x)"


def a_hang(
    *groups: failure_pb2.HangGroup, count: int = 0, summary: str = "rank 3 is slow"
) -> failure_pb2.HangDiagnosis:
    return failure_pb2.HangDiagnosis(
        summary=summary, groups=groups, groups_count=count or len(groups)
    )


def test_a_report_tells_where_all_ranks_were() -> None:
    hang = a_hang(CAUSE, WAITING, count=4)
    cause = a_record(3, exit_code=-15)
    assert rendered(root_causes=[cause], world_size=4, hang=hang) == [
        BAR,
        "train.py FAILED",
        "round 0 failed",
        LINE,
        "Root cause:",
        "  host      : node-1",
        "  rank      : 3 (local rank 1, group rank 1, role trainer)",
        "  ended by  : SIGTERM",
        LINE,
        "Where all ranks were when the round hung:",
        "  1 rank (3) is in load (data.py:7): the cause",
        "  3 ranks (0-2) are in all_reduce (train.py:20): waits for other ranks",
        '      File "train.py", line 20 in all_reduce',
        '      File "train.py", line 4 in main',
        "  2 other places",
        BAR,
    ]


def test_a_report_says_that_the_cause_cannot_be_told() -> None:
    victim = a_record(0, is_stopped_by_agent=True)
    hang = a_hang(WAITING, summary=CANNOT_TELL)
    lines = rendered(victims=[victim], victims_count=1, world_size=3, hang=hang)
    assert lines[4:10] == [
        f"Root cause: {CANNOT_TELL}",
        LINE,
        "Where all ranks were when the round hung:",
        "  3 ranks (0-2) are in all_reduce (train.py:20): waits for other ranks",
        '      File "train.py", line 20 in all_reduce',
        '      File "train.py", line 4 in main',
    ]
    assert "other place" not in "\n".join(lines)


def test_causes_that_a_judgement_named_are_not_said_to_be_too_close_in_time() -> None:
    causes = [a_record(2), a_record(3)]
    with_hang = rendered(root_causes=causes, world_size=4, hang=a_hang(CAUSE))
    assert with_hang[4] == "Root cause: one of 2:"
    without = rendered(root_causes=causes, world_size=4)
    assert without[4] == "Root cause: one of 2, too close in time to be told apart:"


def test_what_a_worker_said_begins_no_line_of_the_report() -> None:
    group = failure_pb2.HangGroup(count=1, ranks="0", place="in a\nb", activity="\x1b[2J")
    lines = rendered(root_causes=[a_record(0)], world_size=1, hang=a_hang(group))
    assert lines[-2] == "  1 rank (0) is in a\\nb: \\x1b[2J"


def test_a_hang_without_groups_has_no_section() -> None:
    lines = rendered(root_causes=[a_record(0)], world_size=1, hang=a_hang())
    assert not any("all ranks" in line for line in lines)


def test_a_verdict_is_read_with_all_groups() -> None:
    report = failure_pb2.FailureReport(hang=a_hang(CAUSE, WAITING, count=9))
    message = session_pb2.Exit(verdict=failure_pb2.Verdict(report=report))
    assert read_report(message).hang == HangDiagnosis(
        summary="rank 3 is slow",
        groups=(
            HangGroup(
                count=1,
                ranks="3",
                place="in load (data.py:7)",
                activity="does something else",
                stack='  File "data.py", line 7 in load\n',
                is_cause=True,
            ),
            HangGroup(
                count=3,
                ranks="0-2",
                place="in all_reduce (train.py:20)",
                activity="waits for other ranks",
                stack=WAITING.stack,
            ),
        ),
        groups_count=9,
    )
    assert read_report(session_pb2.Exit(verdict=failure_pb2.Verdict())).hang is None
