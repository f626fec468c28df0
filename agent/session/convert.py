"""Shell. Protobuf messages to the agent's values and back. Nothing else sees a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration

from agent.core.model import (
    Assignment,
    Beat,
    DesiredState,
    Exit,
    Failure,
    GroupState,
    Pace,
    Standby,
    Stop,
)
from agent.session.convert_inprocess import report_message
from agent.settings.config import AgentConfig
from agent.watchdog.hang import Hang, HangKind, Standing
from agent.workers.devices.gpus import Gpu
from agent.workers.failures.exit_status import signal_name
from agent.workers.failures.verdict import read_report
from drumbeat import VERSION
from drumbeat.inprocess import InterruptionKind
from drumbeat.mapping import MessageMapping, duration, seconds_of
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from worker_sdk.board.layout import decode_name, encode_name

NOTHING_OBSERVED: Mapping[str, tuple[int, float]] = {}

COUNT_MAX = 2**63 - 1
# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
AGE_MAX_S = 10 * 365 * 24 * 3600.0
"""What a worker says of itself may be any number; the protocol's durations end somewhere."""

_PACE = MessageMapping(Pace, session_pb2.Pace)
_ASSIGNMENT = MessageMapping(Assignment, session_pb2.Assignment)
_STANDBY = MessageMapping(Standby, session_pb2.Standby)
GPU = MessageMapping(Gpu, session_pb2.GpuInfo, given=("memory_used_bytes", "pci_address"))
_BEAT = MessageMapping(
    Beat,
    session_pb2.Beat,
    parts={"state": GroupState},
    given=("round_id", "inprocess", "failure"),
)
# Of a hang and a failure, what is the same in their messages.
_HANG = MessageMapping(
    Hang,
    failure_pb2.Hang,
    parts={"kind": HangKind},
    given=("standing", "noticed_at", "evidence", "purpose"),
)
_RECORD = MessageMapping(
    Failure,
    failure_pb2.FailureRecord,
    parts={"interruption": InterruptionKind},
    given=("rank", "local_rank", "group_rank", "role_rank", "happened_at", "round_id", "hang"),
)


def desired_from(message: session_pb2.DesiredState) -> DesiredState | None:
    """Read a desired state; ``None`` if it is of a kind this agent does not know."""
    match message.WhichOneof("kind"):
        case "standby":
            return _STANDBY.read(message.standby)
        case "run":
            return _ASSIGNMENT.read(message.run)
        case "stop":
            return Stop(reason=message.stop.reason)
        case "exit":
            verdict = message.exit.verdict
            report = None if verdict.is_success else read_report(message.exit)
            return Exit(is_success=verdict.is_success, reason=verdict.reason, report=report)
        case "release":
            return Exit(is_success=True, reason=message.release.reason, is_released=True)
        case _:
            return None


def pace_from(message: session_pb2.Pace) -> Pace:
    """Read a pace."""
    return _PACE.read(message)


def limits_from(message: session_pb2.LearnedLimits) -> dict[str, float]:
    """Read the limits that were learned, by section; "" between heartbeats."""
    return {each.section: seconds_of(each.limit) for each in message.limits}


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


def hello_message(
    config: AgentConfig,
    beat: session_pb2.Beat,
    *,
    host: str,
    address: str,
    term: int = 0,
    gpus: Iterable[Gpu] = (),
) -> session_pb2.Hello:
    """Write who this agent is, and that it comes to take part in its run."""
    purpose = session_pb2.RunPurpose(run_id=config.run_id, spec=spec_message(config))
    return session_pb2.Hello(
        run=purpose,
        version=VERSION,
        labels=dict(label.split("=", 1) for label in config.labels),
        term=term,
        host=host,
        name=config.name,
        address=address,
        role=config.role,
        local_world_size=config.nproc_per_node,
        beat=beat,
        gpus=map(GPU.write, gpus),
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
    message: session_pb2.Beat = _BEAT.write(
        beat,
        workers=[progress_message(standing, now=now) for standing in standings],
        observations=[
            session_pb2.Observation(
                section=name, longest=duration(longest_s), samples=min(count, COUNT_MAX)
            )
            for name, (count, longest_s) in observations.items()
        ],
        inprocess=None if beat.inprocess is None else report_message(beat.inprocess),
        failure=None if beat.failure is None else _in_short(beat.failure, host=host, now=now),
    )
    return message


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


def failure_message(
    failure: Failure, *, run_id: str, incarnation: str, host: str, role: str, name: str = ""
) -> failure_pb2.FailureRecord:
    """Write a failure; its age is set when it is sent."""
    record: failure_pb2.FailureRecord = _RECORD.write(
        failure,
        fence=common_pb2.Fence(run_id=run_id, round_id=failure.round_id, incarnation=incarnation),
        host=host,
        name=name,
        worker=failure_pb2.WorkerRanks(
            rank=failure.rank,
            local_rank=failure.local_rank,
            group_rank=failure.group_rank,
            role_rank=failure.role_rank,
            role=role,
        ),
        signal_name=signal_name(failure.exit_code),
        hang=None if failure.hang is None else hang_message(failure.hang),
    )
    return record


def hang_message(hang: Hang) -> failure_pb2.Hang:
    """Write what was found of a worker that hung; its ages are those at that time."""
    message: failure_pb2.Hang = _HANG.write(
        replace(hang, elapsed_s=max(0.0, hang.elapsed_s)),
        progress=progress_message(hang.standing, now=hang.noticed_at),
        stacks=hang.evidence.stacks,
        evidence=hang.evidence.notes,
    )
    return message


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
