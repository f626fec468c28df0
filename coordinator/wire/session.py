"""Shell. Protobuf messages to events, and effects to protobuf messages.

What comes from the network is checked here, field by field; what passes is
trusted further in. Nothing else in the coordinator sees a message.
"""

from __future__ import annotations

import re
from collections import Counter

from coordinator.core.events import AgentLeft, BeatReceived, FailureReported, SessionOpened
from coordinator.core.model import (
    DURATION_MAX_S,
    AgentIdentity,
    Assignment,
    Beat,
    Desired,
    Exit,
    FailureRecord,
    FailureReport,
    GroupState,
    Pace,
    Release,
    RunSpec,
    Standby,
    Stop,
    Verdict,
    WorkerRanks,
)
from coordinator.errors import InvalidRequest, StaleSession
from coordinator.wire import inprocess as convert_inprocess
from coordinator.wire import progress as convert_progress
from coordinator.wire.duration import duration, seconds_of
from coordinator.wire.exit_message import exit_message
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2

NAME_CHARACTERS_MAX = 256
# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
LOCAL_WORLD_SIZE_MAX = 4096
GPUS_MAX = 1024
# No agent lives for a century.
UPTIME_MAX_S = 100 * 366 * 86_400.0
# Numbers that every JSON reader keeps exact; no run has so many rounds.
ROUND_ID_MAX = 2**53
RUN_ID_ALLOWED = "1 to 128 of A-Z a-z 0-9 . _ - but neither . nor .."
# Agents use it as a name of a directory, where dots alone mean another one.
_RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}", re.ASCII)
_GROUP_STATES = {
    session_pb2.GroupState.Value(f"GROUP_STATE_{state}"): state for state in GroupState
}


# From the network.


def session_opened(message: session_pb2.OpenRequest, *, session_id: str) -> SessionOpened:
    """Read a session's first message, which must be a ``Hello``."""
    if message.WhichOneof("kind") != "hello":
        kind = message.WhichOneof("kind") or "unknown"
        raise InvalidRequest("kind", kind, "hello as the first message")
    hello, fence = message.hello, message.fence
    if not 1 <= hello.local_world_size <= LOCAL_WORLD_SIZE_MAX:
        allowed = f"1 to {LOCAL_WORLD_SIZE_MAX}"
        raise InvalidRequest("hello.local_world_size", hello.local_world_size, allowed)
    if len(hello.gpus) > GPUS_MAX:
        raise InvalidRequest("hello.gpus", len(hello.gpus), f"at most {GPUS_MAX}")
    return SessionOpened(
        run_id=_run_id(fence),
        session_id=session_id,
        spec=_spec(hello.spec),
        agent=AgentIdentity(
            incarnation=_name("fence.incarnation", fence.incarnation),
            host=_name("hello.host", hello.host),
            address=_name("hello.address", hello.address),
            role=_name("hello.role", hello.role),
            local_world_size=hello.local_world_size,
            name=_name("hello.name", hello.name, least=0),
        ),
        beat=_beat(hello.beat, fence, hello.local_world_size),
        uptime_s=_uptime_s(message),
    )


def gpu_summary(message: session_pb2.OpenRequest) -> str:
    """Return the GPUs of a checked ``Hello`` for people, e.g. "8 NVIDIA H200"; empty if none."""
    names = Counter(
        "".join(letter for letter in gpu.name[:NAME_CHARACTERS_MAX] if letter.isprintable())
        for gpu in message.hello.gpus
    )
    return ", ".join(f"{count} {name}" for name, count in names.items())


def session_event(
    message: session_pb2.OpenRequest, opened: SessionOpened
) -> BeatReceived | AgentLeft:
    """Read a later message of the session that ``opened`` began."""
    fence, incarnation = message.fence, opened.agent.incarnation
    if fence.run_id != opened.run_id:
        raise InvalidRequest("fence.run_id", fence.run_id, f"{opened.run_id!r}, as in hello")
    if fence.incarnation != incarnation:
        raise InvalidRequest("fence.incarnation", fence.incarnation, f"{incarnation!r}")
    if fence.session_id != opened.session_id:
        # Refused here, where it can only end the stream it came from.
        raise StaleSession("the message is of another session than its stream")
    match message.WhichOneof("kind"):
        case "beat":
            return BeatReceived(
                run_id=fence.run_id,
                session_id=fence.session_id,
                incarnation=incarnation,
                beat=_beat(message.beat, fence, opened.agent.local_world_size),
                uptime_s=_uptime_s(message),
            )
        case "goodbye":
            return AgentLeft(
                run_id=fence.run_id,
                session_id=fence.session_id,
                incarnation=incarnation,
                reason=message.goodbye.reason[:NAME_CHARACTERS_MAX],
            )
        case kind:
            raise InvalidRequest("kind", kind or "unknown", "beat or goodbye")


def failure_reported(
    message: failure_pb2.ReportRequest,
    *,
    request_id: int,
    record_bytes_max: int,
    text_characters_max: int,
) -> FailureReported:
    """Read one failure record; over-long texts are cut, an over-long record is refused."""
    record, fence = message.record, message.record.fence
    if record.ByteSize() > record_bytes_max:
        raise InvalidRequest("record", f"{record.ByteSize()} bytes", f"{record_bytes_max} bytes")
    return FailureReported(
        run_id=_run_id(fence),
        request_id=request_id,
        uptime_s=_uptime_s(message),
        record=_failure_record(record, fence, limit=text_characters_max),
    )


def _failure_record(
    record: failure_pb2.FailureRecord, fence: common_pb2.Fence, *, limit: int
) -> FailureRecord:
    """Read a record of the fence's agent and round; texts are cut to ``limit`` characters."""
    if record.sequence < 1:
        raise InvalidRequest("record.sequence", record.sequence, "1 or more")
    if not fence.has_round:
        raise InvalidRequest("record.fence.round_id", "none", "the round the worker was in")
    worker = record.worker
    interruption, iteration = convert_inprocess.interruption_of(record)
    return FailureRecord(
        incarnation=_name("record.fence.incarnation", fence.incarnation),
        sequence=record.sequence,
        round_id=fence.round_id,
        host=_name("record.host", record.host),
        name=_name("record.name", record.name, least=0),
        worker=WorkerRanks(
            rank=worker.rank,
            local_rank=worker.local_rank,
            group_rank=worker.group_rank,
            role_rank=worker.role_rank,
            role=worker.role[:NAME_CHARACTERS_MAX],
        ),
        age_s=_age_s(record),
        pid=record.pid,
        exit_code=record.exit_code,
        signal_name=record.signal_name[:NAME_CHARACTERS_MAX],
        message=record.message[:limit],
        traceback=record.traceback[:limit],
        stderr_tail=record.stderr_tail[:limit],
        is_stopped_by_agent=record.is_stopped_by_agent,
        explanation=record.explanation[:limit],
        hang=convert_progress.hang_of(record, text_characters_max=limit),
        interruption=interruption,
        iteration=iteration,
        size_bytes=record.ByteSize(),
    )


def _uptime_s(message: session_pb2.OpenRequest | failure_pb2.ReportRequest) -> float | None:
    if not message.HasField("uptime"):
        return None
    uptime_s = seconds_of(message.uptime)
    if not 0 <= uptime_s <= UPTIME_MAX_S:
        raise InvalidRequest("uptime", uptime_s, f"0 to {UPTIME_MAX_S:g} seconds")
    return uptime_s


def _age_s(record: failure_pb2.FailureRecord) -> float:
    age_s = seconds_of(record.age)
    if not 0 <= age_s <= DURATION_MAX_S:
        raise InvalidRequest("record.age", age_s, f"0 to {DURATION_MAX_S:g} seconds")
    return age_s


def _run_id(fence: common_pb2.Fence) -> str:
    if not _RUN_ID.fullmatch(fence.run_id):
        raise InvalidRequest("fence.run_id", fence.run_id, RUN_ID_ALLOWED)
    return fence.run_id


def _name(field: str, value: str, *, least: int = 1) -> str:
    if not least <= len(value) <= NAME_CHARACTERS_MAX:
        raise InvalidRequest(field, value, f"{least} to {NAME_CHARACTERS_MAX} characters")
    return value


def _spec(spec: common_pb2.RunSpec) -> RunSpec:
    has_barrier = spec.HasField("exit_barrier_timeout")
    return RunSpec(
        agents_min=spec.agents_min,
        agents_max=spec.agents_max,
        restarts_max=spec.restarts_max,
        join_timeout_s=seconds_of(spec.join_timeout),
        last_call_s=seconds_of(spec.last_call),
        exit_barrier_timeout_s=seconds_of(spec.exit_barrier_timeout) if has_barrier else None,
        shutdown_timeout_s=seconds_of(spec.shutdown_timeout),
        coordinator_grace_s=seconds_of(spec.coordinator_grace),
        master_addr=_name("spec.master_addr", spec.master_addr, least=0),
        master_port=spec.master_port,
    )


def _beat(beat: session_pb2.Beat, fence: common_pb2.Fence, local_world_size: int) -> Beat:
    if not 0 <= beat.master_port <= 65535:
        raise InvalidRequest("beat.master_port", beat.master_port, "0 to 65535")
    if fence.round_id > ROUND_ID_MAX:
        raise InvalidRequest("fence.round_id", fence.round_id, f"at most {ROUND_ID_MAX}")
    return Beat(
        state=_group_state(beat.state),
        round_id=fence.round_id if fence.has_round else None,
        master_port=beat.master_port,
        failures_written=beat.failures_written,
        workers_alive=beat.workers_alive,
        is_start_impossible=beat.is_start_impossible,
        workers=convert_progress.workers_of(beat, local_world_size),
        observations=convert_progress.observations_of(beat),
        inprocess=convert_inprocess.report_of(beat, local_world_size),
        failure=_failure_record(beat.failure, fence, limit=HEADLINE_CHARACTERS_MAX)
        if beat.HasField("failure")
        else None,
        workers_done=min(beat.workers_done, local_world_size),
    )


def _group_state(value: session_pb2.GroupState.ValueType) -> GroupState:
    if value not in _GROUP_STATES:
        raise InvalidRequest("beat.state", value, " ".join(GroupState))
    return _GROUP_STATES[value]


# To the network.


def desired_message(desired: Desired) -> session_pb2.Desired:
    """Write a desired state."""
    message = session_pb2.Desired(master_port_spent=desired.master_port_spent)
    match desired.state:
        case Standby() as standby:
            message.standby.CopyFrom(_standby(standby))
        case Assignment() as assignment:
            message.run.CopyFrom(_assignment(assignment))
        case Stop(reason=reason):
            message.stop.reason = reason
        case Release(reason=reason):
            message.release.reason = reason
        case Exit() as state:
            message.exit.CopyFrom(_exits.message(state))
    return message


def pace_message(pace: Pace) -> session_pb2.Pace:
    """Write a pace."""
    return session_pb2.Pace(
        heartbeat_interval=duration(pace.heartbeat_interval_s),
        lease=duration(pace.lease_s),
        reconnect_delay_max=duration(pace.reconnect_delay_max_s),
    )


class _Exits:
    """Writes an end once: it goes to every agent, and to nearly all of them the same."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._messages: dict[bool, session_pb2.Exit] = {}

    def message(self, wanted: Exit) -> session_pb2.Exit:
        """Return a message that may be shared: it is to be copied, not changed."""
        if self._verdict is not wanted.verdict:
            self._verdict, self._messages = wanted.verdict, {}
        known = self._messages.get(wanted.shows_report)
        if known is None:
            known = exit_message(wanted, verdict_message(wanted.verdict))
            self._messages[wanted.shows_report] = known
        return known


_exits = _Exits()


def verdict_message(verdict: Verdict) -> session_pb2.Verdict:
    """Write a verdict, whole."""
    return session_pb2.Verdict(
        is_success=verdict.is_success,
        reason=verdict.reason,
        restart_count=verdict.restart_count,
        round_id=verdict.round_id or 0,
        report=_report(verdict.report) if verdict.report else None,
    )


def spec_message(spec: RunSpec) -> common_pb2.RunSpec:
    """Write a spec."""
    barrier = spec.exit_barrier_timeout_s
    return common_pb2.RunSpec(
        agents_min=spec.agents_min,
        agents_max=spec.agents_max,
        restarts_max=spec.restarts_max,
        join_timeout=duration(spec.join_timeout_s),
        last_call=duration(spec.last_call_s),
        exit_barrier_timeout=None if barrier is None else duration(barrier),
        shutdown_timeout=duration(spec.shutdown_timeout_s),
        coordinator_grace=duration(spec.coordinator_grace_s),
        master_addr=spec.master_addr,
        master_port=spec.master_port,
    )


def group_state(state: GroupState) -> session_pb2.GroupState.ValueType:
    """Write a group state."""
    return session_pb2.GroupState.Value(f"GROUP_STATE_{state}")


def _standby(standby: Standby) -> session_pb2.Standby:
    left = standby.time_left_s
    return session_pb2.Standby(
        reason=standby.reason,
        agents_present=standby.agents_present,
        agents_wanted=standby.agents_wanted,
        time_left=None if left is None else duration(left),
    )


def _assignment(assignment: Assignment) -> session_pb2.Assignment:
    seat, current = assignment.seat, assignment.round
    return session_pb2.Assignment(
        round_id=current.round_id,
        restart_count=current.restart_count,
        group_rank=seat.group_rank,
        group_world_size=len(current.seats),
        rank_first=seat.rank_first,
        world_size=current.world_size,
        role_rank_first=seat.role_rank_first,
        role_world_size=seat.role_world_size,
        master_addr=current.master_addr,
        master_port=current.master_port,
        reason=current.reason,
    )


def _report(report: FailureReport) -> failure_pb2.FailureReport:
    return failure_pb2.FailureReport(
        root_causes=[_failure(record) for record in report.root_causes],
        victims=[_failure(record) for record in report.victims],
        victims_count=report.victims_count,
        world_size=report.world_size,
        standings=[convert_progress.standing_message(at) for at in report.standings],
        standings_count=report.standings_count,
        earlier=report.earlier,
    )


def _failure(record: FailureRecord) -> failure_pb2.FailureRecord:
    worker = record.worker
    return failure_pb2.FailureRecord(
        fence=common_pb2.Fence(
            round_id=record.round_id, has_round=True, incarnation=record.incarnation
        ),
        sequence=record.sequence,
        host=record.host,
        name=record.name,
        worker=failure_pb2.WorkerRanks(
            rank=worker.rank,
            local_rank=worker.local_rank,
            group_rank=worker.group_rank,
            role_rank=worker.role_rank,
            role=worker.role,
        ),
        pid=record.pid,
        exit_code=record.exit_code,
        signal_name=record.signal_name,
        message=record.message,
        traceback=record.traceback,
        stderr_tail=record.stderr_tail,
        is_stopped_by_agent=record.is_stopped_by_agent,
        explanation=record.explanation,
        hang=convert_progress.hang_message(record.hang) if record.hang else None,
        interruption=convert_inprocess.interruption_kind(record.interruption),
        iteration=record.iteration,
    )
