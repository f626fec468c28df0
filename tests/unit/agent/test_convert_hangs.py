"""Hangs and standings as messages."""

from typing import Any

from drumbeat.agent.core.events import WorkerExited
from drumbeat.agent.core.failure_records import ended_by
from drumbeat.agent.core.model import Beat
from drumbeat.agent.model.hang import Hang, HangEvidence, WorkerProgress
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.session import convert
from drumbeat.model import GroupState, HangKind
from drumbeat.v1 import failure_pb2, session_pb2
from drumbeat.wire.mapping import duration
from tests.support.agents import CONFIG, IDENTITY, an_assignment

STANDING = WorkerProgress(
    local_rank=1,
    step=41,
    step_time_s=0.5,
    heartbeat_at=90.0,
    progress_since=94.0,
    beat_at=99.0,
    scope="all-reduce",
    scope_since=95.0,
    scopes_open=2,
)
HANG = Hang(
    kind=HangKind.TIMER,
    scope="all-reduce",
    limit_s=5.0,
    elapsed_s=5.25,
    standing=STANDING,
    noticed_at=100.0,
    evidence=HangEvidence(stacks="File x", notes="process 7: sleeping"),
)


def an_exit(*, exit_code: int = -15, is_stopped: bool = False, said: str = "") -> WorkerExited:
    return WorkerExited(
        round_id=0,
        local_rank=1,
        pid=7,
        exit_code=exit_code,
        is_stopped=is_stopped,
        ended_at=101.0,
        error=WorkerError(message=said) if said else None,
        hang=HANG,
    )


def test_a_worker_that_hung_is_no_victim_and_failed_when_it_was_noticed() -> None:
    failure = ended_by(an_assignment(), an_exit(is_stopped=True))
    assert not failure.is_stopped_by_agent
    assert failure.happened_at == 100.0
    assert failure.hang == HANG
    assert failure.message == (
        "timer 'all-reduce' expired: not released within 5.25 s (limit 5 s); "
        "last heartbeat step 41, 10 s before"
    )


def test_what_a_worker_left_comes_behind_why_it_was_ended() -> None:
    failure = ended_by(an_assignment(), an_exit(exit_code=1, said="interrupted"))
    assert failure.message.splitlines()[1:] == ["interrupted"]


def test_a_hang_is_written_with_its_ages() -> None:
    failure = ended_by(an_assignment(), an_exit())
    record = convert.failure_message(failure, CONFIG, IDENTITY)
    progress = failure_pb2.WorkerProgress(
        local_rank=1,
        step=41,
        step_time=duration(0.5),
        heartbeat_age=duration(10.0),
        progress_age=duration(6.0),
        runtime_age=duration(1.0),
        scope="all-reduce",
        scope_age=duration(5.0),
        scopes_open=2,
    )
    assert record.hang == failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER,
        scope="all-reduce",
        limit=duration(5.0),
        elapsed=duration(5.25),
        progress=progress,
        stacks="File x",
        evidence="process 7: sleeping",
    )


def test_every_kind_has_its_name_in_the_protocol() -> None:
    for kind in HangKind:
        assert failure_pb2.HangKind.Value(f"HANG_KIND_{kind}")


def test_a_beat_says_where_workers_stand_and_how_long_things_took() -> None:
    beat = Beat(
        state=GroupState.RUNNING, round_id=0, master_port=1, failures_written=0, workers_alive=1
    )
    message = convert.beat_message(
        beat,
        standings=[WorkerProgress(local_rank=3), WorkerProgress(local_rank=4, is_stopped=True)],
        observations={"": (2**70, 1.5), "save": (1, 2.0)},
        now=1.0,
    )
    assert list(message.workers) == [
        failure_pb2.WorkerProgress(local_rank=3),
        failure_pb2.WorkerProgress(local_rank=4, is_stopped=True),
    ]
    assert list(message.observations) == [
        session_pb2.Observation(samples=2**63 - 1, longest=duration(1.5)),
        session_pb2.Observation(section="save", samples=1, longest=duration(2.0)),
    ]


def test_the_end_of_training_and_its_checkpoints_are_told() -> None:
    standing = WorkerProgress(local_rank=0, steps_total=2**63 - 1, saved_step=7, saved_at=3.0)
    message = convert.progress_message(standing, now=5.0)
    expected: dict[str, Any] = {
        "steps_total": 2**63 - 1,
        "saved_step": 7,
        "saved_age": duration(2.0),
    }
    assert message == failure_pb2.WorkerProgress(local_rank=0, **expected)


def test_impossible_instants_are_still_durations() -> None:
    standing = WorkerProgress(local_rank=0, heartbeat_at=1e18, beat_at=-1e18, scope="é" * 100)
    message = convert.progress_message(standing, now=0.0)
    assert message.heartbeat_age == duration(0.0)
    assert message.runtime_age == duration(convert.AGE_MAX_S)
    assert message.scope == "é" * 64
