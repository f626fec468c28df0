"""Impossible starts, signals for the workers, and the one stop timeout."""

from __future__ import annotations

import pytest

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import (
    DeadlineReached,
    Event,
    SessionLost,
    SignalReceived,
    SupervisorDied,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from drumbeat.agent.core.model import Exit, GroupState, Standby, Stop
from drumbeat.agent.errors import RunRefused
from tests.support.agents import CONFIG, AgentStory, a_beat, an_assignment, desired, of

S = GroupState
TERM = 15
LOST = SessionLost(attempt=1, reason="connection reset")


def an_exit(local_rank: int, code: int, *, stopped: bool = False) -> WorkerExited:
    return WorkerExited(
        round_id=0,
        local_rank=local_rank,
        pid=70 + local_rank,
        exit_code=code,
        is_stopped=stopped,
        ended_at=99.0,
    )


def a_stop() -> fx.StopWorkers:
    return fx.StopWorkers(round_id=0, signum=TERM, timeout_s=CONFIG.shutdown_timeout)


# A command that can't be started.


def a_start_failure(local_rank: int = 0, round_id: int = 0) -> WorkerStartFailed:
    return WorkerStartFailed(round_id=round_id, local_rank=local_rank, message="cannot start x")


def test_a_first_worker_that_cannot_be_started_makes_the_start_impossible() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    (sent,) = of(story.feed(a_start_failure()), fx.SendBeat)
    assert (sent.beat.state, sent.beat.is_start_impossible) == (S.FAILED, True)
    effects = story.feed(desired(Stop(reason="it could not start")))
    assert [sent.beat.is_start_impossible for sent in of(effects, fx.SendBeat)] == [False]
    story.feed(WorkersStopped(round_id=0))
    # Nothing has run meanwhile, so the next one says it again.
    story.feed(desired(an_assignment(1)))
    (sent,) = of(story.feed(a_start_failure(round_id=1)), fx.SendBeat)
    assert sent.beat.is_start_impossible


def test_a_start_that_worked_for_a_neighbour_is_not_impossible() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    (sent,) = of(story.feed(a_start_failure(local_rank=1)), fx.SendBeat)
    assert not sent.beat.is_start_impossible


@pytest.mark.parametrize("sign", [WorkersStarted(round_id=0), an_exit(0, 1)])
def test_a_start_that_worked_before_is_not_impossible(sign: WorkersStarted | WorkerExited) -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()), sign)
    story.feed(desired(an_assignment(1)), WorkersStopped(round_id=0))
    (sent,) = of(story.feed(a_start_failure(round_id=1)), fx.SendBeat)
    assert (sent.beat.state, sent.beat.is_start_impossible) == (S.FAILED, False)


# Signals for the workers.


def test_a_signal_to_forward_reaches_the_workers_and_stops_nobody() -> None:
    story = AgentStory().running()
    assert story.feed(SignalReceived(signum=10, is_for_workers=True)) == [
        fx.SignalWorkers(round_id=0, signum=10),
        fx.Tell(what="signal forwarded", why="signal 10 goes to the workers", round_id=0),
    ]
    assert story.feed(an_exit(0, 0)) == [
        fx.SendBeat(beat=a_beat(S.RUNNING, 0, workers_alive=1, workers_done=1))
    ]


def test_a_signal_to_forward_finds_nobody_before_after_and_during_a_stop() -> None:
    dropped = fx.Tell(
        what="signal dropped", why="signal 12 came while no workers run, so none gets it"
    )
    idle = AgentStory().connected()
    assert idle.feed(SignalReceived(signum=12, is_for_workers=True)) == [dropped]
    story = AgentStory().running()
    story.feed(an_exit(0, 1))
    assert story.feed(SignalReceived(signum=12, is_for_workers=True)) == [dropped], (
        "they are told to stop already"
    )
    story.feed(an_exit(1, -15, stopped=True), WorkersStopped(round_id=0))
    assert story.feed(SignalReceived(signum=12, is_for_workers=True)) == [dropped]


# One timeout for every stop.


STOPS: dict[str, Event] = {
    "failure": an_exit(0, 1),
    "start failure": a_start_failure(local_rank=1),
    "membership change": desired(an_assignment(1)),
    "standby": desired(Standby(reason="surplus")),
    "verdict follows": desired(Stop(reason="round 0 failed")),
    "run failed": desired(Exit(is_success=False, reason="")),
    "run succeeded without us": desired(Exit(is_success=True, reason="")),
    "fenced": SessionLost(attempt=1, reason="lease over", is_stale=True),
    "refused": SessionLost(attempt=1, reason="x", refusal=RunRefused("run", "ended")),
    "signal": SignalReceived(signum=TERM),
}


@pytest.mark.parametrize("name", STOPS)
def test_every_stop_has_the_one_timeout(name: str) -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    if name != "start failure":
        story.feed(WorkersStarted(round_id=0))
    assert of(story.feed(STOPS[name]), fx.StopWorkers) == [a_stop()]


def test_the_end_of_the_coordinators_grace_stops_with_the_one_timeout() -> None:
    story = AgentStory().running()
    story.feed(LOST)
    effects = story.feed(DeadlineReached(), after_s=CONFIG.grace_s + 1)
    assert of(effects, fx.StopWorkers) == [a_stop()]


def test_a_supervisor_that_cannot_be_executed_ends_the_agent_at_once() -> None:
    story = AgentStory().connected()
    story.feed(desired(an_assignment()))
    ending = "could not be started: /opt/python: No such file or directory"
    effects = story.feed(SupervisorDied(ending=ending, has_lived=False, is_final=True))
    assert of(effects, fx.StartSupervisor) == []
    [finish] = of(effects, fx.Finish)
    assert str(finish.error) == f"the agent's supervisor {ending}"
    assert "interpreter" in finish.error.hint
