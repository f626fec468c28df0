"""What workers say of themselves is checked, cut and put right before it counts."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from drumbeat.coordinator.core.model import Beat, FailureRecord, Hang
from drumbeat.coordinator.core.run.adaptive_timeouts import NAMES_MAX, LearnedLimit
from drumbeat.coordinator.observe.steps.worker_progress import SCOPE_BYTES_MAX, WorkerProgress
from drumbeat.coordinator.wire.failure import PROGRESS, limits_message, read_record, record_message
from drumbeat.coordinator.wire.session import read_beat
from drumbeat.model import DURATION_MAX_S, GroupState, HangKind
from drumbeat.restart_rules import RULES_MAX
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import refuse

FULL = WorkerProgress(
    local_rank=1,
    step=-(2**63),
    step_time_s=0.25,
    heartbeat_age_s=1.5,
    runtime_age_s=0.0,
    scope="all-reduce",
    scope_age_s=60.0,
    scopes_open=3,
    is_stopped=True,
    progress_age_s=0.75,
)
BARE = WorkerProgress(local_rank=0)
FENCE = common_pb2.Fence(incarnation="i", round_id=0)


def read(*workers: failure_pb2.WorkerProgress, **fields: Any) -> tuple[Beat, list[str]]:
    """Return what is read of the beat of a host with two workers, and what is passed over."""
    problems: list[InvalidField] = []
    fields = {"state": session_pb2.GROUP_STATE_RUNNING, **fields}
    beat = session_pb2.Beat(workers=workers, **fields)
    found = read_beat(beat, common_pb2.Fence(round_id=0), 2, problems.append)
    return found, [problem.field for problem in problems]


def seconds(value: float) -> Duration:
    return Duration(seconds=int(value), nanos=int((value - int(value)) * 1e9))


def a_record(hang: Hang | None) -> FailureRecord:
    message = failure_pb2.FailureRecord(sequence=1, host="h")
    found = read_record(message, FENCE, "record", 100, refuse)
    return replace(found, hang=hang)


def test_progress_is_read_as_it_was_written_and_unset_stays_unset() -> None:
    bare = failure_pb2.WorkerProgress(local_rank=0)
    assert read(PROGRESS.write(FULL), bare)[0].workers == (FULL, BARE)
    assert PROGRESS.write(BARE) == bare
    assert read()[0].workers == ()


def test_the_end_of_training_and_its_checkpoints_are_read() -> None:
    said: dict[str, Any] = {"steps_total": 2**64 - 1, "saved_step": 2**64 - 1}
    beat, _ = read(failure_pb2.WorkerProgress(local_rank=0, saved_age=seconds(1.5), **said))
    assert beat.workers == (replace(BARE, saved_age_s=1.5, **said),)


@pytest.mark.parametrize(
    ("ranks", "kept"), [([0, 1, 2], [0, 1]), ([0, 0], [0]), ([2], []), ([1, 2**32 - 1], [1])]
)
def test_workers_that_the_host_does_not_have_are_passed_over(
    ranks: list[int], kept: list[int]
) -> None:
    beat, passed = read(*(failure_pb2.WorkerProgress(local_rank=rank) for rank in ranks))
    assert [worker.local_rank for worker in beat.workers] == kept
    assert passed == ["beat.workers.local_rank"]


def test_a_long_scope_is_cut_at_a_whole_character() -> None:
    beat, _ = read(failure_pb2.WorkerProgress(scope="x" + "é" * SCOPE_BYTES_MAX))
    assert beat.workers[0].scope == "x" + "é" * ((SCOPE_BYTES_MAX - 1) // 2)


def test_an_age_that_cannot_be_is_unknown() -> None:
    message = failure_pb2.WorkerProgress(
        heartbeat_age=seconds(-5), scope_age=Duration(seconds=10**11), runtime_age=seconds(1.5)
    )
    beat, passed = read(message)
    (worker,) = beat.workers
    assert (worker.heartbeat_age_s, worker.scope_age_s, worker.runtime_age_s) == (None, None, 1.5)
    assert passed == ["beat.workers[0].heartbeat_age", "beat.workers[0].scope_age"]


def test_a_state_of_a_later_version_is_that_of_workers_that_run() -> None:
    beat, passed = read(state=99, workers_alive=2)
    assert (beat.state, beat.workers_alive, passed) == (GroupState.RUNNING, 2, ["beat.state"])


def observation(section: str = "", longest_s: float = 1.0) -> session_pb2.Observation:
    return session_pb2.Observation(section=section, longest=seconds(longest_s), samples=7)


def test_observations_are_read() -> None:
    found = read(observations=[observation(), observation("save", 2.5)])[0].observations
    assert [(o.section, o.longest_s, o.samples) for o in found] == [("", 1.0, 7), ("save", 2.5, 7)]


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([observation(f"s{i}") for i in range(NAMES_MAX + 1)], NAMES_MAX),
        ([observation("a"), observation("a")], 1),
        ([observation("é" * SCOPE_BYTES_MAX), observation("é" * 100)], 1),
        ([observation(longest_s=-1.0)], 0),
    ],
)
def test_observations_that_cannot_be_are_passed_over(
    messages: list[session_pb2.Observation], kept: int
) -> None:
    assert len(read(observations=messages)[0].observations) == kept


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
    record = record_message(a_record(hang))
    found = read_record(record, FENCE, "record", 100, refuse)
    assert found.hang == hang


def test_texts_of_a_hang_are_cut() -> None:
    message = failure_pb2.Hang(
        kind=failure_pb2.HANG_KIND_TIMER, scope="s" * 9999, stacks="x" * 99, evidence="y" * 99
    )
    record = failure_pb2.FailureRecord(sequence=1, host="h", hang=message)
    hang = read_record(record, FENCE, "record", 10, refuse).hang
    assert hang is not None
    assert (len(hang.scope), hang.stacks, hang.evidence) == (512, "x" * 10, "y" * 10)


def test_limits_are_written() -> None:
    message = limits_message((LearnedLimit(section="save", limit_s=2.5, samples=4),))
    assert [(at.section, at.limit.ToMilliseconds()) for at in message.limits] == [("save", 2500)]


@pytest.mark.parametrize(("seconds", "read_s"), [(40, 40.0), (-5, 0.0), (10**10, DURATION_MAX_S)])
def test_how_long_collectives_moved_is_a_possible_duration(seconds: int, read_s: float) -> None:
    message = session_pb2.Beat(state=session_pb2.GROUP_STATE_RUNNING)
    assert read_beat(message, FENCE, 1, refuse).collectives_moved_s == 0.0
    message.collectives_moved.seconds = seconds
    assert read_beat(message, FENCE, 1, refuse).collectives_moved_s == read_s


def test_a_record_tells_of_no_more_rules_than_a_run_can_have() -> None:
    message = failure_pb2.FailureRecord(
        sequence=1, host="h", matched_rules=range(1, 1000), is_out_of_memory=True
    )
    record = read_record(message, FENCE, "record", 100, refuse)
    assert record.matched_rules == tuple(range(1, RULES_MAX + 1))
    assert record_message(record).is_out_of_memory
