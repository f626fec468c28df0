"""Why a run hangs, or its round before did, in sentences and as a document."""

from __future__ import annotations

from typing import Any

import pytest

from drumbeat.coordinator.api.documents import document_of
from drumbeat.mapping import duration
from drumbeat.v1 import failure_pb2
from drumbeat.v1 import query_pb2 as pb
from tests.unit.coordinator.test_explanation import event, explain

SUMMARY = "rank 1 on b is in load (data.py:7), 2 ranks wait in all_reduce (a.py:2)"
CAUSE = failure_pb2.HungRank(
    rank=1,
    agent="b",
    host="gpu-b",
    pid=17,
    place="in load (data.py:7)",
    stacks="the stack",
    notes="state S",
    progress=failure_pb2.WorkerProgress(step=0),
)
GROUPS = [
    failure_pb2.HangGroup(
        count=1,
        ranks="1",
        place="in load (data.py:7)",
        activity="does something else",
        stack='  File "data.py", line 7 in load\n  File "a.py", line 3 in f\n',
        is_cause=True,
    ),
    failure_pb2.HangGroup(
        count=2, ranks="0,2", place="in all_reduce (a.py:2)", activity="waits for other ranks"
    ),
]
TOLD = [
    "1 rank (1) is in load (data.py:7): the cause",
    'at File "data.py", line 7 in load',
    'at File "a.py", line 3 in f',
    "2 ranks (0,2) are in all_reduce (a.py:2): waits for other ranks",
]


def a_hang(**fields: Any) -> failure_pb2.HangDiagnosis:
    given: dict[str, Any] = {
        "round_id": 2,
        "summary": SUMMARY,
        "kind": failure_pb2.HANG_KIND_SECTION,
        "scope": "save",
        "limit": duration(20),
        "age": duration(80),
        "causes": [CAUSE],
        "causes_count": 1,
        "groups": GROUPS,
        "groups_count": 2,
    }
    return failure_pb2.HangDiagnosis(**(given | fields))


def a_run(hang: failure_pb2.HangDiagnosis | None = None, **fields: Any) -> pb.Run:
    given: dict[str, Any] = {
        "run_id": "r",
        "phase": pb.RUN_PHASE_RUNNING,
        "round_id": 2,
        "reason": "3 agents",
        "hang": hang or a_hang(),
    }
    return pb.Run(**(given | fields))


def test_of_a_run_that_hangs_it_is_told_who_is_the_cause_and_where_to_look() -> None:
    found = explain(a_run())
    assert found["what"] == [
        f"Run r has hung for 1 min 20 s: {SUMMARY}.",
        "It is only reported: nothing is killed. `--progress-timeout auto` kills and restarts.",
    ]
    assert found["root_cause"] == [f"Round 2 hung, 1 min 20 s ago: {SUMMARY}.", *TOLD]
    assert found["advice"] == ["look at rank 1 on b, pid 17"]


def test_of_an_interpreter_that_does_not_end_the_option_that_kills_is_told() -> None:
    found = explain(a_run(a_hang(kind=failure_pb2.HANG_KIND_EXIT, scope="")))
    assert found["what"][1].endswith("`--exit-timeout 5m` kills and restarts.")


def test_of_a_run_whose_workers_are_killed_that_is_told() -> None:
    assert explain(a_run(a_hang(is_ending=True)))["what"][1] == (
        "A worker exceeded its limit and is being killed; then the run restarts or ends."
    )


def test_a_hang_that_has_just_begun_is_told() -> None:
    what = explain(a_run(a_hang(age=duration(0))))["what"]
    assert what[0] == f"Run r has hung for 0 s: {SUMMARY}."


def test_a_hang_without_a_cause_has_no_rank_to_look_at() -> None:
    found = explain(a_run(a_hang(summary="cannot tell", causes=[], causes_count=0)))
    assert found["what"][0] == "Run r has hung for 1 min 20 s: cannot tell."
    assert found["advice"] == []


def test_a_hang_that_is_over_is_told_but_the_run_goes_on() -> None:
    found = explain(a_run(a_hang(is_over=True)))
    assert found["what"] == ["Run r runs round 2.", "The round began: 3 agents."]
    over = f"Round 2 hung, 1 min 20 s ago; then training went on: {SUMMARY}."
    assert found["root_cause"] == [over, *TOLD]
    assert found["advice"] == []


@pytest.mark.parametrize(("hung", "is_told"), [(2, True), (1, True), (0, False)])
def test_the_hang_of_the_round_before_is_why_this_one_runs(hung: int, *, is_told: bool) -> None:
    events = [event(1, 9, "ROUND_ENDED", "round 1 failed")]
    found = explain(a_run(a_hang(round_id=hung), round_id=2), events=events)
    assert found["root_cause"][0] == "Latest, 9 s ago: round 1 failed."
    assert any(f"Round {hung} hung" in line for line in found["root_cause"]) is is_told
    assert (found["what"][0] == "Run r runs round 2.") is (hung < 2)


def test_a_run_that_waits_for_its_next_round_does_not_hang() -> None:
    found = explain(a_run(phase=pb.RUN_PHASE_GATHERING, reason="1 of 2 agents"))
    assert found["what"] == ["Run r waits for its next round: 1 of 2 agents."]
    assert found["root_cause"][0].startswith("Round 2 hung")


def test_a_run_that_has_ended_is_explained_by_the_hang_of_its_report() -> None:
    hang = a_hang()
    hang.ClearField("age")
    verdict = failure_pb2.Verdict(report=failure_pb2.FailureReport(hang=hang))
    run = a_run(
        a_hang(summary="of the run"),
        phase=pb.RUN_PHASE_ENDED,
        cause=failure_pb2.VERDICT_CAUSE_WORKER_FAILED,
        verdict=verdict,
    )
    assert explain(run)["root_cause"] == [f"Round 2 hung: {SUMMARY}.", *TOLD]


def test_a_hang_as_a_document() -> None:
    document = document_of(a_hang(is_ending=True))
    causes, groups = document.pop("causes"), document.pop("groups")
    assert document == {
        "round_id": 2,
        "is_over": False,
        "is_ending": True,
        "age_s": 80.0,
        "summary": SUMMARY,
        "limit": "section save",
        "limit_s": 20.0,
        "causes_count": 1,
        "groups_count": 2,
    }
    assert causes == [
        {
            "rank": 1,
            "name": "b",
            "host": "gpu-b",
            "pid": 17,
            "place": "in load (data.py:7)",
            "step": 0,
            "stacks": "the stack",
            "notes": "state S",
        }
    ]
    assert groups[1] == {
        "count": 2,
        "ranks": "0,2",
        "place": "in all_reduce (a.py:2)",
        "activity": "waits for other ranks",
        "is_cause": False,
        "stack": "",
    }


def test_what_is_not_known_of_a_hang_is_null() -> None:
    document = document_of(failure_pb2.HangDiagnosis(causes=[failure_pb2.HungRank(rank=3)]))
    assert document["age_s"] is None
    assert (document["causes"][0]["pid"], document["causes"][0]["step"]) == (None, None)


def test_a_verdict_without_a_hang_says_so() -> None:
    assert document_of(failure_pb2.Verdict())["hang"] is None
