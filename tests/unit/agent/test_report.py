"""The readable report of a failed run."""

from __future__ import annotations

from drumbeat.agent.workers.failures.report import (
    WIDTH,
    FailedWorker,
    FailureReport,
    Position,
    render_report,
)
from drumbeat.agent.workers.failures.verdict import read_report
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2

BAR, LINE = "=" * WIDTH, "-" * WIDTH


def a_record(rank: int, **fields: object) -> failure_pb2.FailureRecord:
    worker = failure_pb2.WorkerRanks(
        rank=rank, local_rank=rank % 2, group_rank=rank // 2, role_rank=rank, role="trainer"
    )
    given = {"host": f"node-{rank // 2}", "worker": worker, "exit_code": 1}
    return failure_pb2.FailureRecord(**(given | fields))  # type: ignore[arg-type]


def rendered(**report: object) -> list[str]:
    verdict = failure_pb2.Verdict(
        reason="round 0 failed",
        report=failure_pb2.FailureReport(**report),  # type: ignore[arg-type]
    )
    return render_report(read_report(session_pb2.Exit(verdict=verdict)), "train.py").splitlines()


def test_a_run_without_a_failed_worker_has_its_reason_only() -> None:
    report = FailureReport(reason="join timeout: 1 of 2 agents")
    assert render_report(report, "train.py").splitlines() == [
        BAR,
        "train.py FAILED",
        "join timeout: 1 of 2 agents",
        BAR,
    ]


def test_what_the_time_went_into_is_a_line_of_its_head() -> None:
    verdict = failure_pb2.Verdict(reason="round 0 failed", goodput="trained 80.0% of 1 h\x1b[2J")
    lines = render_report(read_report(session_pb2.Exit(verdict=verdict)), "train.py").splitlines()
    assert lines[2:4] == ["round 0 failed", "goodput: trained 80.0% of 1 h\\x1b[2J"]


def test_the_cause_comes_with_everything_and_victims_with_a_line() -> None:
    cause = a_record(
        3,
        pid=77,
        exit_code=-11,
        signal_name="SIGSEGV",
        message="first\nsecond",
        explanation="native code\nwent astray",
        traceback="Traceback:\n  File x\n",
        stderr_tail="last words\n",
    )
    victim = a_record(0, is_stopped_by_agent=True, message="gone\nmore")
    assert rendered(root_causes=[cause], victims=[victim], victims_count=3, world_size=4) == [
        BAR,
        "train.py FAILED",
        "round 0 failed",
        LINE,
        "Root cause:",
        "  host      : node-1",
        "  rank      : 3 (local rank 1, group rank 1, role trainer)",
        "  ended by  : SIGSEGV (pid 77)",
        "  likely why: native code",
        "              went astray",
        "  message   : first",
        "              second",
        "  traceback :",
        "    Traceback:",
        "      File x",
        "  last lines of stderr:",
        "    last words",
        LINE,
        "Victims: 3 of 4 workers, ended because of it",
        "  rank 0 on node-0, exit code 1, stopped by its agent: gone",
        "  2 others stopped by their agents",
        BAR,
    ]


def test_an_agent_that_is_not_called_as_its_host_is_named_beside_it() -> None:
    lines = rendered(
        root_causes=[a_record(0, name="node-0")],
        victims=[a_record(1, name="node-0#2")],
        victims_count=1,
        world_size=2,
    )
    assert "  host      : node-0" in lines
    assert "  rank 1 on node-0#2, exit code 1" in lines
    named = rendered(root_causes=[a_record(1, name="left")], world_size=2)
    assert "  host      : node-0 (agent left)" in named


def test_causes_too_close_to_tell_apart_are_all_named() -> None:
    lines = rendered(root_causes=[a_record(0), a_record(2)], world_size=2)
    assert "Root cause: one of 2, too close in time to be told apart:" in lines
    assert "  host      : node-0" in lines
    assert "  host      : node-1" in lines


def test_a_cause_that_nobody_reported_is_not_made_up() -> None:
    lines = rendered(victims_count=2, world_size=2)
    assert "Root cause: unknown, no record of it arrived" in lines
    assert "  2 workers stopped by their agents" in lines


def test_an_empty_message_leaves_no_trace() -> None:
    lines = rendered(
        root_causes=[a_record(0)], victims=[a_record(1, message=" \n")], victims_count=1
    )
    assert not [line for line in lines if "message" in line]
    assert "  rank 1 on node-0, exit code 1" in lines


def test_a_worker_that_hung_shows_what_was_seen_of_it() -> None:
    hang = failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER,
        stacks="Thread 1:\n  File a\n",
        evidence="process 7: sleeping",
    )
    standing = failure_pb2.RankProgress(rank=3, host="node-1")
    lines = rendered(
        root_causes=[a_record(3, signal_name="SIGTERM", message="timer expired", hang=hang)],
        progress=[standing],
        progress_count=1,
        world_size=1,
    )
    at = lines.index("  message   : timer expired")
    assert lines[at + 1 :] == [
        "  seen      : process 7: sleeping",
        "  stacks    :",
        "    Thread 1:",
        "      File a",
        LINE,
        "Who was where:",
        "  no step: rank 3 on node-1",
        BAR,
    ]


def test_a_cause_says_which_iteration_it_interrupted() -> None:
    cause = a_record(
        3,
        pid=77,
        exit_code=0,
        interruption=iteration_pb2.INTERRUPTION_KIND_SOFT_TIMEOUT,
        iteration=12,
        message="slow",
    )
    lines = rendered(root_causes=[cause], victims=[cause], victims_count=1, world_size=2)
    at = lines.index("  iteration : 12, interrupted by no progress within the soft timeout")
    assert lines[at + 1 : at + 3] == ["  process   : lived on (pid 77)", "  message   : slow"]
    assert "  rank 3 on node-1, interrupted iteration 12: slow" in lines


def test_a_cause_that_ended_its_process_says_both() -> None:
    kind = iteration_pb2.INTERRUPTION_KIND_TERMINATED
    cause = a_record(3, exit_code=-9, signal_name="SIGKILL", interruption=kind)
    lines = rendered(root_causes=[cause], world_size=1)
    at = lines.index("  iteration : 0, interrupted by the end of the worker")
    assert lines[at + 1] == "  ended by  : SIGKILL"


def test_what_ended_earlier_rounds_is_in_it_as_lines() -> None:
    why = "round 0 failed: rank 1 on a (SIGKILL); restart 1 of 3"
    assert rendered(earlier=[why]) == [
        BAR,
        "train.py FAILED",
        "round 0 failed",
        "before that:",
        f"  {why}",
        BAR,
    ]


def test_control_characters_of_workers_are_written_out() -> None:
    cause = a_record(0, message="\x1b]0;title\x07", stderr_tail="\x1b[31mred\x1b[0m\x1b[2J\n")
    lines = rendered(root_causes=[cause], world_size=1)
    assert "  message   : \\x1b]0;title\\x07" in lines
    assert "    red\\x1b[2J" in lines


def test_victims_are_counted_as_workers_and_not_as_records() -> None:
    """One that restarts in process has several, also if it was a cause."""
    cause = a_record(0, message="boom")
    victim = a_record(1, message="finalize failed")
    lines = rendered(
        root_causes=[cause], victims=[cause, victim, victim], victims_count=1, world_size=2
    )
    assert not any("stopped by their agents" in line for line in lines)
    assert any("rank 1 on" in line and "finalize failed" in line for line in lines)


ACTING = "\x1b]0;pwned\x07\x1b[2J\r\x00\u202e\n====\n2026-11-22 01:54:49 agent: forged"


def test_no_text_of_others_begins_a_line_or_acts_on_a_terminal() -> None:
    """Whichever field it is in: a coordinator hands on what agents and workers say."""
    worker = FailedWorker(
        rank=0, local_rank=0, host=ACTING, role=ACTING, agent=f"a{ACTING}", message=ACTING,
        traceback=ACTING, stderr_tail=ACTING, explanation=ACTING, evidence=ACTING, stacks=ACTING,
    )  # fmt: skip
    report = FailureReport(
        reason=ACTING,
        earlier=(ACTING,),
        root_causes=(worker,),
        victims=(worker,),
        victims_count=1,
        world_size=2,
        positions=(Position(rank=0, host=ACTING, scope=ACTING),),
        positions_count=1,
        more=ACTING,
    )
    text = render_report(report, ACTING)
    assert [each for each in text if not each.isprintable() and each != "\n"] == []
    # Each of them, and of a victim its name and the first line of its message.
    assert text.count("pwned") == 1 + 1 + 1 + 9 + 2 + 2 + 1
    lines = text.splitlines()
    assert [line for line in lines if line.startswith(("2026", "====")) and line != "=" * 72] == []
