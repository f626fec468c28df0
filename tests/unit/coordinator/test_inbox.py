"""What a session said and the core has not taken in yet; which beats are news."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.events import AgentLeft, BeatReceived, SessionClosed
from drumbeat.coordinator.core.inprocess.records import InprocessReport
from drumbeat.coordinator.core.model import Accusation, Beat, ExpiredLimit
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.core.run.notice import Leaving
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.shell.turns import Inbox
from drumbeat.inprocess import InprocessStep
from drumbeat.model import (
    FaultReport,
    GroupState,
    HangKind,
    Health,
    HealthState,
    NoticeReport,
    PreflightFinding,
)
from tests.support.world import a_record

RUNNING = Beat(state=GroupState.RUNNING, round_id=0, workers_alive=2)
LEFT = AgentLeft(run_id="r", session_id="s", incarnation="a", reason="ended by signal 15")
CLOSED = SessionClosed(run_id="r", session_id="s", incarnation="a")


def received(beat: Beat) -> BeatReceived:
    return BeatReceived(run_id="r", session_id="s", incarnation="a", beat=beat)


def at(local_rank: int, step: int) -> WorkerProgress:
    return WorkerProgress(local_rank=local_rank, step=step)


def inbox_of(*beats: Beat) -> Inbox:
    inbox = Inbox()
    for beat in beats:
        inbox.put(received(beat))
    return inbox


def test_of_any_number_of_beats_the_latest_waits() -> None:
    beats = [replace(RUNNING, master_port=port) for port in range(1_000)]
    assert inbox_of(*beats).events() == [received(beats[-1])]


def test_a_later_beat_keeps_what_it_does_not_say_anew_of_the_round() -> None:
    seen = (Observation(section="", longest_s=1.0, samples=3),)
    first = replace(RUNNING, workers=(at(0, 1), at(1, 1)), observations=seen, pids=(7, 8))
    second = replace(RUNNING, workers=(at(0, 2),), master_port=7)
    both = replace(second, workers=(at(0, 2), at(1, 1)), observations=seen, pids=(7, 8))
    assert inbox_of(first, second).events() == [received(both)]
    other = Beat(state=GroupState.STARTING, round_id=1)
    assert inbox_of(first, other).events() == [received(other)]


def test_what_is_kept_of_an_earlier_beat_is_as_much_older() -> None:
    worker = WorkerProgress(local_rank=1, step=1, heartbeat_age_s=2.0)
    first = replace(RUNNING, workers=(worker,), failure=replace(a_record(), age_s=1.0))
    inbox = Inbox()
    inbox.put(replace(received(first), uptime_s=100.0))
    inbox.put(replace(received(RUNNING), uptime_s=101.5))
    (event,) = inbox.events()
    assert isinstance(event, BeatReceived)
    assert event.beat.workers == (replace(worker, heartbeat_age_s=3.5),)
    assert event.beat.failure is not None
    assert event.beat.failure.age_s == 2.5


@pytest.mark.parametrize("end", [GroupState.SUCCEEDED, GroupState.FAILED])
def test_how_the_workers_ended_is_not_lost_to_what_came_after_it(end: GroupState) -> None:
    ended, idle = replace(RUNNING, state=end, workers_alive=0), Beat(state=GroupState.IDLE)
    inbox = inbox_of(RUNNING, ended, idle)
    inbox.put(LEFT)
    inbox.put(CLOSED)
    assert inbox.events() == [received(ended), received(idle), LEFT, CLOSED]
    assert inbox_of(ended, ended).events() == [received(ended)]


def test_a_beat_repeats_another_unless_anything_but_readings_of_workers_is_new() -> None:
    """Each field is here: one that is added to a beat has to be thought of."""
    news: dict[str, Any] = {
        "state": GroupState.FAILED,
        "round_id": 1,
        "master_port": 4000,
        "failures_written": 1,
        "workers_alive": 1,
        "is_start_impossible": True,
        "observations": (Observation(section="", longest_s=1.0, samples=3),),
        "inprocess": InprocessReport(iteration=0, step=InprocessStep.ENTERED),
        "failure": a_record(),
        "workers_done": 1,
        "leaving": Leaving(reason="got SIGTERM", time_left_s=1.0),
        "preflight": (PreflightFinding(ranks=(1,), reason="slow"),),
        "notice": NoticeReport(notice_id=1),
        "pids": (7,),
        "accusations": (Accusation(local_rank=0),),
        "expired": (
            ExpiredLimit(
                number=1, local_rank=0, kind=HangKind.PROGRESS, limit_s=5.0, elapsed_s=5.0
            ),
        ),
        "health": Health(state=HealthState.CHECKING),
        "log_dir": "/logs/attempt_1",
        "fault": FaultReport(number=1),
    }
    readings = {"workers", "memory", "collectives_moved_s", "gpus"}
    assert news.keys() == {*Beat.__struct_fields__} - readings
    assert replace(RUNNING, workers=(at(0, 3),)).repeats(RUNNING)
    for name, value in news.items():
        assert not replace(RUNNING, **{name: value}).repeats(RUNNING), name
