"""What telemetry tells of an agent's stories. The effects are those of the real core."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.model.hang import Hang, WorkerProgress
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.telemetry import Metric
from drumbeat.agent.telemetry.observer import flakiness
from drumbeat.model import HangKind, Standby
from tests.support.agent_script import Command, Played, Step, Stories, parsed
from tests.support.observed import EPOCH_S, START, Watched, a_round


def lines_of(_command: Command, step: Step) -> Iterator[str]:
    """Return metrics and events as lines, without what they all have."""
    for item in step.items:
        if isinstance(item, Metric):
            yield f"{item.name} {item.value:g}, round {item.metadata['round_id']}"
        else:
            names = ("round_id", "restarts", "local_rank", "pid", "exit_code", "iteration")
            more = ("duration_ms", "reason", "raw_error")
            shown = [
                f"{name} {item.metadata[name]}"
                for name in (*names, *more)
                if item.metadata.get(name) is not None
            ]
            yield f"{item.name}: {', '.join(shown)}"


STORIES = Stories(Path(__file__).with_name("stories.txt"), lines_of)


@pytest.mark.parametrize("title", STORIES.titles())
def test_telemetry_tells_what_its_story_says(title: str, request: pytest.FixtureRequest) -> None:
    STORIES.check(title, request.config)


def test_limits_that_are_over_and_signals_for_them_are_told() -> None:
    story = Watched()
    story.run()
    hang = Hang(
        kind=HangKind.TIMER,
        scope="all-reduce",
        limit_s=4.0,
        elapsed_s=4.25,
        standing=WorkerProgress(local_rank=1),
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
        standing=WorkerProgress(local_rank=1),
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


def test_restarts_in_process_are_counted_apart() -> None:
    played = Played()
    for command in ("iterating", "interrupt 0", "hear 0 0", "hear 1 0", "begin 1 0,1"):
        for _ in played.carry_out(parsed(command)):
            pass
    assert played.facts.counts == {("rounds", ""): 1, ("restarts", "in_process"): 1}
