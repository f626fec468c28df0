"""What workers say of themselves is checked, cut and put right before it counts."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from coordinator.core.model import DURATION_MAX_S, Hang, HangKind
from coordinator.core.progress.adaptive_timeouts import NAMES_MAX, LearnedLimit
from coordinator.core.progress.worker_progress import SCOPE_BYTES_MAX, WorkerProgress
from coordinator.errors import InvalidRequest
from coordinator.wire.progress import (
    hang_message,
    hang_of,
    limits_message,
    observations_of,
    progress_message,
    workers_of,
)
from drumbeat.v1 import failure_pb2, session_pb2

FULL = WorkerProgress(
    local_rank=1,
    step=-(2**63),
    step_time_s=0.25,
    heartbeat_age_s=1.5,
    runtime_age_s=0.0,
    scope="all-reduce",
    scope_age_s=60.0,
    scopes_open=3,
)
BARE = WorkerProgress(local_rank=0)


def beat(*workers: failure_pb2.WorkerProgress, **fields: Any) -> session_pb2.Beat:
    return session_pb2.Beat(workers=workers, **fields)


def seconds(value: float) -> Duration:
    return Duration(seconds=int(value), nanos=int((value - int(value)) * 1e9))


def test_progress_is_read_as_it_was_written_and_unset_stays_unset() -> None:
    message = beat(progress_message(FULL), progress_message(BARE))
    assert workers_of(message, 2) == (FULL, BARE)
    assert not progress_message(BARE).HasField("step")
    assert workers_of(beat(), 1) == ()


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([0, 1, 2], "beat.workers: 3"),
        ([0, 0], "beat.workers[1].local_rank: 0"),
        ([2], "beat.workers[0].local_rank: 2"),
        ([1, 2**32 - 1], "beat.workers[1].local_rank"),
    ],
)
def test_who_is_not_there_is_refused_by_name(ranks: list[int], named: str) -> None:
    messages = [failure_pb2.WorkerProgress(local_rank=rank) for rank in ranks]
    with pytest.raises(InvalidRequest) as refused:
        workers_of(beat(*messages), 2)
    assert str(refused.value).startswith(named)


def test_a_long_scope_is_cut_at_a_whole_character() -> None:
    message = failure_pb2.WorkerProgress(scope="x" + "é" * SCOPE_BYTES_MAX)
    (worker,) = workers_of(beat(message), 1)
    assert worker.scope == "x" + "é" * ((SCOPE_BYTES_MAX - 1) // 2)


def test_an_age_that_cannot_be_is_put_right() -> None:
    message = failure_pb2.WorkerProgress(
        heartbeat_age=seconds(-5), scope_age=Duration(seconds=10**11)
    )
    (worker,) = workers_of(beat(message), 1)
    assert (worker.heartbeat_age_s, worker.scope_age_s) == (0.0, DURATION_MAX_S)


def observation(section: str = "", longest_s: float = 1.0) -> session_pb2.Observation:
    return session_pb2.Observation(section=section, longest=seconds(longest_s), samples=7)


def test_observations_are_read() -> None:
    message = session_pb2.Beat(observations=[observation(), observation("save", 2.5)])
    found = observations_of(message)
    assert [(o.section, o.longest_s, o.samples) for o in found] == [("", 1.0, 7), ("save", 2.5, 7)]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([observation(f"s{i}") for i in range(NAMES_MAX + 1)], "beat.observations: 66"),
        ([observation("a"), observation("a")], "beat.observations[1].section"),
        ([observation("é" * SCOPE_BYTES_MAX)], "beat.observations[0].section"),
        ([observation(longest_s=-1.0)], "beat.observations[0].longest"),
    ],
)
def test_observations_that_cannot_be_are_refused_by_name(
    messages: list[session_pb2.Observation], named: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        observations_of(session_pb2.Beat(observations=messages))
    assert str(refused.value).startswith(named)


@pytest.mark.parametrize("kind", list(HangKind))
@pytest.mark.parametrize("progress", [None, FULL])
def test_a_hang_is_read_as_it_was_written(kind: HangKind, progress: WorkerProgress | None) -> None:
    hang = Hang(
        kind=kind,
        scope="save",
        limit_s=60.0,
        elapsed_s=60.5,
        progress=progress,
        stacks="File\n",
        evidence="D",
    )
    record = failure_pb2.FailureRecord(hang=hang_message(hang))
    assert hang_of(record, text_characters_max=100) == hang
    assert hang_of(failure_pb2.FailureRecord(), text_characters_max=100) is None


def test_texts_of_a_hang_are_cut_and_what_it_decides_by_is_checked() -> None:
    message = failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER, scope="s" * 9999, stacks="x" * 99, evidence="y" * 99
    )
    hang = hang_of(failure_pb2.FailureRecord(hang=message), text_characters_max=10)
    assert hang is not None
    assert (len(hang.scope), hang.stacks, hang.evidence) == (512, "x" * 10, "y" * 10)
    for wrong in (failure_pb2.Hang(), failure_pb2.Hang(kind=1, limit=seconds(-1))):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"record\.hang\."):
            hang_of(failure_pb2.FailureRecord(hang=wrong), text_characters_max=10)


def test_limits_are_written() -> None:
    message = limits_message([LearnedLimit(section="save", limit_s=2.5, samples=4)])
    assert [(at.section, at.limit.ToMilliseconds()) for at in message.limits] == [("save", 2500)]
