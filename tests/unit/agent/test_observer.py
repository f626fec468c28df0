"""What telemetry tells of an agent's stories. The effects are those of the real core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import Pace, Standby
from drumbeat.agent.errors import RunRefused
from drumbeat.agent.telemetry import Metric
from drumbeat.agent.telemetry.observer import flakiness
from drumbeat.agent.watchdog.core.model import WorkerKey
from drumbeat.agent.watchdog.hang import Hang, HangKind, Standing
from drumbeat.agent.workers.supervisor.messages import WorkerError
from tests.support.inprocess.values import (
    a_begin,
    a_complete,
    an_interrupt,
    breaks,
    completes,
    directed,
    enters,
)
from tests.support.observed import EPOCH_S, START, Watched, a_round

if TYPE_CHECKING:
    from collections.abc import Callable


def counters(story: Watched) -> dict[str, float]:
    names = ("total", "success_with_retries", "success_no_retries", "failed_with_retries",
             "failed_no_retries")  # fmt: skip
    return {name: sum(story.metrics(f"workers.trainer.run_{name}")) for name in names}


def test_a_restart_in_process_is_an_event_and_a_retry() -> None:
    """Once, however often it is told, and only if the function does run again."""
    story = Watched()
    story.run()
    story.see(enters(0, 0))
    story.see(enters(1, 0))
    story.see(directed(a_begin(0), attempt=story.attempt))
    story.see(breaks(1, 0))
    for _ in range(2):
        story.see(directed(an_interrupt(0, "rank 1: boom"), attempt=story.attempt))
    assert [event.name for event in story.events()] == []
    story.see(breaks(0, 0, None))
    story.see(enters(0, 1))
    story.see(enters(1, 1))
    for _ in range(2):
        story.see(directed(a_begin(1), attempt=story.attempt), 0.25)
    (event,) = story.events()
    assert event.name == "drumbeat.agent.inprocess.RESTARTED"
    found = {name: event.metadata[name] for name in ("iteration", "duration_ms", "reason")}
    assert found == {"iteration": 1, "duration_ms": 250.0, "reason": "rank 1: boom"}
    for local_rank in (0, 1):
        story.see(completes(local_rank, 1))
    story.see(directed(a_complete(1), attempt=story.attempt))
    story.exit(0)
    story.exit(1)
    story.end(is_success=True)
    story.gone()
    assert counters(story)["success_with_retries"] == 1
    assert counters(story)["success_no_retries"] == 0
    assert story.facts.counts["restarts", "in_process"] == 1


def test_a_worker_that_restarts_in_process_may_still_succeed() -> None:
    story = Watched()
    story.run()
    story.see(enters(0, 0))
    story.see(enters(1, 0))
    story.see(directed(a_begin(0), attempt=story.attempt))
    story.see(breaks(0, 0))
    story.exit(1, -9)
    story.see(directed(an_interrupt(0), attempt=story.attempt))
    story.see(enters(0, 1))
    story.see(directed(a_begin(1, [0]), attempt=story.attempt))
    story.see(completes(0, 1))
    story.see(directed(a_complete(1), attempt=story.attempt))
    story.exit(0)
    story.end(is_success=True)
    story.gone()
    assert story.statuses() == [(0, 0, "SUCCEEDED"), (0, 1, "FAILED")]


def test_a_run_that_succeeds_at_once() -> None:
    story = Watched()
    story.want(Standby(reason="1 of 3"), after_s=1)
    story.run(after_s=2)
    story.exit(0)
    assert story.statuses() == []
    story.exit(1)
    assert story.statuses() == [(0, 0, "SUCCEEDED"), (0, 1, "SUCCEEDED")]
    story.end(is_success=True)
    story.gone()
    assert story.statuses() == [(0, 0, "SUCCEEDED"), (0, 1, "SUCCEEDED")], "told twice"
    assert story.metrics("rendezvous.duration.ms") == [3000.0]
    assert story.metrics("start.duration.ms") == [500.0]
    assert story.metrics("stop.duration.ms") == [250.0]
    assert story.metrics("workers.trainer.remaining_restarts") == [3, 3]
    assert story.metrics("workers.trainer.flakiness") == [0]
    assert counters(story) == {
        "total": 1,
        "success_with_retries": 0,
        "success_no_retries": 1,
        "failed_with_retries": 0,
        "failed_no_retries": 0,
    }
    assert [event.name for event in story.events()] == [
        "drumbeat.worker.status.SUCCEEDED",
        "drumbeat.worker.status.SUCCEEDED",
        "drumbeat.agent.status.SUCCEEDED",
    ]


def results(story: Watched) -> list[str]:
    """Return what worked and what did not, and the states of the workers, in order."""
    states = ("healthy", "succeeded", "failed", "stopped")
    names = {f"workers.trainer.{state}": state for state in states}
    return [
        names.get(item.name, item.name)
        for item in story.items
        if isinstance(item, Metric)
        and (item.name in names or item.name.endswith((".success", ".failure")))
    ]


def test_what_took_time_has_worked_or_not() -> None:
    story = Watched()
    story.run()
    story.exit(0, 1)
    story.want(a_round(1, restarts=1))
    story.exit(1, -15, is_stopped=True)
    story.gone()
    story.started(1)
    story.exit(0, round_id=1)
    story.exit(1, round_id=1)
    story.end(is_success=True)
    story.see(ev.WorkersStopped(round_id=1, stuck_pids=(51,)), 0.25)
    assert results(story) == [
        *("rendezvous.success", "healthy", "start.success"),
        *("rendezvous.success", "failed", "stop.success", "healthy", "start.success"),
        *("succeeded", "stop.failure", "run.success"),
    ]
    assert story.metrics("run.success") == [1]


def test_what_did_not_work_is_told_as_a_failure() -> None:
    story = Watched()
    story.want(a_round())
    story.see(ev.WorkerStartFailed(round_id=0, local_rank=0, message="no such program"))
    story.gone()
    story.want(Standby(reason="1 of 3"))
    story.end(is_success=False, reason="too few came")
    assert results(story) == [
        *("rendezvous.success", "start.failure", "failed", "stop.success"),
        *("rendezvous.failure", "run.failure"),
    ]
    stopped = Watched()
    stopped.run()
    stopped.want(Standby(reason="somebody was lost"))
    stopped.gone()
    assert results(stopped)[-2:] == ["stopped", "stop.success"]


def test_limits_that_are_over_and_signals_for_them_are_told() -> None:
    story = Watched()
    story.run()
    hang = Hang(
        kind=HangKind.TIMER,
        scope="all-reduce",
        limit_s=4.0,
        elapsed_s=4.25,
        standing=Standing(local_rank=1),
        noticed_at=0.0,
    )
    worker = WorkerKey(0, 1)
    story.see(ev.LimitExpired(worker=worker, hang=hang, is_ending=False, signal=0))
    story.see(ev.LimitExpired(worker=worker, hang=hang, is_ending=True, signal=9, pid=77))
    story.see(ev.WorkerSignalled(worker=worker, signum=9, pid=77))
    story.see(ev.WorkerSignalled(worker=WorkerKey(5, 1), signum=15))
    told, child, signalled = story.events()
    assert {**told.metadata, "total_run_time": 0} == {
        "run_id": "r", "hostname": "h", "role": "trainer", "state": "RUNNING",
        "entry_point": "train.py", "total_run_time": 0, "round_id": 0, "restarts": 0,
        "group_rank": 1, "group_world_size": 3, "global_rank": 5, "local_rank": 1,
        "role_rank": 3, "role_world_size": 6, "world_size": 8, "pid": 51, "kind": "TIMER",
        "scope": "all-reduce", "limit": 4.0, "elapsed": 4.25, "signal": 0, "aftermath": None,
    }  # fmt: skip
    assert (told.name, told.source) == ("drumbeat.watchdog.expired", "AGENT")
    assert (child.metadata["signal"], child.metadata["pid"]) == (9, 77)
    assert signalled.name == "drumbeat.watchdog.signalled"
    assert (signalled.metadata["signal"], signalled.metadata["pid"]) == (9, 77)
    story.exit(1, -9)
    story.gone()
    assert story.statuses() == [(0, 0, "TERMINATED"), (0, 1, "FAILED")]


def test_a_worker_event_says_who_where_and_how() -> None:
    story = Watched()
    story.run()
    error = WorkerError(message="ValueError: ü", traceback="Traceback …")
    story.exit(1, 3, error=error)
    story.gone()
    event = story.events()[1]
    assert (event.name, event.source) == ("drumbeat.worker.status.FAILED", "WORKER")
    assert event.timestamp == round((START + 0.75 + EPOCH_S) * 1000)
    raw_error = event.metadata["raw_error"]
    assert isinstance(raw_error, str)
    assert json.loads(raw_error) == {
        "message": {"message": "ValueError: ü", "extraInfo": {"py_callstack": "Traceback …"}}
    }
    assert {**event.metadata, "raw_error": ""} == {
        "run_id": "r", "hostname": "h", "role": "trainer", "state": "FAILED",
        "entry_point": "train.py", "total_run_time": 0.75, "round_id": 0, "restarts": 0,
        "group_rank": 1, "group_world_size": 3, "global_rank": 5, "local_rank": 1,
        "role_rank": 3, "role_world_size": 6, "world_size": 8, "pid": 51, "exit_code": 3,
        "raw_error": "",
    }  # fmt: skip
    line = event.to_json()
    assert "\n" not in line
    assert json.loads(line)["metadata"] == event.metadata


def test_a_failure_stops_the_others_and_the_next_round_succeeds() -> None:
    story = Watched()
    story.run()
    story.exit(0, -9)
    story.exit(1, -15, is_stopped=True)
    assert story.statuses() == [], "told before everything of the round is gone"
    story.want(a_round(1, restarts=1), after_s=2)
    story.gone()
    assert story.statuses() == [(0, 0, "FAILED"), (0, 1, "TERMINATED")]
    failed, stopped = story.events()
    assert "ended by SIGKILL" in str(failed.metadata["raw_error"])
    assert (stopped.metadata["raw_error"], stopped.metadata["exit_code"]) == (None, -15)
    story.started(1)
    story.exit(0, round_id=1)
    story.exit(1, round_id=1)
    story.end(is_success=True)
    story.gone(1)
    assert story.statuses()[2:] == [(1, 0, "SUCCEEDED"), (1, 1, "SUCCEEDED")]
    assert story.metrics("rendezvous.duration.ms") == [0.0, 2000.0]
    assert story.metrics("start.duration.ms") == [500.0, 750.0]
    assert story.metrics("stop.duration.ms") == [2250.0, 250.0]
    assert story.metrics("workers.trainer.remaining_restarts") == [3, 2, 2]
    assert story.metrics("workers.trainer.flakiness") == [25]
    assert counters(story)["success_with_retries"] == 1


def test_durations_belong_to_their_own_round() -> None:
    story = Watched()
    story.run()
    story.want(a_round(1), after_s=1)
    story.gone()
    story.started(1)
    rounds = [
        (item.name.partition(".")[0], item.metadata["round_id"])
        for item in story.items
        if isinstance(item, Metric) and item.name.endswith(".ms")
    ]
    assert rounds == [
        ("rendezvous", 0), ("start", 0), ("rendezvous", 1), ("stop", 0), ("start", 1),
    ]  # fmt: skip
    assert story.metrics("rendezvous.duration.ms")[1] == 0.0, "no wait between two assignments"
    assert story.statuses() == [(0, 0, "TERMINATED"), (0, 1, "TERMINATED")]


def test_a_run_that_fails() -> None:
    story = Watched(max_restarts=0)
    story.run()
    story.exit(0, 1)
    story.gone()
    story.end(is_success=False, reason="no restarts are allowed")
    assert story.metrics("workers.trainer.flakiness") == [100]
    assert counters(story)["failed_no_retries"] == counters(story)["total"] == 1
    end = story.events()[-1]
    assert (end.name, end.source) == ("drumbeat.agent.status.FAILED", "AGENT")
    assert end.metadata["exit_code"] == 1
    assert "no restarts are allowed" in str(end.metadata["raw_error"])


def test_a_worker_that_had_succeeded_before_another_failed_has_succeeded() -> None:
    story = Watched()
    story.run()
    story.exit(0)
    story.exit(1, 1)
    story.gone()
    assert story.statuses() == [(0, 0, "SUCCEEDED"), (0, 1, "FAILED")]


def test_workers_that_end_well_when_stopped_are_terminated() -> None:
    story = Watched()
    story.run()
    story.want(Standby(reason="somebody was lost"))
    story.exit(0, is_stopped=True)
    story.exit(1, is_stopped=True)
    story.gone()
    assert story.statuses() == [(0, 0, "TERMINATED"), (0, 1, "TERMINATED")]
    story.run(1, after_s=4)
    assert story.metrics("rendezvous.duration.ms") == [0.0, 4250.0]


def test_workers_die_with_their_supervisor() -> None:
    story = Watched()
    story.run()
    story.exit(0)
    story.see(ev.SupervisorDied(ending="was ended by SIGKILL"))
    assert story.statuses() == [(0, 0, "SUCCEEDED"), (0, 1, "FAILED")]
    assert [event.metadata["pid"] for event in story.events()] == [50, 51]
    story.run(1, restarts=1)
    story.exit(0, 1, round_id=1)
    story.see(ev.SupervisorDied(ending="was ended by SIGKILL"), 1.0)
    assert story.statuses()[2:] == [(1, 0, "FAILED"), (1, 1, "TERMINATED")]
    assert story.metrics("stop.duration.ms") == [1000.0]


def test_a_worker_that_could_not_be_started() -> None:
    story = Watched()
    story.want(a_round())
    story.see(ev.WorkerStartFailed(round_id=0, local_rank=0, message="no such program"))
    story.gone()
    assert story.statuses() == [(0, 0, "FAILED"), (0, 1, "TERMINATED")]
    failed, other = story.events()
    assert (failed.metadata["exit_code"], failed.metadata["pid"]) == (127, None)
    assert "no such program" in str(failed.metadata["raw_error"])
    assert (other.metadata["exit_code"], other.metadata["pid"]) == (None, None)


def test_an_agent_ended_by_a_signal_knows_no_outcome_of_the_run() -> None:
    story = Watched()
    story.run()
    story.see(ev.SignalReceived(signum=15))
    story.gone()
    assert story.statuses() == [(0, 0, "TERMINATED"), (0, 1, "TERMINATED")]
    end = story.events()[-1]
    assert (end.name, end.metadata["exit_code"]) == ("drumbeat.agent.status.FAILED", 143)
    assert "ended by SIGTERM" in str(end.metadata["raw_error"])
    assert counters(story)["total"] == 0
    assert story.metrics("workers.trainer.flakiness") == []


def test_an_agent_that_is_refused_has_failed_without_a_round() -> None:
    story = Watched()
    refusal = RunRefused("r", "it has ended")
    story.see(ev.SessionLost(attempt=story.attempt, reason="no", refusal=refusal))
    (end,) = story.events()
    assert (end.metadata["round_id"], end.metadata["exit_code"]) == (None, 2)
    assert "it has ended" in str(end.metadata["raw_error"])
    assert counters(story)["total"] == 0


def test_what_is_repeated_or_late_is_told_once() -> None:
    story = Watched()
    story.run()
    story.want(a_round(), after_s=1)
    late = ev.DirectiveReceived(attempt=story.attempt - 1, state=a_round(7))
    story.see(late)
    story.exit(0)
    story.exit(0)
    story.exit(1, round_id=9)
    story.gone(9)
    assert story.statuses() == []
    assert story.metrics("rendezvous.duration.ms") == [0.0]


def test_a_fenced_agent_waits_from_then_on() -> None:
    story = Watched()
    story.run()
    story.see(ev.SessionLost(attempt=story.attempt, reason="given up", is_stale=True))
    story.gone(after_s=1)
    story.attempt += 1
    story.see(
        ev.SessionWelcomed(
            attempt=story.attempt, pace=Pace(heartbeat_interval_s=1, reconnect_delay_max_s=1)
        )
    )
    story.run(2, after_s=2)
    assert story.metrics("rendezvous.duration.ms") == [0.0, 3000.0]


@pytest.mark.parametrize(
    ("remaining", "allowed", "is_failed", "percent"),
    [
        (0, 0, False, 0),
        (3, 3, False, 0),
        (2, 3, False, 25),
        (0, 3, False, 75),
        (1, 2, False, 33),
        (0, 0, True, 100),
        (3, 3, True, 100),
    ],
)
def test_flakiness(remaining: int, allowed: int, is_failed: bool, percent: int) -> None:
    assert flakiness(remaining, allowed, is_failed=is_failed) == percent


def operations(story: Watched) -> dict[str, Callable[[int], None]]:
    """What may happen to an agent, for either of its workers."""
    running = story.core.workers.assignment
    round_id = running.round_id if running is not None else 0

    def assign(_: int) -> None:
        story.latest += 1
        story.want(a_round(story.latest), after_s=1)

    def gone(_: int) -> None:
        if story.core.workers.state in {"SUCCEEDED", "FAILED", "STOPPING"}:
            story.gone(round_id)

    def stopped(rank: int) -> None:
        if story.core.workers.is_stopping:
            story.exit(rank, -15, round_id, is_stopped=True)

    def fenced(_: int) -> None:
        story.see(ev.SessionLost(attempt=story.attempt, reason="given up", is_stale=True))

    def not_started(rank: int) -> None:
        story.see(ev.WorkerStartFailed(round_id=round_id, local_rank=rank, message="no"))

    return {
        "assign": assign,
        "standby": lambda _: story.want(Standby(reason="wait"), after_s=1),
        "end": lambda rank: story.end(is_success=bool(rank)),
        "started": lambda _: story.started(round_id),
        "not started": not_started,
        "succeed": lambda rank: story.exit(rank, 0, round_id),
        "fail": lambda rank: story.exit(rank, 1, round_id),
        "stopped": stopped,
        "gone": gone,
        "died": lambda _: story.see(ev.SupervisorDied(ending="was ended by SIGKILL")),
        "signal": lambda _: story.see(ev.SignalReceived(signum=15)),
        "fenced": fenced,
    }


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(operations(Watched()))), st.integers(0, 1))))
def test_in_any_order_each_worker_of_a_round_is_told_of_once(steps: list[tuple[str, int]]) -> None:
    story = Watched()
    for what, rank in steps:
        operations(story)[what](rank)
    told = sorted((round_id, rank) for round_id, rank, _ in story.statuses())
    rounds = sorted({round_id for round_id, _ in told})
    assert told == [(round_id, rank) for round_id in rounds for rank in (0, 1)]
    agents = [event for event in story.events() if event.source == "AGENT"]
    assert agents == (story.events()[-1:] if story.core._is_finished else [])
    if story.core._is_finished:
        assert rounds == story.rounds, "a round that began is not told of"
    durations = [i for i in story.items if isinstance(i, Metric) and i.name.endswith(".ms")]
    assert all(metric.value >= 0 for metric in durations)


def test_what_happens_is_counted_for_metrics() -> None:
    story = Watched()
    story.run()
    hang = Hang(
        kind=HangKind.PROGRESS,
        scope="",
        limit_s=4.0,
        elapsed_s=4.25,
        standing=Standing(local_rank=1),
        noticed_at=0.0,
    )
    story.see(ev.LimitExpired(worker=WorkerKey(0, 1), hang=hang, is_ending=True, signal=9))
    story.see(ev.LimitExpired(worker=WorkerKey(7, 1), hang=hang, is_ending=True, signal=9))
    story.exit(0, 1)
    story.exit(1, -15, is_stopped=True)
    story.want(a_round(1, restarts=1))
    story.gone()
    story.see(ev.SessionLost(attempt=story.attempt, reason="gone"))
    story.see(ev.SessionLost(attempt=-1, reason="gone"))
    assert story.facts.counts == {
        ("hangs", "progress"): 1,
        ("workers_ended", "failed"): 1,
        ("workers_ended", "terminated"): 1,
        ("rounds", ""): 2,
        ("restarts", "round"): 1,
        ("sessions_lost", ""): 2,
    }
