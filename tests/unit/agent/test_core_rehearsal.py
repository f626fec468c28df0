"""What an agent does for a fault of a rehearsal, and what it says of it."""

from typing import Any

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import (
    DeadlineReached,
    OrderReceived,
    SessionLost,
    SessionWelcomed,
    WorkerExited,
    WorkersStopped,
)
from drumbeat.agent.session import convert
from drumbeat.model import FaultKind, FaultOrder, FaultReport, Stop
from drumbeat.v1 import common_pb2, session_pb2
from drumbeat.wire.messages import FAULT_ORDER
from tests.support.agents import PACE, AgentStory, a_beat, desired, of

SIGKILL, SIGCONT, SIGSTOP = 9, 18, 19


def ordered(kind: FaultKind, number: int = 1, attempt: int = 1, **fields: Any) -> OrderReceived:
    given: dict[str, Any] = {"round_id": 0, **fields}
    return OrderReceived(attempt=attempt, order=FaultOrder(number=number, kind=kind, **given))


def signals(effects: list[fx.Effect]) -> list[tuple[int, int | None]]:
    return [(effect.signum, effect.local_rank) for effect in of(effects, fx.SignalWorkers)]


def reports(effects: list[fx.Effect]) -> list[FaultReport | None]:
    return [effect.beat.fault for effect in of(effects, fx.SendBeat)]


def test_one_worker_is_killed_once_and_the_next_beat_says_so() -> None:
    story = AgentStory().running()
    effects = story.feed(ordered(FaultKind.WORKER, local_rank=1))
    assert signals(effects) == [(SIGKILL, 1)]
    assert reports(effects) == [FaultReport(number=1)]
    assert of(effects, fx.SignalWorkers)[0].is_for_group
    assert story.feed(ordered(FaultKind.WORKER, local_rank=1)) == [], "it is told again"
    story.feed(SessionLost(attempt=1, reason="the stream broke"))
    story.feed(SessionWelcomed(attempt=2, pace=PACE))
    assert signals(story.feed(ordered(FaultKind.WORKER, attempt=2, local_rank=1))) == []


def test_a_fault_for_another_round_or_a_worker_that_has_ended_is_refused() -> None:
    story = AgentStory().running()
    effects = story.feed(ordered(FaultKind.WORKER, round_id=1))
    assert reports(effects) == [FaultReport(number=1, refusal="no workers of round 1 run here")]
    story.feed(
        WorkerExited(
            round_id=0, local_rank=1, pid=1, exit_code=0, is_stopped=False, ended_at=story.now
        )
    )
    effects = story.feed(ordered(FaultKind.WORKER, 2, local_rank=1))
    assert signals(effects) == []
    (report,) = reports(effects)
    assert report == FaultReport(number=2, refusal="worker 1 of this host has ended")
    (report,) = reports(story.feed(ordered(FaultKind.OTHER, 3)))
    assert report == FaultReport(number=3, refusal="this agent does not know such a fault")


def test_an_agent_that_is_to_die_does_so_at_once() -> None:
    story = AgentStory().running()
    assert of(story.feed(ordered(FaultKind.AGENT)), fx.Crash) == [fx.Crash()]


def test_a_pause_ends_by_itself_though_the_coordinator_is_away() -> None:
    story = AgentStory().running()
    assert signals(story.feed(ordered(FaultKind.HOST_PAUSE, pause_s=30.0))) == [(SIGSTOP, None)]
    story.feed(SessionLost(attempt=1, reason="the stream broke"))
    assert signals(story.feed(DeadlineReached(), after_s=29.0)) == []
    due = story.core.next_deadline()
    assert due is not None
    assert due <= story.now + 1.0
    assert signals(story.feed(DeadlineReached(), after_s=1.0)) == [(SIGCONT, None)]
    assert signals(story.feed(DeadlineReached(), after_s=1.0)) == [], "once"


def test_workers_that_are_to_stop_go_on_first_so_that_they_can() -> None:
    story = AgentStory().running()
    story.feed(ordered(FaultKind.HOST_PAUSE, pause_s=30.0))
    effects = story.feed(desired(Stop(reason="over")))
    asked = [type(effect) for effect in effects if isinstance(effect, fx.SupervisorCommand)]
    assert asked == [fx.SignalWorkers, fx.StopWorkers]
    assert signals(effects) == [(SIGCONT, None)]
    story.feed(WorkersStopped(round_id=0))
    assert story.core.workers.resumes_at is None


def test_orders_and_reports_are_written_and_read() -> None:
    order = FaultOrder(number=3, round_id=2, kind=FaultKind.HOST_PAUSE, local_rank=0, pause_s=1.5)
    message = FAULT_ORDER.write(order)
    assert message.kind == common_pb2.FAULT_KIND_HOST_PAUSE
    assert FAULT_ORDER.read(message) == order
    later = session_pb2.InjectFault(number=1, kind=99)  # type: ignore[arg-type]
    assert FAULT_ORDER.read(later).kind is FaultKind.OTHER
    beat = convert.beat_message(a_beat(fault=FaultReport(number=4, refusal="no")))
    assert (beat.fault.number, beat.fault.refusal) == (4, "no")
    assert not convert.beat_message(a_beat()).HasField("fault")
