"""Why a run is as it is, in sentences.

What is said of each case is in ``explanations.txt``; the option ``--rewrite`` writes it anew.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from drumbeat.coordinator.api.documents import Document, document_of, status_document
from drumbeat.coordinator.api.explanation import explanation
from drumbeat.v1 import common_pb2 as pb_common
from drumbeat.v1 import failure_pb2 as failures
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration

SENTENCES = Path(__file__).parent / "explanations.txt"
GIB = 2**30
FAILED = failures.VERDICT_CAUSE_WORKER_FAILED
BEATING: Document = {"heartbeat_age_s": 0.1, "step_time_s": 0.1}
NO_COST = "0 of 0 restarts used."  # of runs in which that is not the point
HUNG = "rank 1 on b is in load (data.py:7), 2 ranks wait in all_reduce (a.py:2)"


def event(sequence: int, age_s: float, kind: str, reason: str, caller: str = "") -> pb.RunEvent:
    return pb.RunEvent(
        sequence=sequence,
        age=duration(age_s),
        kind=pb.RunEventKind.Value(f"RUN_EVENT_KIND_{kind}"),
        reason=reason,
        caller=caller,
    )


def explain(
    phase: str = "RUNNING",
    *,
    events: Sequence[pb.RunEvent] = (),
    agents: Sequence[pb.Agent] = (),
    workers: Sequence[Document] = (),
    overview: dict[str, Any] | None = None,
    **run: Any,
) -> Document:
    """Explain a run of this phase; ``run`` are its other fields."""
    given: dict[str, Any] = {"run_id": "mt5", "phase": pb.RunPhase.Value(f"RUN_PHASE_{phase}")}
    shown = pb.Run(**(given | run))
    if phase == "RUNNING":
        reason = f"training, round {shown.round_id} for 1 min"
        health = pb.RunHealth(state=pb.RUN_HEALTH_STATE_HEALTHY, reason=reason)
        shown.health.CopyFrom(health)
    elif phase == "GATHERING":
        reason = f"waiting for its next round: {shown.reason}"
        shown.health.CopyFrom(pb.RunHealth(state=pb.RUN_HEALTH_STATE_WAITING, reason=reason))
    more: dict[str, Any] = {"heartbeat_age": duration(0.1)} if overview is None else overview
    status = status_document(pb.GetOverviewResponse(run=shown, **more), agents, events)
    verdict = document_of(shown.verdict) if shown.HasField("verdict") else None
    return explanation(status, verdict, workers)


def verdict(*causes: failures.FailureRecord, **report: Any) -> failures.Verdict:
    return failures.Verdict(report=failures.FailureReport(root_causes=causes, **report))


def a_hang(**fields: Any) -> failures.HangDiagnosis:
    given: dict[str, Any] = {
        "round_id": 2,
        "summary": HUNG,
        "kind": failures.HANG_KIND_SECTION,
        "scope": "save",
        "limit": duration(20),
        "age": duration(80),
        "causes": [
            failures.HungRank(
                rank=1, agent="b", host="gpu-b", pid=17, place="in load (data.py:7)",
                stacks="the stack", notes="state S", progress=failures.WorkerProgress(step=0),
            )
        ],
        "causes_count": 1,
    }  # fmt: skip
    return failures.HangDiagnosis(**(given | fields))


def hung(phase: str = "RUNNING", *, events: Sequence[pb.RunEvent] = (), **hang: Any) -> Document:
    return explain(phase, events=events, round_id=2, reason="3 agents", hang=a_hang(**hang))


GROUPS = [
    failures.HangGroup(
        count=1, ranks="1", place="in load (data.py:7)", activity="does something else",
        stack='  File "data.py", line 7 in load\n  File "a.py", line 3 in f\n',
        is_cause=True,
    ),
    failures.HangGroup(
        count=2, ranks="0,2", place="in all_reduce (a.py:2)",
        activity="waits for other ranks",
    ),
]  # fmt: skip
KILLED = failures.FailureRecord(
    host="gpu3",
    pid=17,
    exit_code=-9,
    signal_name="SIGKILL",
    worker=failures.WorkerRanks(rank=5),
    explanation="the kernel ran out of memory",
    stderr_tail="one\nlast\x1b[2J\n",
    output_files=["/logs/5/stdout.log", "/logs/5/stderr.log"],
)
AT_A_LIMIT = failures.FailureRecord(
    host="h",
    hang=failures.Hang(
        kind=failures.HANG_KIND_TIMER, scope="save", elapsed=duration(61), evidence="state S"
    ),
)
LEAVING = [
    event(1, 90, "AGENT_ADMITTED", "a joined"),
    event(2, 60, "ROUND_ENDED", "round 0 lost b"),
]
STOPPING = [
    *LEAVING,
    event(3, 9, "STOP_ASKED", "over", caller="t1"),
    event(4, 8, "NOTICE_GIVEN", "stopped by t1: over"),
]
FAILED_AND_ON = [event(1, 70, "ROUND_ENDED", "round 2 failed"), event(2, 60, "ROUND_STARTED", "2")]
DRAINED = pb.Agent(name="d", is_connected=True, is_drained=True, waiting_reason="drained by t1")
SEATED = pb.Agent(name="a", is_connected=True, seat=pb.Seat(), local_world_size=4)
WAITING: dict[str, Any] = {"phase": "GATHERING", "reason": "1 of 2 agents is there"}
STUCK: dict[str, Any] = {"round_id": 1, "reason": "2 agents"}

CASES: dict[str, Document] = {
    "a failed run": explain(
        "ENDED",
        cause=FAILED,
        reason="round 1 failed",
        ended_age=duration(120),
        restarts_used=1,
        restarts_max=1,
        verdict=verdict(KILLED),
        events=[
            event(1, 400, "ROUND_STARTED", "2 agents"),
            event(2, 310, "ROUND_ENDED", "round 0 failed"),
            event(3, 300, "ROUND_STARTED", "2 agents", caller="t1"),
            event(4, 120, "RUN_FAILED", "round 1 failed"),
        ],
    ),
    "a run that failed by a limit, without agents": explain(
        "ENDED", cause=failures.VERDICT_CAUSE_AGENTS_MISSING, verdict=verdict(AT_A_LIMIT)
    ),
    "a run that was stopped": explain(
        "ENDED",
        cause=failures.VERDICT_CAUSE_STOPPED,
        reason="by t1",
        ended_age=duration(60),
        events=[event(1, 70, "ROUND_ENDED", "round 0 failed")],
    ),
    "a failed run that repeated steps": explain(
        "ENDED",
        cause=FAILED,
        verdict=verdict(
            progress=[failures.RankProgress(progress=failures.WorkerProgress(step=120))]
        ),
        overview={"steps_repeated": 40},
    ),
    **{
        f"a run that ends: {kind}": explain(
            "ENDING",
            reason="why",
            events=[event(1, 9, "ROUND_STARTED", "1"), event(2, 1, kind, "why")],
        )
        for kind in ("RUN_STOPPING", "RUN_FAILING")
    },
    "a run that tells its progress, with notes": explain(
        round_id=2,
        reason="2 agents",
        events=[
            event(1, 400, "NOTE_ADDED", "left out", caller="ann"),
            event(2, 300, "NOTE_ADDED", "new data", caller="ann"),
            event(3, 200, "NOTE_ADDED", "checked by hand"),
            event(4, 100, "NOTE_ADDED", "looks good", caller="bob"),
        ],
        overview={
            "heartbeat_age": duration(0.1),
            "progress": pb.Progress(step=7, steps_total=100, steps_per_second=2, step_farthest=9),
        },
    ),
    "a run that gathers": explain(**WAITING),
    "one outside, and a restart asked for after a notice": explain(
        **WAITING,
        agents=[DRAINED],
        events=[
            *LEAVING,
            event(3, 9, "NOTICE_GIVEN", "c got SIGTERM", caller="t2"),
            event(4, 8, "RESTART_ASKED", "new driver", caller="t1"),
        ],
    ),
    "a stop asked for, with its notice": explain(**WAITING, events=STOPPING),
    "a stop that was carried out": explain(
        **WAITING,
        events=[
            *STOPPING,
            event(5, 2, "NOTICE_OVER", "all have saved"),
            event(6, 1, "ROUND_ENDED", "restarted"),
        ],
    ),
    "agents that are silent, and a rank that is behind": explain(
        round_id=2,
        reason="3 agents",
        agents=[
            pb.Agent(
                name=name,
                is_connected=name != "c",
                silence=duration({"b": 4, "c": 12}.get(name, 0)),
                local_world_size=1,
                seat=pb.Seat(group_rank=rank, rank_first=rank),
            )
            for rank, name in enumerate("abc")
        ],
        events=[event(9, 60, "ROUND_ENDED", "round 1 lost c")],
        overview={"behind": "rank 1 on b at step 30", "heartbeat_age": duration(0.1)},
    ),
    "a round after a failure": explain(round_id=3, reason="round 2 failed", events=FAILED_AND_ON),
    "memory that grows, and a straggler": explain(
        **STUCK,
        overview={
            "heartbeat_age": duration(1),
            "memory_growth": [
                pb.MemoryGrowth(
                    rank=3,
                    name="gpu1",
                    worker=failures.WorkerMemory(resident_bytes=9 * GIB, growth_bytes=GIB),
                    used_bytes=14 * GIB,
                    limit_bytes=16 * GIB,
                    is_cgroup=True,
                )
            ],
            "stragglers": [
                pb.Straggler(
                    rank=7, name="gpu3", host="g3", step_time=duration(1.8), median=duration(1)
                )
            ],
            "stragglers_count": 30,
        },
    ),
    "a worker without steps for long": explain(
        **STUCK, workers=[{"heartbeat_age_s": 31, "step_time_s": 1}]
    ),
    "a worker with long steps": explain(
        **STUCK, workers=[{"heartbeat_age_s": 31, "step_time_s": 10}]
    ),
    "a worker without steps for 9 s": explain(
        **STUCK, workers=[{"heartbeat_age_s": 9, "step_time_s": 1}]
    ),
    "a worker that is stopped, and one that is not": explain(
        **STUCK,
        workers=[
            {**BEATING, "rank": rank, "name": "gpu1", "pid": 77, "is_stopped": rank == 3}
            for rank in (2, 3)
        ],
    ),
    "a round without heartbeats": explain(
        round_id=0,
        reason="1 agent",
        round=pb.Round(world_size=4),
        events=[event(1, 300, "ROUND_STARTED", "1 agent")],
        agents=[SEATED, pb.Agent(name="s", is_connected=True)],
        workers=[{"heartbeat_age_s": None, "step_time_s": None}],
        overview={},
    ),
    "a round of an earlier coordinator, which tells no age of heartbeats": explain(
        **STUCK, workers=[BEATING], overview={}
    ),
    "a run that waits before a restart": explain(
        "GATHERING", reason="restart 3 of 10 in 3.8 s: round 2 failed", restarts_max=10
    ),
    "a run that a rule has ended": explain("ENDED", cause=failures.VERDICT_CAUSE_FAILED_BY_RULE),
    "a run without progress": explain("ENDED", cause=failures.VERDICT_CAUSE_NO_PROGRESS),
    "a hang": hung(groups=GROUPS, groups_count=2),
    "a hang of an interpreter that does not end": hung(kind=failures.HANG_KIND_EXIT, scope=""),
    "a hang whose workers are killed": hung(is_ending=True),
    "a hang that has just begun": hung(age=duration(0)),
    "a hang without a known cause": hung(summary="cannot tell", causes=[], causes_count=0),
    "a hang that is over": hung(is_over=True),
    "a hang of the round before": hung(
        round_id=1, events=[event(1, 9, "ROUND_ENDED", "round 1 failed")]
    ),
    "a hang of an earlier round": hung(round_id=0),
    "a hang, and the next round is not yet there": hung("GATHERING"),
    "a hang in the report of a failed run": explain(
        "ENDED",
        round_id=2,
        cause=FAILED,
        hang=a_hang(summary="of the run"),
        verdict=verdict(hang=a_hang(age=None)),
    ),
}


def lines() -> Iterator[str]:
    for title, document in CASES.items():
        yield f"## {title}"
        for part in ("what", "root_cause", "done", "cost", "advice"):
            yield from (f"{part}: {line}" for line in document[part] if line != NO_COST)
        yield ""


def test_every_case_has_its_sentences(request: pytest.FixtureRequest) -> None:
    text = "\n".join(lines())
    if request.config.getoption("--rewrite"):
        SENTENCES.write_text(text)
    assert text == SENTENCES.read_text()


def test_an_explanation_says_which_run_it_is_about() -> None:
    document = CASES["a failed run"]
    assert (document["run_id"], document["phase"]) == ("mt5", "ended")


def test_a_hang_as_a_document() -> None:
    document = document_of(a_hang(is_ending=True, groups=GROUPS, groups_count=2))
    causes, groups = document.pop("causes"), document.pop("groups")
    assert document == {
        "round_id": 2,
        "is_over": False,
        "is_ending": True,
        "age_s": 80.0,
        "summary": HUNG,
        "collective": None,
        "limit": "section save",
        "limit_s": 20.0,
        "causes_count": 1,
        "groups_count": 2,
    }
    cause = {"rank": 1, "name": "b", "host": "gpu-b", "pid": 17, "step": 0}
    about = {"place": "in load (data.py:7)", "stacks": "the stack", "notes": "state S"}
    assert causes == [{**cause, **about, "collective": None}]
    group = {"count": 2, "ranks": "0,2", "place": "in all_reduce (a.py:2)", "stack": ""}
    group["collective"] = ""
    assert groups[1] == {**group, "activity": "waits for other ranks", "is_cause": False}


def test_what_is_not_known_of_a_hang_is_null() -> None:
    document = document_of(failures.HangDiagnosis(causes=[failures.HungRank(rank=3)]))
    assert document["age_s"] is None
    assert (document["causes"][0]["pid"], document["causes"][0]["step"]) == (None, None)
    assert document_of(failures.Verdict())["hang"] is None


def test_workers_of_another_launcher_are_not_asked_for_what_only_an_agent_hears() -> None:
    running = explain(spec=pb_common.RunSpec(launcher="torchrun"), overview={})
    assert (running["advice"], running["cost"]) == ([], ["Restarts are counted by torchrun."])
    (advice,) = explain("GATHERING", spec=pb_common.RunSpec(launcher="torchrun"))["advice"]
    assert "whether torchrun runs" in advice
