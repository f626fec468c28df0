"""Messages to values and back."""

import pytest

from drumbeat.agent.core.model import Beat, Exit, Failure
from drumbeat.agent.failures.exit_status import signal_name
from drumbeat.agent.failures.report import FailedWorker, FailureReport
from drumbeat.agent.session import convert
from drumbeat.agent.session.session import desired_from
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.model import GroupState, Pace, Standby, Stop
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import duration
from drumbeat.wire.messages import PACE
from tests.support.agents import CONFIG, IDENTITY, an_assignment

MESSAGE_RUN = session_pb2.Assignment(
    round_id=3,
    restart_count=0,
    group_rank=1,
    group_world_size=2,
    rank_first=2,
    world_size=4,
    role_rank_first=2,
    role_world_size=4,
    master_addr="10.0.0.1",
    master_port=29500,
    reason="all are there",
)


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (
            session_pb2.DesiredState(standby=session_pb2.Standby(reason="waiting")),
            Standby(reason="waiting"),
        ),
        (
            session_pb2.DesiredState(
                standby=session_pb2.Standby(reason="waiting", time_left=duration(2.5))
            ),
            Standby(reason="waiting", time_left_s=2.5),
        ),
        (session_pb2.DesiredState(run=MESSAGE_RUN), an_assignment(3)),
        (session_pb2.DesiredState(stop=session_pb2.Stop(reason="failed")), Stop(reason="failed")),
        (
            session_pb2.DesiredState(
                exit=session_pb2.Exit(
                    verdict=failure_pb2.Verdict(is_success=True, reason="all succeeded")
                )
            ),
            Exit(is_success=True, reason="all succeeded"),
        ),
        (
            session_pb2.DesiredState(release=session_pb2.Release(reason="60 s are over")),
            Exit(is_success=True, reason="60 s are over", is_released=True),
        ),
    ],
)
def test_every_desired_state_is_read(message: session_pb2.DesiredState, state: object) -> None:
    assert desired_from(message) == state


def test_a_failed_verdict_comes_with_its_report() -> None:
    verdict = failure_pb2.Verdict(is_success=False, reason="round 0 failed")
    message = session_pb2.DesiredState(exit=session_pb2.Exit(verdict=verdict))
    read = desired_from(message)
    assert isinstance(read, Exit)
    assert read.report == FailureReport(reason="round 0 failed")


def test_a_failed_verdict_names_its_root_causes() -> None:
    record = failure_pb2.FailureRecord(
        host="a",
        worker=failure_pb2.WorkerRanks(rank=5, local_rank=1),
        pid=71,
        exit_code=-9,
        message="m",
        traceback="t",
    )
    verdict = failure_pb2.Verdict(report=failure_pb2.FailureReport(root_causes=[record]))
    message = session_pb2.DesiredState(exit=session_pb2.Exit(verdict=verdict))
    read = desired_from(message)
    assert isinstance(read, Exit)
    assert read.report is not None
    assert read.report.root_causes == (
        FailedWorker(
            rank=5, local_rank=1, host="a", pid=71, exit_code=-9, message="m", traceback="t"
        ),
    )


def test_a_kind_of_a_later_version_is_nothing() -> None:
    assert desired_from(session_pb2.DesiredState()) is None


def test_a_pace_is_read_in_seconds() -> None:
    message = session_pb2.Pace(heartbeat_interval=duration(0.25), reconnect_delay_max=duration(4))
    pace = Pace(heartbeat_interval_s=0.25, reconnect_delay_max_s=4.0)
    assert PACE.read(message) == pace


@pytest.mark.parametrize("barrier", [None, 20.0])
def test_the_spec_is_what_the_command_line_said(barrier: float | None) -> None:
    config = AgentConfig(
        run_id="job",
        program=Program("program", "x"),
        min_nodes=2,
        max_nodes=4,
        max_restarts=3,
        join_timeout=1.5,
        last_call=2.5,
        exit_barrier_timeout=barrier,
        shutdown_timeout=3.5,
        coordinator_grace=4.5,
        master_addr="m",
        master_port=9,
        restart_delay_max=5.5,
        restart_window=6.5,
        no_progress_limit=7,
        restart_rule=("oom:fail", "hang:restart"),
        free_restarts_max=8,
        coordinator="head:1",
        replica_group=(1, 4),
        min_groups=3,
    )
    hello = convert.hello_message(config, IDENTITY, session_pb2.Beat())
    assert hello.run.spec == common_pb2.RunSpec(
        agents_min=2,
        agents_max=4,
        restarts_max=3,
        join_timeout=duration(1.5),
        last_call=duration(2.5),
        exit_barrier_timeout=None if barrier is None else duration(barrier),
        shutdown_timeout=duration(3.5),
        coordinator_grace=duration(4.5),
        master_addr="m",
        master_port=9,
        restart_delay_max=duration(5.5),
        restart_window=duration(6.5),
        no_progress_limit=7,
        restart_rules=("oom:fail", "hang:restart"),
        free_restarts_max=8,
        replica_group=common_pb2.ReplicaGroup(job="job", index=1, count=4, groups_min=3),
    )


@pytest.mark.parametrize("state", list(GroupState))
def test_every_state_has_its_name_in_the_protocol(state: GroupState) -> None:
    beat = Beat(
        state=state,
        round_id=1,
        master_port=2,
        failures_written=3,
        workers_alive=4,
        is_start_impossible=True,
    )
    assert convert.beat_message(beat) == session_pb2.Beat(
        state=session_pb2.GroupState.Value(f"GROUP_STATE_{state}"),
        master_port=2,
        failures_written=3,
        workers_alive=4,
        is_start_impossible=True,
    )


def test_a_failure_is_written_whole_but_for_its_age() -> None:
    failure = Failure(
        sequence=2,
        round_id=0,
        rank=5,
        local_rank=1,
        group_rank=2,
        role_rank=3,
        happened_at=9.0,
        pid=77,
        exit_code=-11,
        message="m",
        traceback="t",
        is_stopped_by_agent=True,
        explanation="why",
    )
    message = convert.failure_message(failure, CONFIG, IDENTITY)
    assert message == failure_pb2.FailureRecord(
        fence=common_pb2.Fence(run_id="job", round_id=0, incarnation="i"),
        sequence=2,
        host="h",
        worker=failure_pb2.WorkerRanks(
            rank=5, local_rank=1, group_rank=2, role_rank=3, role="default"
        ),
        pid=77,
        exit_code=-11,
        signal_name="SIGSEGV",
        message="m",
        traceback="t",
        is_stopped_by_agent=True,
        explanation="why",
    )


@pytest.mark.parametrize(("code", "name"), [(0, ""), (3, ""), (-9, "SIGKILL"), (-99, "signal 99")])
def test_signals_have_names(code: int, name: str) -> None:
    assert signal_name(code) == name


def test_durations_are_exact_to_the_nanosecond() -> None:
    message = duration(1.000000001)
    assert (message.seconds, message.nanos) == (1, 1)


def test_a_beat_names_a_failure_in_one_line_with_its_age() -> None:
    failure = Failure(
        sequence=2, round_id=3, rank=5, local_rank=1, group_rank=2, role_rank=5, happened_at=90.0,
        pid=77, exit_code=-6, message="ValueError: boom\nmore of it", traceback="where",
        stderr_tail="tail", explanation="because", output_files=("/logs/stderr.log",),
    )  # fmt: skip
    beat = Beat(
        state=GroupState.FAILED, round_id=3, master_port=1, failures_written=2, workers_alive=0,
        failure=failure, workers_done=3,
    )  # fmt: skip
    message = convert.beat_message(beat, now=92.5, host="gpu7")
    assert message.workers_done == 3
    assert message.failure == failure_pb2.FailureRecord(
        sequence=2,
        age=duration(2.5),
        host="gpu7",
        worker=failure_pb2.WorkerRanks(rank=5, local_rank=1, group_rank=2, role_rank=5),
        pid=77,
        exit_code=-6,
        signal_name="SIGABRT",
        message="ValueError: boom",
    )
