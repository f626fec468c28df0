"""Stories of one agent: events in, the whole list of effects out. They are in ``core.txt``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import (
    DeadlineReached,
    Event,
    SessionLost,
    SignalReceived,
    WorkerExited,
    WorkersStarted,
    WorkerStartFailed,
)
from drumbeat.agent.core.model import Exit, Standby, Stop
from drumbeat.agent.errors import RunRefused
from drumbeat.agent.watchdog.hang import Purpose
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.inprocess import InterruptionKind
from tests.support.agent_script import Command, Played, Stories, parsed, shown
from tests.support.agents import CONFIG, AgentStory, an_assignment, desired, of
from tests.support.inprocess.values import a_hang, exits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drumbeat.agent.telemetry.history import Line


def effects_of(command: Command, effects: list[fx.Effect], _lines: list[Line]) -> Iterator[str]:
    is_waiting = command.verb == "wait"
    return (shown(each) for each in effects if not (is_waiting and isinstance(each, fx.SendBeat)))


STORIES = Stories(Path(__file__).with_name("core.txt"), effects_of)


@pytest.mark.parametrize("title", STORIES.titles())
def test_a_core_does_what_its_story_says(title: str, request: pytest.FixtureRequest) -> None:
    STORIES.check(title, request.config)


STOPS: dict[str, Event] = {
    "failure": WorkerExited(
        round_id=0, local_rank=0, pid=70, exit_code=1, is_stopped=False, ended_at=99.0
    ),
    "start failure": WorkerStartFailed(round_id=0, local_rank=1, message="cannot start x"),
    "membership change": desired(an_assignment(1)),
    "standby": desired(Standby(reason="surplus")),
    "verdict follows": desired(Stop(reason="round 0 failed")),
    "run failed": desired(Exit(is_success=False, reason="")),
    "run succeeded without us": desired(Exit(is_success=True, reason="")),
    "fenced": SessionLost(attempt=1, reason="lease over", is_stale=True),
    "refused": SessionLost(attempt=1, reason="x", refusal=RunRefused("run", "ended")),
    "signal": SignalReceived(signum=15),
    "grace": DeadlineReached(),
}


@pytest.mark.parametrize("name", STOPS)
def test_every_stop_has_the_one_timeout(name: str) -> None:
    story, after_s = AgentStory().connected(), 0.0
    story.feed(desired(an_assignment()))
    if name != "start failure":
        story.feed(WorkersStarted(round_id=0))
    if name == "grace":
        story.feed(SessionLost(attempt=1, reason="reset"))
        after_s = CONFIG.grace_s + 1
    (stop,) = of(story.feed(STOPS[name], after_s=after_s), fx.StopWorkers)
    assert stop.timeout_s == CONFIG.shutdown_timeout


def record_of(played: Played, ending: WorkerExited) -> fx.WriteFailure:
    effects, _ = played.feed(ending)
    (written,) = of(effects, fx.WriteFailure)
    assert isinstance(written, fx.WriteFailure)
    return written


def iterating() -> Played:
    played = Played()
    assert not [*played.carry_out(parsed("iterating"))]
    return played


def test_the_record_of_a_worker_that_left_has_all_that_its_end_tells() -> None:
    played = iterating()
    [*played.carry_out(parsed("leave 1 0 UNHEALTHY: GPU gone"))]
    error = WorkerError(message="", traceback="T")
    more = {"error": error, "stderr_tail": "last", "explanation": "so"}
    failure = record_of(played, exits(1, 1, ended_at=played.now + 5, **more)).failure
    assert (failure.exit_code, failure.pid, failure.happened_at) == (1, 71, played.now)
    assert (failure.message, failure.traceback) == ("GPU gone", "T")
    assert (failure.stderr_tail, failure.explanation) == ("last", "so")
    assert not failure.is_stopped_by_agent
    assert not failure.is_survived


def test_a_hang_goes_with_the_interruption() -> None:
    hang = a_hang("x", purpose=Purpose.HARD_TIMEOUT, noticed_at=60.0)
    failure = record_of(iterating(), exits(1, -9, hang=hang)).failure
    assert (failure.interruption, failure.hang) == (InterruptionKind.HARD_TIMEOUT, hang)
    assert failure.happened_at == 60.0
