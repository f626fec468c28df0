"""What is told of runs as spans: each story against the traces that its journal makes."""

from typing import Any

import msgspec
import pytest

from drumbeat.coordinator.core.run.records import RoundEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.observe.tracing.failures import (
    MESSAGE_CHARACTERS_MAX,
    STACKTRACE_CHARACTERS_MAX,
)
from drumbeat.coordinator.observe.tracing.model import Place, Span
from drumbeat.coordinator.observe.tracing.spans import spans_of
from drumbeat.model import GroupState
from tests.support.journal import round_trip
from tests.support.traces import journal_spans
from tests.support.world import Story, a_running_story


def spans(story: Story) -> list[Span]:
    """Return all spans of a story, as by a coordinator that is a new one for each record."""
    return journal_spans(round_trip(story.journal), is_handed_over=True)


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
