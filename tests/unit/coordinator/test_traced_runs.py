"""What is told of runs as spans: each story against the traces that its journal makes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drumbeat.coordinator.core.model import GroupState, Hang, HangKind
from drumbeat.coordinator.core.run.records import RoundEnded, RunEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.observations import SILENT_MAX
from drumbeat.coordinator.observe.tracing.failures import (
    MESSAGE_CHARACTERS_MAX,
    STACKTRACE_CHARACTERS_MAX,
)
from drumbeat.coordinator.observe.tracing.model import Place, Span
from drumbeat.coordinator.observe.tracing.spans import spans_of
from drumbeat.coordinator.observe.worker_progress import WorkerProgress
from drumbeat.durations import SECOND
from tests.support.journal import round_trip
from tests.support.traces import told
from tests.support.world import START, Story, a_running_story, a_spec


def spans(story: Story) -> list[Span]:
    """Return all spans of a story, as by a coordinator that is a new one for each record."""
    return told(round_trip(story.journal), is_handed_over=True)


def times(story: Story) -> list[tuple[str, float, float]]:
    """Return names of spans, the seconds from the story's start to theirs, how long they took."""
    return [
        (span.name, span.start / SECOND - START, (span.end - span.start) / SECOND)
        for span in spans(story)
    ]


def named(story: Story, name: str) -> list[Span]:
    return [span for span in spans(story) if span.name == name]


def train(story: Story, steps: range) -> None:
    for step in steps:
        story.advance(1.0)
        for name, agent in story.agents.items():
            if agent.session_id is not None and not agent.is_silent:
                at = WorkerProgress(local_rank=0, step=step, heartbeat_age_s=0.0)
                story.beat(name, GroupState.RUNNING, workers=(at,))
    for agent in story.agents.values():
        agent.workers = ()


def test_a_start_lasts_from_the_first_agent_to_the_first_progress() -> None:
    story = Story(spec=a_spec(2))
    story.join("a")
    story.advance(30.0)
    story.join("b")
    story.obey_all()
    story.advance(5.0)
    train(story, range(3))
    assert times(story) == [("waiting", 0.0, 30.0), ("starting", 30.0, 6.0), ("start", 0.0, 36.0)]
    waiting, starting, start = spans(story)
    assert {waiting.parent, starting.parent} == {start.place}
    assert start.attributes == {
        "drumbeat.run.id": "run",
        "drumbeat.run.generation": 1,
        "drumbeat.round.id": 0,
        "drumbeat.round.reason": "2 of 2 agents are there",
        "drumbeat.round.agents": 2,
        "drumbeat.round.world_size": 2,
        "drumbeat.restart.cause": "START",
        "drumbeat.restart.count": 0,
    }


def a_healed_story() -> Story:
    """Return a story that trains again 9 s after rank 1 failed, and 11 s before it had reached."""
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.fail("b")
    story.record("b", message="RuntimeError: no loss, drumbeat1.view.a.secretsecret", traceback="x")
    story.advance(7.0)
    story.beat("a", GroupState.STOPPING, workers_alive=0)
    story.advance(1.0)
    story.obey_all()
    train(story, range(10, 12))
    return story


def test_a_restart_lasts_from_the_decision_to_the_first_progress_with_its_cause() -> None:
    story = a_healed_story()
    assert times(story)[2:] == [
        ("round", 0.0, 20.0),
        ("stopping", 20.0, 7.0),
        ("starting", 27.0, 2.0),
        ("restart", 20.0, 9.0),
    ]
    restart, (failed,) = named(story, "restart")[0], named(story, "round")
    assert restart.attributes["drumbeat.restart.cause"] == "WORKER_FAILED"
    assert restart.attributes["drumbeat.restart.host"] == "b"
    assert restart.error == "", "it came to its end"
    (failure,) = restart.moments
    assert failure.name == "exception"
    assert failure.attributes["exception.type"] == "RuntimeError"
    assert failure.attributes["exception.message"] == (
        "RuntimeError: no loss, drumbeat1.view.a.[secret]"
    )
    assert failure.attributes["drumbeat.worker.rank"] == 1
    assert failed.error == "round 0 failed: a worker on b; restart 1 of 1"
    assert failed.attributes["error.type"] == "WORKER_FAILED"
    follows = {link.relation: link.place for link in restart.links}
    assert follows["follows"] == failed.place
    assert follows["run"] == Place.of(story.state(), "run")


def test_the_end_of_a_run_tells_of_all_of_it() -> None:
    story = a_healed_story()
    story.succeed("a")
    story.succeed("b")
    run, rounds = named(story, "run")[0], named(story, "round")
    assert [each.attributes["drumbeat.round.id"] for each in rounds] == [0, 1]
    assert (rounds[1].error, run.error) == ("", "")
    assert (run.start, run.end) == (round(START * SECOND), rounds[1].end)
    assert run.attributes["drumbeat.run.cause"] == "SUCCEEDED"
    assert run.attributes["drumbeat.run.restarts"] == 1
    assert str(run.attributes["drumbeat.run.goodput"]).startswith("trained ")


def test_of_a_failed_run_the_report_tells_the_root_cause() -> None:
    story = a_running_story(2)
    train(story, range(20))
    story.fail("b")
    story.advance(3.0)
    story.record("b", sequence=1, message="ValueError: nan")
    story.beat("a", GroupState.IDLE, workers_alive=0)
    story.advance(60.0)
    (ended,) = story.records(RunEnded)
    run, stopping = named(story, "run")[0], named(story, "stopping")[0]
    assert run.error == ended.verdict.reason
    assert run.attributes["error.type"] == "WORKER_FAILED"
    assert [each.attributes["exception.message"] for each in run.moments] == ["ValueError: nan"]
    assert (stopping.parent, stopping.end) == (run.place, run.end)


def test_a_hang_is_detected_from_the_last_progress_on() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(20))
    story.advance(40.0)
    hang = Hang(kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=40.0, scope="step")
    story.record("b", hang=hang)
    story.fail("b")
    (detecting,), (round_,) = named(story, "detecting"), named(story, "round")
    assert (detecting.parent, detecting.end - detecting.start) == (round_.place, 40 * SECOND)
    assert round_.attributes["error.type"] == "HANG"
    assert round_.attributes["drumbeat.agent.name"] == "b"
    (failure,) = round_.moments
    assert failure.attributes["exception.type"] == "Hang.PROGRESS"
    assert failure.attributes["drumbeat.hang.scope"] == "step"


def test_a_round_that_never_progressed_makes_its_restart_fail() -> None:
    story = a_running_story(2, restarts_max=2)
    story.advance(3.0)
    story.agents["b"].state = GroupState.STARTING
    train(story, range(2))
    story.fail("a")
    story.beat("b", GroupState.IDLE, workers_alive=0)
    for name in "ab":
        story.obey(name)
    story.fail("b")
    (restart,) = named(story, "restart")
    assert restart.error == (
        "round 1 ended before it progressed: round 1 failed: a worker on b; restart 2 of 2"
    )
    assert [each.attributes["drumbeat.round.id"] for each in named(story, "round")] == [0, 1]


def test_planned_ends_are_no_errors() -> None:
    story = a_running_story(1, 2)
    train(story, range(3))
    story.join("b")
    story.advance(story.spec.last_call_s)
    assert story.records(RoundEnded)
    (ended,) = named(story, "round")
    assert ended.error == ""
    assert ended.attributes["drumbeat.round.end"] == "1 more joined the 1 of the round"


def test_agents_that_never_come_back_make_a_restart_that_fails() -> None:
    story = a_running_story(2, restarts_max=1, join_timeout_s=60.0)
    train(story, range(5))
    story.leave("b")
    story.advance(2.0)
    story.obey_all()
    story.advance(61.0)
    (restart,), (run,) = named(story, "restart"), named(story, "run")
    assert restart.error == run.error != ""
    assert [span.name for span in spans(story) if span.parent == restart.place] == [
        "stopping",
        "waiting",
    ]


def test_iterations_and_restarts_in_process_are_parts_of_their_round() -> None:
    story = a_running_story(2)
    for name in ("a", "b"):
        story.enter(name)
    story.obey_all()
    train(story, range(10))
    story.interrupt("a", message="RuntimeError: oh")
    story.advance(2.0)
    story.interrupt("b")
    story.enter("a")
    story.advance(3.0)
    story.enter("b")
    story.obey_all()
    train(story, range(8, 15))
    story.complete("a")
    story.complete("b")
    assert times(story)[2:] == [
        ("iteration", 0.0, 10.0),
        ("restart in process", 10.0, 5.0),
        ("iteration", 15.0, 7.0),
    ]
    first, restart, second = spans(story)[2:]
    assert "RuntimeError: oh" in first.error
    assert (restart.error, second.error) == ("", "")
    assert [each.attributes["drumbeat.iteration.id"] for each in (first, restart, second)] == [
        0,
        1,
        1,
    ]
    story.succeed("a")
    story.succeed("b")
    (round_,) = named(story, "round")
    assert {first.parent, restart.parent, second.parent} == {round_.place}


def test_a_round_that_fails_in_an_iteration_ends_it() -> None:
    story = a_running_story(2, restarts_max=1)
    for name in ("a", "b"):
        story.enter(name)
    story.obey_all()
    train(story, range(10))
    story.fail("b")
    (iteration,), (round_,) = named(story, "iteration"), named(story, "round")
    assert (iteration.end, iteration.error) == (round_.end, round_.error)


def test_workers_that_tell_no_heartbeat_progress_since_they_run() -> None:
    story = a_running_story(2)
    story.advance(SILENT_MAX / SECOND - 1.0)
    assert named(story, "start") == []
    story.advance(62.0)
    (start,) = named(story, "start")
    assert start.end == start.start
    train(story, range(3))
    assert len(named(story, "start")) == 1, "it is told once"


def test_of_a_short_run_without_heartbeats_the_start_is_told_at_its_end() -> None:
    story = a_running_story(2)
    story.advance(20.0)
    story.succeed("a")
    story.succeed("b")
    (start,) = named(story, "start")
    assert (start.end - start.start, start.error) == (0, "")


def test_what_is_told_of_a_failure_is_bounded() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(3))
    for _ in range(20):
        story.record("b", message="E" * 10_000, traceback="t" * 100_000 + "end", happened_at=1.0)
    story.fail("b")
    story.obey_all()
    train(story, range(3))
    (restart,) = named(story, "restart")
    assert len(restart.moments) == 4
    for each in restart.moments:
        assert len(str(each.attributes["exception.message"])) == MESSAGE_CHARACTERS_MAX
        stack = str(each.attributes["exception.stacktrace"])
        assert len(stack) == STACKTRACE_CHARACTERS_MAX
        assert stack.endswith("end")


def test_a_round_that_a_coordinator_of_before_began_is_not_told() -> None:
    story = a_running_story(2, restarts_max=1)
    train(story, range(3))
    document = msgspec.json.decode(msgspec.json.encode(story.state()))
    del document["observed"]["times"]
    old = msgspec.convert(document, type=RunState)
    story.fail("b")
    (ended,) = story.records(RoundEnded)
    assert spans_of(old, ended) == []


@pytest.mark.parametrize("other", [{"run_id": "other"}, {"generation": 2}, {"began": 7}])
def test_no_two_runs_have_a_trace_in_common(other: dict[str, Any]) -> None:
    state = a_running_story(1).state()
    before = Place.of(state, "round", 3)
    assert before == Place.of(state, "round", 3)
    assert before.trace_id != Place.of(state, "round", 4).trace_id
    if "began" in other:
        state.observed.ledger.began = other["began"]
    else:
        for name, value in other.items():
            setattr(state, name, value)
    assert Place.of(state, "round", 3).trace_id != before.trace_id
