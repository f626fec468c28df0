"""Why a run is as it is, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from drumbeat.coordinator.api.documents import document_of, status_document
from drumbeat.coordinator.command.looking.explanation import explanation
from drumbeat.mapping import duration
from drumbeat.v1 import failure_pb2
from drumbeat.v1 import query_pb2 as pb


def event(sequence: int, age_s: float, kind: str, reason: str, caller: str = "") -> pb.RunEvent:
    return pb.RunEvent(
        sequence=sequence,
        age=duration(age_s),
        kind=pb.RunEventKind.Value(f"RUN_EVENT_KIND_{kind}"),
        reason=reason,
        caller=caller,
    )


def explain(run: pb.Run, *agents: pb.Agent, events: Any = (), behind: str = "") -> dict[str, Any]:
    verdict = document_of(run.verdict) if run.HasField("verdict") else None
    overview = pb.GetOverviewResponse(run=run, behind=behind, heartbeat_age=duration(0.1))
    return explanation(status_document(overview, agents, events), verdict)


def test_memory_that_grows_is_told_with_how_much_is_left() -> None:
    gib = 2**30
    grows = pb.MemoryGrowth(
        rank=3,
        name="gpu1",
        worker=failure_pb2.WorkerMemory(resident_bytes=9 * gib, growth_bytes=gib),
        used_bytes=14 * gib,
        limit_bytes=16 * gib,
        is_cgroup=True,
    )
    run = pb.Run(run_id="mt5", phase=pb.RUN_PHASE_RUNNING, reason="3 agents")
    overview = pb.GetOverviewResponse(run=run, memory_growth=[grows])
    what = explanation(status_document(overview, ()), None)["what"]
    assert (
        "Rank 3 on gpu1 uses 9.0 GiB of memory, 1.0 GiB more a minute; its cgroup is at 14.0 GiB "
        "of 16.0 GiB." in what
    )


def test_a_failed_run_is_explained_by_its_root_cause() -> None:
    cause = failure_pb2.FailureRecord(
        host="gpu3",
        pid=17,
        exit_code=-9,
        signal_name="SIGKILL",
        worker=failure_pb2.WorkerRanks(rank=5),
        explanation="the kernel ran out of memory",
        stderr_tail="one\nlast\x1b[2J\n",
    )
    report = failure_pb2.FailureReport(root_causes=[cause])
    run = pb.Run(
        run_id="mt5",
        phase=pb.RUN_PHASE_ENDED,
        cause=failure_pb2.VERDICT_CAUSE_WORKER_FAILED,
        reason="round 1 failed",
        ended_age=duration(120),
        restarts_used=1,
        restarts_max=1,
        verdict=failure_pb2.Verdict(report=report),
    )
    events = [
        event(1, 400, "ROUND_STARTED", "2 agents"),
        event(2, 310, "ROUND_ENDED", "round 0 failed"),
        event(3, 300, "ROUND_STARTED", "2 agents", caller="t1"),
        event(4, 120, "RUN_FAILED", "round 1 failed"),
    ]
    assert explain(run, events=events) == {
        "run_id": "mt5",
        "phase": "ended",
        "what": ["Run mt5 failed 2 min ago: round 1 failed."],
        "root_cause": [
            "Rank 5 on gpu3, pid 17 was ended by SIGKILL.",
            "Likely why: the kernel ran out of memory",
            "Last line of its standard error: last\\x1b[2J",
        ],
        "done": [
            "6 min 40 s ago, round started: 2 agents.",
            "5 min 10 s ago, round ended: round 0 failed.",
            "5 min ago, round started (asked for by t1): 2 agents.",
        ],
        "cost": [
            "1 of 1 restart used.",
            "10 s without a round, 1 time, as far as it is known.",
        ],
        "advice": [
            "look for lack of memory or for an operator's kill on gpu3",
            "correct the cause and start again; --max-restarts gives a run more tries",
        ],
    }


def test_of_a_run_that_goes_on_it_is_said_who_is_waited_for() -> None:
    agents = [
        pb.Agent(
            name=name,
            is_connected=name != "c",
            silence=duration({"b": 4, "c": 12}.get(name, 0)),
            local_world_size=1,
            seat=pb.Seat(group_rank=rank, rank_first=rank),
        )
        for rank, name in enumerate("abc")
    ]
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_RUNNING, round_id=2, reason="3 agents")
    events = [event(9, 60, "ROUND_ENDED", "round 1 lost c")]
    found = explain(run, *agents, events=events, behind="rank 1 on b at step 30")
    assert found["what"] == [
        "Run r runs round 2.",
        "The round began: 3 agents.",
        "Behind the others: rank 1 on b at step 30.",
        "Not connected: c (last heard 12 s ago).",
        "Silent: b (4 s).",
    ]
    assert found["root_cause"] == ["Latest, 1 min ago: round 1 lost c."]
    assert found["advice"] == [
        "look at rank 1 on b first",
        "`coordinator stacks r` shows where all ranks are now",
    ]


def test_a_hang_and_a_run_without_agents_have_their_advice() -> None:
    hang = failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER, scope="save", elapsed=duration(61), evidence="state S"
    )
    report = failure_pb2.FailureReport(root_causes=[failure_pb2.FailureRecord(hang=hang, host="h")])
    failed = pb.Run(
        run_id="r",
        phase=pb.RUN_PHASE_ENDED,
        cause=failure_pb2.VERDICT_CAUSE_AGENTS_MISSING,
        verdict=failure_pb2.Verdict(report=report),
    )
    found = explain(failed)
    assert found["root_cause"][0] == "Rank 0 on h hung (timer save) and was ended after 1 min 1 s."
    assert "start the agents that are missing" in found["advice"][0]
    waiting = pb.Run(run_id="r", phase=pb.RUN_PHASE_GATHERING, reason="1 of 2 agents is there")
    assert explain(waiting)["what"] == ["Run r waits for its next round: 1 of 2 agents is there."]


def test_a_run_that_was_stopped_has_not_failed() -> None:
    cause, age = failure_pb2.VERDICT_CAUSE_STOPPED, duration(60)
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_ENDED, cause=cause, reason="by t1", ended_age=age)
    found = explain(run, events=[event(1, 70, "ROUND_ENDED", "round 0 failed")])
    assert found["what"] == ["Run r was stopped 1 min ago: by t1."]
    assert found["root_cause"] == []


@pytest.mark.parametrize(
    ("kind", "how"), [("RUN_STOPPING", "is being stopped"), ("RUN_FAILING", "has failed")]
)
def test_a_run_that_ends_says_whether_it_failed_or_is_being_stopped(kind: str, how: str) -> None:
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_ENDING, reason="why")
    found = explain(run, events=[event(1, 9, "ROUND_STARTED", "1"), event(2, 1, kind, "why")])
    assert found["what"] == [f"Run r {how}; it waits for its workers to end: why."]


def test_of_a_round_after_a_failure_it_is_said_first_that_it_runs() -> None:
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_RUNNING, round_id=3, reason="round 2 failed")
    events = [event(1, 70, "ROUND_ENDED", "round 2 failed"), event(2, 60, "ROUND_STARTED", "2")]
    found = explain(run, events=events)
    assert found["what"] == ["Run r runs round 3.", "The round began 1 min ago: round 2 failed."]


def test_a_wait_a_planned_change_and_who_waits_outside_are_told() -> None:
    drained = pb.Agent(name="d", is_connected=True, is_drained=True, waiting_reason="drained by t1")
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_GATHERING, reason="1 of 2 agents is there")
    events = [
        event(1, 90, "AGENT_ADMITTED", "a joined"),
        event(2, 60, "ROUND_ENDED", "round 0 lost b"),
        event(3, 9, "NOTICE_GIVEN", "c got SIGTERM", caller="t2"),
        event(4, 8, "RESTART_ASKED", "new driver", caller="t1"),
    ]
    told = explain(run, drained, events=events)["what"]
    assert told[1:] == [
        "It has waited for 1 min.",
        "A change is to come: c got SIGTERM (asked for by t2); training saves before it.",
        "A restart is under way (asked for by t1): new driver.",
        "Waiting outside: d, drained by t1.",
    ]
    events[2:] = [
        event(3, 9, "STOP_ASKED", "over", caller="t1"),
        event(4, 8, "NOTICE_GIVEN", "stopped by t1: over"),
    ]
    assert explain(run, events=events)["what"][2:] == [
        "A change is to come: stopped by t1: over; training saves before it."
    ]
    events += [
        event(5, 2, "NOTICE_OVER", "all have saved"),
        event(6, 1, "ROUND_ENDED", "restarted"),
    ]
    assert explain(run, events=events)["what"][1:] == ["It has waited for 1 s."]


def test_steps_that_were_lost_are_a_cost() -> None:
    standing = failure_pb2.RankProgress(progress=failure_pb2.WorkerProgress(step=120))
    report = failure_pb2.FailureReport(progress=[standing])
    failed = pb.Run(
        run_id="r",
        phase=pb.RUN_PHASE_ENDED,
        cause=failure_pb2.VERDICT_CAUSE_WORKER_FAILED,
        verdict=failure_pb2.Verdict(report=report),
    )
    overview = pb.GetOverviewResponse(run=failed, steps_repeated=40)
    found = explanation(status_document(overview, (), ()), document_of(failed.verdict))
    assert found["cost"][1:] == [
        "At least 40 steps computed again after restarts.",
        "The furthest worker was at step 120; what it computed after its last checkpoint is lost.",
    ]


@pytest.mark.parametrize(
    ("beat_s", "step_s", "is_told"), [(31, 1, True), (31, 10, False), (9, 1, False)]
)
def test_where_workers_make_no_step_stacks_are_advised(
    beat_s: float, step_s: float, is_told: bool
) -> None:
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_RUNNING)
    overview = pb.GetOverviewResponse(run=run, heartbeat_age=duration(beat_s))
    status = status_document(overview, (), ())
    worker = {"heartbeat_age_s": beat_s, "step_time_s": step_s}
    advice = explanation(status, None, [worker])["advice"]
    assert advice == ["`coordinator stacks r` shows where all ranks are now"] * is_told


def test_workers_that_are_stopped_are_named() -> None:
    run = pb.Run(run_id="r", phase=pb.RUN_PHASE_RUNNING)
    status = status_document(pb.GetOverviewResponse(run=run), (), ())
    worker = {
        "rank": 3, "name": "gpu1", "pid": 77, "heartbeat_age_s": 1.0, "step_time_s": 1.0,
    }  # fmt: skip
    stopped = worker | {"is_stopped": True}
    told = explanation(status, None, [worker | {"rank": 2, "is_stopped": False}, stopped])["what"]
    assert told[-1] == (
        "Stopped (SIGSTOP, a similar signal or a debugger; SIGCONT continues a process): "
        "rank 3 on gpu1, pid 77."
    )
    assert explanation(status, None, [worker])["what"] == told[:-1]


def test_who_is_slow_is_told_beside_its_peers() -> None:
    run = pb.Run(run_id="mt5", phase=pb.RUN_PHASE_RUNNING, reason="2 of 2 agents are there")
    slow = pb.Straggler(
        rank=7, name="gpu3", host="gpu3", step_time=duration(1.8), median=duration(1)
    )
    overview = pb.GetOverviewResponse(
        run=run, stragglers=[slow], stragglers_count=30, heartbeat_age=duration(1)
    )
    told = explanation(status_document(overview, (), ()), None)["what"]
    assert told[-1] == "Rank 7 on gpu3 takes 1.8 s for a step, the median of its peers is 1 s."


def test_without_heartbeats_what_is_known_is_told_and_how_to_learn_more() -> None:
    seated = pb.Agent(name="a", is_connected=True, seat=pb.Seat(), local_world_size=4)
    standby = pb.Agent(name="s", is_connected=True)
    run = pb.Run(
        run_id="r",
        phase=pb.RUN_PHASE_RUNNING,
        round_id=0,
        reason="1 agent",
        round=pb.Round(world_size=4),
    )
    events = [event(1, 300, "ROUND_STARTED", "1 agent")]
    status = status_document(pb.GetOverviewResponse(run=run), [seated, standby], events)
    found = explanation(status, None, [{"heartbeat_age_s": None, "step_time_s": None}])
    assert found["what"] == [
        "Run r runs round 0 with 4 workers on 1 agent.",
        "The round began 5 min ago: 1 agent.",
        "No worker tells its progress: none has called worker_sdk.heartbeat() in this round.",
    ]
    assert found["advice"] == [
        "`coordinator stacks r` shows where all ranks are now",
        (
            "call worker_sdk.heartbeat(step=…) after each step: steps, their times and the ranks "
            "that are behind are then shown here"
        ),
    ]
    beating = [{"heartbeat_age_s": 0.1, "step_time_s": 0.1}]
    assert len(explanation(status, None, beating)["what"]) == 2, "an earlier coordinator tells less"
