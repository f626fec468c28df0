"""The readable report of a failed run.

The reports are in ``reports.txt``; the option ``--rewrite`` writes them anew.
"""

import re
import textwrap
from pathlib import Path

import pytest

from drumbeat.agent.failures.report import (
    WIDTH,
    FailedWorker,
    FailureReport,
    Position,
    render_report,
)
from drumbeat.agent.session.verdict import read_report
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2

REPORTS = Path(__file__).parent / "reports.txt"


def a_record(rank: int, **fields: object) -> failure_pb2.FailureRecord:
    worker = failure_pb2.WorkerRanks(
        rank=rank, local_rank=rank % 2, group_rank=rank // 2, role_rank=rank, role="trainer"
    )
    given = {"host": f"node-{rank // 2}", "worker": worker, "exit_code": 1}
    return failure_pb2.FailureRecord(**(given | fields))  # type: ignore[arg-type]


def a_report(**fields: object) -> failure_pb2.FailureReport:
    return failure_pb2.FailureReport(**fields)  # type: ignore[arg-type]


def a_hang(
    *groups: failure_pb2.HangGroup, count: int = 0, summary: str = "rank 3 is slow"
) -> failure_pb2.HangDiagnosis:
    return failure_pb2.HangDiagnosis(
        summary=summary, groups=groups, groups_count=count or len(groups)
    )


def rendered(report: failure_pb2.FailureReport, goodput: str = "") -> str:
    verdict = failure_pb2.Verdict(reason="round 0 failed", report=report, goodput=goodput)
    return render_report(read_report(session_pb2.Exit(verdict=verdict)), "train.py")


CULPRIT = a_record(
    3,
    pid=77,
    exit_code=-11,
    message="first\nsecond",
    explanation="native code\nwent astray",
    traceback="Traceback:\n  File x\n",
    stderr_tail="last words\n",
    output_files=["/logs/run_x/attempt_0/1/stdout.log", "/logs/run_x/attempt_0/1/stderr.log"],
)
HUNG = a_record(
    3,
    message="timer expired",
    hang=failure_pb2.Hang(stacks="Thread 1:\n  File a\n", evidence="process 7: sleeping"),
)
INTERRUPTER = a_record(
    3,
    pid=77,
    exit_code=0,
    interruption=iteration_pb2.INTERRUPTION_KIND_SOFT_TIMEOUT,
    iteration=12,
    message="slow",
)
TERMINATED = a_record(3, exit_code=-9, interruption=iteration_pb2.INTERRUPTION_KIND_TERMINATED)
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
ESCAPES = failure_pb2.HangGroup(count=1, ranks="0", place="in a\nb", activity="\x1b[2J")
CANNOT_TELL = "cannot tell which rank causes the hang: no rank gave a stack (x)"
BOOM, FINALIZE = a_record(0, message="boom"), a_record(1, message="finalize failed")
STOPPED = a_record(0, is_stopped_by_agent=True, message="gone\nmore")

CASES = {
    "a run without a failed worker": a_report(),
    "what ended earlier rounds": a_report(
        earlier=["round 0 failed: rank 1 on a (SIGKILL); restart 1 of 3"]
    ),
    "a cause with everything, and victims": a_report(
        root_causes=[CULPRIT], victims=[STOPPED], victims_count=3, world_size=4
    ),
    "agents that are not called as their hosts": a_report(
        root_causes=[a_record(0, name="node-0"), a_record(1, name="left")],
        victims=[a_record(1, name="node-0#2")],
        victims_count=1,
        world_size=2,
    ),
    "causes too close to tell apart": a_report(
        root_causes=[a_record(0), a_record(2)], world_size=2
    ),
    "a cause that nobody reported": a_report(victims_count=2, world_size=2),
    "empty messages": a_report(
        root_causes=[a_record(0)], victims=[a_record(1, message=" \n")], victims_count=1
    ),
    "a worker that hung": a_report(
        root_causes=[HUNG],
        progress=[failure_pb2.RankProgress(rank=3, host="node-1")],
        progress_count=1,
        world_size=1,
    ),
    "a cause that interrupted an iteration": a_report(
        root_causes=[INTERRUPTER], victims=[INTERRUPTER], victims_count=1, world_size=2
    ),
    "a cause that interrupted an iteration by its end": a_report(
        root_causes=[TERMINATED], world_size=1
    ),
    "control characters": a_report(
        root_causes=[
            a_record(0, message="\x1b]0;t\x07", stderr_tail="\x1b[31mred\x1b[0m\x1b[2J\n")
        ],
        world_size=1,
    ),
    "a victim with several records, which is a cause as well": a_report(
        root_causes=[BOOM], victims=[BOOM, FINALIZE, FINALIZE], victims_count=1, world_size=2
    ),
    "where all ranks were when the round hung": a_report(
        root_causes=[a_record(3, exit_code=-15)],
        world_size=4,
        hang=a_hang(CAUSE, WAITING, count=4),
    ),
    "a hang whose cause is not known": a_report(
        victims=[a_record(0, is_stopped_by_agent=True)],
        victims_count=1,
        world_size=3,
        hang=a_hang(WAITING, summary=CANNOT_TELL),
    ),
    "several causes of a hang": a_report(
        root_causes=[a_record(2), a_record(3)], world_size=4, hang=a_hang(CAUSE)
    ),
    "a hang without groups": a_report(root_causes=[a_record(0)], world_size=1, hang=a_hang()),
    "words of a worker that begin no line": a_report(
        root_causes=[a_record(0)], world_size=1, hang=a_hang(ESCAPES)
    ),
}


def test_every_report_is_as_it_was_when_somebody_read_it(request: pytest.FixtureRequest) -> None:
    texts = {title: rendered(report) for title, report in CASES.items()}
    texts["what the time went into"] = rendered(a_report(), "trained 80.0% of 1 h\x1b[2J")
    text = "\n".join(f"-- {title}\n{report}\n" for title, report in texts.items())
    if request.config.getoption("--rewrite"):
        REPORTS.write_text(text)
    assert text == REPORTS.read_text()


def test_a_verdict_without_a_hang_has_no_diagnosis() -> None:
    assert read_report(session_pb2.Exit(verdict=failure_pb2.Verdict())).hang is None


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
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    # Each of them, and of a victim its name and the first line of its message.
    assert text.count("pwned") == 1 + 1 + 1 + 9 + 2 + 2 + 1
    lines = text.splitlines()
    assert [
        line for line in lines if line.startswith(("2026", "====")) and line != "=" * WIDTH
    ] == []


def test_the_sample_of_the_docs_is_such_a_report() -> None:
    page = (Path(__file__).parents[3] / "docs/errors.md").read_text()
    sample = page.partition("```text\n")[2].partition("\n```")[0]
    stderr = sample.partition("stderr:\n")[2].partition("\n---")[0]
    (goodput,) = re.findall("goodput: (.*)", sample)
    (pid,) = re.findall(r"pid (\d+)", sample)
    failed = FailedWorker(
        host="gpu7",
        agent="gpu7",
        rank=1,
        local_rank=1,
        role="default",
        exit_code=1,
        pid=int(pid),
        explanation="the program raised an exception, see message",
        message="ValueError: boom",
        stderr_tail=textwrap.dedent(stderr),
    )
    victim = FailedWorker(
        host="gpu7", agent="gpu7", rank=0, local_rank=0, exit_code=-15, is_stopped_by_agent=True
    )
    report = FailureReport(
        reason="round 1 failed: rank 1 on gpu7 (exit code 1, ValueError: boom); "
        "the one restart is used",
        earlier=("round 0 failed: rank 1 on gpu7 (exit code 1, ValueError: boom); restart 1 of 1",),
        goodput=goodput,
        root_causes=(failed,),
        victims=(victim,),
        victims_count=1,
        world_size=2,
    )
    assert render_report(report, "train.py") == sample
