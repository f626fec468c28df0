"""Shell. Protobuf messages to the agent's values and back. Nothing else sees a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.duration_pb2 import Duration

from agent.core.model import (
    Assignment,
    Beat,
    DesiredState,
    Exit,
    Failure,
    Pace,
    Standby,
    Stop,
)
from agent.session.convert_inprocess import kind_value, report_message
from agent.settings.config import AgentConfig
from agent.watchdog.core.model import Hang, Standing
from agent.workers.devices.model import Gpu
from agent.workers.failures.exit_status import signal_name
from agent.workers.failures.verdict import read_report
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from worker_sdk.board.layout import decode_name, encode_name

NOTHING_OBSERVED: Mapping[str, tuple[int, float]] = {}

COUNT_MAX = 2**63 - 1
# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
AGE_MAX_S = 10 * 365 * 24 * 3600.0
"""What a worker says of itself may be any number; the protocol's durations end somewhere."""


def desired_from(message: session_pb2.Desired) -> DesiredState | None:
    """Read a desired state; ``None`` if it is of a kind this agent does not know."""
    state: DesiredState
    match message.WhichOneof("kind"):
        case "standby":
            standby = message.standby
            left = _seconds(standby.time_left) if standby.HasField("time_left") else None
            state = Standby(reason=standby.reason, time_left_s=left)
        case "run":
            state = _assignment(message.run)
        case "stop":
            state = Stop(reason=message.stop.reason)
        case "exit":
            verdict = message.exit.verdict
            report = None if verdict.is_success else read_report(message.exit)
            state = Exit(is_success=verdict.is_success, reason=verdict.reason, report=report)
        case "release":
            state = Exit(is_success=True, reason=message.release.reason, is_released=True)
        case _:
            return None
    return state


def pace_from(message: session_pb2.Pace) -> Pace:
    """Read a pace."""
    return Pace(
        heartbeat_interval_s=_seconds(message.heartbeat_interval),
        reconnect_delay_max_s=_seconds(message.reconnect_delay_max),
    )


def spec_message(config: AgentConfig) -> common_pb2.RunSpec:
    """Write what the run is, as this agent was told."""
    barrier = config.exit_barrier_timeout
    return common_pb2.RunSpec(
        agents_min=config.min_nodes,
        agents_max=config.max_nodes,
        restarts_max=config.max_restarts,
        join_timeout=duration(config.join_timeout),
        last_call=duration(config.last_call),
        exit_barrier_timeout=None if barrier is None else duration(barrier),
        shutdown_timeout=duration(config.shutdown_timeout),
        coordinator_grace=duration(config.coordinator_grace),
        master_addr=config.master_addr,
        master_port=config.master_port,
    )


def beat_message(
    beat: Beat,
    *,
    standings: Iterable[Standing] = (),
    observations: Mapping[str, tuple[int, float]] = NOTHING_OBSERVED,
    now: float = 0.0,
    host: str = "",
) -> session_pb2.Beat:
    """Write the actual state of ``host``, and where its workers stand at ``now``."""
    return session_pb2.Beat(
        workers=[progress_message(standing, now=now) for standing in standings],
        observations=[
            session_pb2.Observation(
                section=name, longest=duration(longest_s), samples=min(count, COUNT_MAX)
            )
            for name, (count, longest_s) in observations.items()
        ],
        state=session_pb2.GroupState.Value(f"GROUP_STATE_{beat.state}"),
        master_port=beat.master_port,
        failures_written=beat.failures_written,
        workers_alive=beat.workers_alive,
        is_start_impossible=beat.is_start_impossible,
        inprocess=None if beat.inprocess is None else report_message(beat.inprocess),
        failure=None if beat.failure is None else _in_short(beat.failure, host=host, now=now),
        workers_done=beat.workers_done,
    )


def _in_short(failure: Failure, *, host: str, now: float) -> failure_pb2.FailureRecord:
    """Write what names a failure in one line; its record has the rest."""
    message = failure_message(failure, run_id="", incarnation="", host=host, role="")
    for name in ("fence", "traceback", "stderr_tail", "explanation"):
        message.ClearField(name)
    if message.HasField("hang"):
        message.hang.ClearField("stacks")
        message.hang.ClearField("evidence")
    lines = failure.message.strip().splitlines()
    message.message = lines[0][:HEADLINE_CHARACTERS_MAX] if lines else ""
    message.age.CopyFrom(duration(max(0.0, now - failure.happened_at)))
    return message


def gpu_message(gpu: Gpu) -> session_pb2.GpuInfo:
    """Write what a GPU is."""
    return session_pb2.GpuInfo(
        index=gpu.index, uuid=gpu.uuid, name=gpu.name, memory_bytes=gpu.memory_bytes
    )


def failure_message(
    failure: Failure, *, run_id: str, incarnation: str, host: str, role: str
) -> failure_pb2.FailureRecord:
    """Write a failure; its age is set when it is sent."""
    record = failure_pb2.FailureRecord(
        fence=common_pb2.Fence(
            run_id=run_id, round_id=failure.round_id, has_round=True, incarnation=incarnation
        ),
        sequence=failure.sequence,
        host=host,
        worker=failure_pb2.WorkerRanks(
            rank=failure.rank,
            local_rank=failure.local_rank,
            group_rank=failure.group_rank,
            role_rank=failure.role_rank,
            role=role,
        ),
        pid=failure.pid,
        exit_code=failure.exit_code,
        signal_name=signal_name(failure.exit_code),
        message=failure.message,
        traceback=failure.traceback,
        stderr_tail=failure.stderr_tail,
        is_stopped_by_agent=failure.is_stopped_by_agent,
        explanation=failure.explanation,
        hang=None if failure.hang is None else hang_message(failure.hang),
        iteration=failure.iteration,
    )
    if failure.interruption is not None:
        record.interruption = kind_value(failure.interruption)
    return record


def hang_message(hang: Hang) -> failure_pb2.Hang:
    """Write what was found of a worker that hung; its ages are those at that time."""
    return failure_pb2.Hang(
        kind=failure_pb2.HangKind.Value(f"HANG_KIND_{hang.kind}"),
        scope=hang.scope,
        limit=duration(hang.limit_s),
        elapsed=duration(max(0.0, hang.elapsed_s)),
        progress=progress_message(hang.standing, now=hang.noticed_at),
        stacks=hang.evidence.stacks,
        evidence=hang.evidence.notes,
    )


def progress_message(standing: Standing, *, now: float) -> failure_pb2.WorkerProgress:
    """Write where a worker stands, with the ages of what is known at ``now``."""

    def age(instant: float | None) -> Duration | None:
        return None if instant is None else duration(min(max(0.0, now - instant), AGE_MAX_S))

    step_time_s = standing.step_time_s
    return failure_pb2.WorkerProgress(
        local_rank=standing.local_rank,
        step=standing.step,
        step_time=None if step_time_s is None else duration(min(step_time_s, AGE_MAX_S)),
        heartbeat_age=age(standing.heartbeat_at),
        runtime_age=age(standing.beat_at),
        scope=decode_name(encode_name(standing.scope)),
        scope_age=age(standing.scope_since),
        scopes_open=standing.scopes_open,
    )


def limits_from(message: session_pb2.LearnedLimits) -> dict[str, float]:
    """Read the limits that were learned, by section; "" between heartbeats."""
    return {each.section: _seconds(each.limit) for each in message.limits}


def duration(seconds: float) -> Duration:
    """Write a duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _seconds(message: Duration) -> float:
    return message.seconds + message.nanos / 1e9


def _assignment(message: session_pb2.Assignment) -> Assignment:
    return Assignment(
        round_id=message.round_id,
        restart_count=message.restart_count,
        group_rank=message.group_rank,
        group_world_size=message.group_world_size,
        rank_first=message.rank_first,
        world_size=message.world_size,
        role_rank_first=message.role_rank_first,
        role_world_size=message.role_world_size,
        master_addr=message.master_addr,
        master_port=message.master_port,
        reason=message.reason,
    )
