"""Stories of one agent: events in, the whole list of effects out. They are in ``core.txt``."""

from pathlib import Path

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
from drumbeat.agent.core.model import Exit
from drumbeat.agent.errors import RunRefused
from drumbeat.model import Standby, Stop
from tests.support.agent_script import Stories, shown_effects
from tests.support.agents import CONFIG, AgentStory, an_assignment, desired, of

STORIES = Stories(Path(__file__).with_name("core.txt"), shown_effects)


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
