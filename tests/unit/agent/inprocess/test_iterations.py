"""What a host makes of its workers' steps and the coordinator's directives.

The stories are in ``iterations.txt``.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.inprocess.worker import REPORTED_CHARACTERS_MAX
from drumbeat.agent.core.model import Failure, InprocessReport
from drumbeat.agent.model.hang import HangEvidence, Purpose
from drumbeat.agent.model.messages import WorkerError
from drumbeat.inprocess import InprocessStep, InterruptionKind
from tests.support.agent_script import Played, Stories, parsed, shown_effects
from tests.support.agents import of
from tests.support.inprocess.values import a_hang, breaks, exits

K = InterruptionKind
STORIES = Stories(Path(__file__).with_name("iterations.txt"), shown_effects)


@pytest.mark.parametrize("title", STORIES.titles())
def test_a_core_does_what_its_story_says(title: str, request: pytest.FixtureRequest) -> None:
    STORIES.check(title, request.config)


def played(*commands: str) -> Played:
    story = Played()
    for command in commands:
        for _ in story.carry_out(parsed(command)):
            pass
    return story


def record_of(story: Played, event: Any) -> Failure:
    (written,) = of(story.feed(event).effects, fx.WriteFailure)
    failure: Failure = written.failure
    return failure


def test_who_waits_for_others_is_no_message_of_its_own() -> None:
    report = InprocessReport(iteration=0, step=InprocessStep.OUTSIDE, spec=b"x", ahead=(0,))
    assert report.news is None
    running = replace(report, step=InprocessStep.RUNNING)
    assert running.news == InprocessReport(iteration=0, step=InprocessStep.RUNNING)


def test_reports_are_short_and_records_are_not() -> None:
    story = played("iterating")
    assert len(record_of(story, breaks(0, 0, message="x" * 5_000)).message) == 5_000
    assert story.core.workers.inprocess.report is not None
    (why,) = story.core.workers.inprocess.report.interruptions
    assert why.message == "x" * REPORTED_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("ending", "kind", "message"),
    [
        ({"code": -9}, K.TERMINATED, "its process ended: SIGKILL"),
        ({"code": 0}, K.TERMINATED, "it exited with code 0 before the iteration was over"),
        ({"hang": a_hang("x", purpose=Purpose.HARD_TIMEOUT)}, K.HARD_TIMEOUT, "timer"),
        ({"hang": a_hang("x", purpose=Purpose.HEARTBEAT)}, K.UNRESPONSIVE, "timer"),
        ({"hang": a_hang("inprocess hard timeout")}, K.TERMINATED, "timer"),
    ],
)
def test_a_worker_that_ends_by_itself_says_by_that_what_it_was(
    ending: dict[str, Any], kind: InterruptionKind, message: str
) -> None:
    story = played("iterating")
    failure = record_of(story, exits(1, **ending))
    assert (failure.interruption, failure.iteration, failure.rank) == (kind, 0, 3)
    assert failure.happened_at == (98.0 if "hang" in ending else 99.0)
    assert failure.hang == ending.get("hang")
    report = story.core.workers.inprocess.report
    assert report is not None
    assert [left.kind for left in report.terminated] == [kind]
    assert message in report.terminated[0].message


def test_the_record_of_a_worker_that_left_has_all_that_its_end_tells() -> None:
    story = played("iterating", "leave 1 0 UNHEALTHY: GPU gone")
    error = WorkerError(message="", traceback="T")
    more = {"error": error, "stderr_tail": "last", "explanation": "so"}
    failure = record_of(story, exits(1, 1, ended_at=story.now + 5, **more))
    assert (failure.exit_code, failure.pid, failure.happened_at) == (1, 71, story.now)
    assert (failure.message, failure.traceback) == ("GPU gone", "T")
    assert (failure.stderr_tail, failure.explanation) == ("last", "so")
    assert not failure.is_stopped_by_agent
    assert not failure.is_survived


def test_a_worker_that_hung_is_told_with_its_stacks() -> None:
    story = played("iterating")
    hang = a_hang("x", purpose=Purpose.HARD_TIMEOUT)
    story.feed(exits(1, -9, hang=replace(hang, evidence=HangEvidence(stacks="File a.py"))))
    for command in ("interrupt 0", "hear 0 0", "enter 0 1"):
        [*story.carry_out(parsed(command))]
    (step,) = story.carry_out(parsed("begin 1 0"))
    assert [each.details for each in of(step.effects, fx.Tell)] == ["local rank 1:\nFile a.py"]
