"""Shell. The agent's values as messages, and workers' messages, checked, as values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.agent.core.model import Beat, Failure, HostHealth, InprocessReport
from drumbeat.agent.core.notice import Leaving
from drumbeat.agent.core.watchdog.model import Exceeded
from drumbeat.agent.failures.exit_status import signal_name
from drumbeat.agent.model.hang import Hang, WorkerProgress
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.placement import labels_of
from drumbeat.agent.watchdog.worker_messages import INTERRUPTION
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.inprocess import InprocessStep, InterruptionKind
from drumbeat.model import GroupState, HangKind, Health
from drumbeat.v1 import common_pb2, failure_pb2, inprocess_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping, duration, enum_table
from drumbeat.wire.messages import FAULT_REPORT, HEALTH, NOTICE_REPORT, PREFLIGHT, REPLICA_GROUP
from drumbeat.worker.v1 import iteration_pb2
from worker_sdk.board.layout import decode_text, encode_text

INT64_MAX = 2**63 - 1
INCARNATION_KEY_BYTES = 32
# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
AGE_MAX_S = 10 * 365 * 24 * 3600.0
"""What a worker says of itself may be any number; the protocol's durations end somewhere."""

EXCEEDED_MAX = 256  # limits of one beat

GPU = MessageMapping(Gpu, session_pb2.GpuInfo, given=("memory_used_bytes", "pci_address"))
_BEAT = MessageMapping(
    Beat,
    session_pb2.Beat,
    parts={
        "state": GroupState,
        "notice": NOTICE_REPORT,
        "preflight": PREFLIGHT,
        "fault": FAULT_REPORT,
    },
    given=("round_id", "inprocess", "failure", "leaving", "exceeded", "health"),
)
# Of a hang and a failure, what is the same in their messages.
_HANG = MessageMapping(
    Hang,
    failure_pb2.Hang,
    parts={"kind": HangKind},
    given=("standing", "noticed_at", "evidence", "purpose"),
)
_RANKS = ("rank", "local_rank", "group_rank", "role_rank")
_RECORD = MessageMapping(
    Failure,
    failure_pb2.FailureRecord,
    parts={"interruption": InterruptionKind},
    given=(*_RANKS, "happened_at", "round_id", "hang"),
)
_REPORT = MessageMapping(
    InprocessReport,
    inprocess_pb2.InprocessReport,
    parts={
        "step": InprocessStep,
        "terminated": INTERRUPTION,
        "interruptions": INTERRUPTION,
        "before": INTERRUPTION,
    },
    given=("spec",),
)

_DURATIONS = (
    "join_timeout", "last_call", "exit_barrier_timeout", "shutdown_timeout", "coordinator_grace",
    "restart_delay_max", "restart_window",
)  # fmt: skip


kind_from = enum_table(iteration_pb2.InterruptionKind.DESCRIPTOR, InterruptionKind).get
"""Reads a kind, ``None`` if there is none or it is of a later version."""


@dataclass(slots=True, kw_only=True)
class Identity:
    """Who this agent is to the coordinator, for the life of the process.

    ``began_at`` is a monotonic instant; ``term`` the highest of those that welcomed it, 0 before.
    Who has the key speaks for the incarnation.
    """

    incarnation: str
    incarnation_key: bytes = field(default=b"", repr=False)
    host: str
    address: str = ""
    began_at: float = 0.0
    gpus: tuple[Gpu, ...] = ()
    term: int = 0
    boot_id: str = ""
    launcher: str = ""  # another one than this agent, which starts the workers and restarts them


FEATURES = ("stacks", "logs", "rehearsals")
"""What every agent that has the workers can do beyond the first version of the protocol."""


def incarnation_of(key: bytes) -> str:
    """Return the incarnation that a key proves."""
    return hashlib.sha256(key).hexdigest()[:32]


def hello_message(
    config: AgentConfig, identity: Identity, beat: session_pb2.Beat
) -> session_pb2.Hello:
    """Write who this agent is, and that it comes to take part in its run, as it was told."""
    durations = {name: getattr(config, name) for name in _DURATIONS}
    durations["coordinator_grace"] = config.grace_s
    if config.exclude_after:
        durations |= {name: getattr(config, name) for name in ("exclude_window", "exclude_for")}
    # Without a preflight it has no limit, whatever this agent was told.
    durations["preflight_timeout"] = config.preflight_timeout if config.preflight else None
    given: dict[str, Any] = {
        name: duration(value) for name, value in durations.items() if value is not None
    }
    factor, steps = config.straggler_rule
    spec = common_pb2.RunSpec(
        agents_min=config.min_nodes,
        agents_max=config.max_nodes,
        restarts_max=config.max_restarts,
        master_addr=config.master_addr,
        master_port=config.master_port,
        straggler_factor=factor,
        straggler_steps=steps,
        no_progress_limit=config.no_progress_limit,
        restart_rules=config.restart_rule,
        free_restarts_max=config.free_restarts_max,
        exclude_after=config.exclude_after,
        rank_order=",".join(config.rank_order),
        block_label=config.block_label or "",
        block_size=config.block_size,
        preflight=config.preflight or "",
        launcher=identity.launcher,
        replica_group=None if config.group is None else REPLICA_GROUP.write(config.group),
        **given,
    )
    purpose = session_pb2.RunPurpose(
        run_id=config.run_id, spec=spec, is_id_made_up=config.is_run_id_made_up
    )
    is_launched = not identity.launcher
    return session_pb2.Hello(
        run=purpose if is_launched else None,
        rendezvous=None if is_launched else purpose,
        version=VERSION,
        features=_features(config, FEATURES if is_launched else ()),
        labels=labels_of(config.labels),
        term=identity.term,
        incarnation_key=identity.incarnation_key,
        host=identity.host,
        name=config.name,
        address=identity.address,
        role=config.role,
        local_world_size=config.nproc_per_node,
        program=config.program.name,
        arguments_digest=config.program.arguments_digest,
        host_id=config.identity or identity.boot_id,
        placement=config.placement,
        block=config.block,
        beat=beat,
        gpus=map(GPU.write, identity.gpus),
    )


def _features(config: AgentConfig, more: Iterable[str]) -> Iterable[str]:
    yield from more
    if config.serves_store:
        yield "store"
    if config.knows_several:
        yield "several-coordinators"


def beat_message(
    beat: Beat,
    *,
    standings: Iterable[WorkerProgress] = (),
    observations: Mapping[str, tuple[int, float]] = MappingProxyType({}),
    pids: Iterable[int] = (),
    now: float = 0.0,
    host: str = "",
) -> session_pb2.Beat:
    """Write the actual state of ``host``, and where its workers stand at ``now``."""
    message: session_pb2.Beat = _BEAT.write(
        beat,
        workers=[progress_message(standing, now=now) for standing in standings],
        observations=[
            session_pb2.Observation(
                section=name, longest=duration(longest_s), samples=min(count, INT64_MAX)
            )
            for name, (count, longest_s) in observations.items()
        ],
        pids=pids,
        inprocess=None if beat.inprocess is None else report_message(beat.inprocess),
        leaving=beat.leaving and _leaving(beat.leaving, now),
        expired=[_expired(limit, now) for limit in beat.exceeded[:EXCEEDED_MAX]],
        failure=None if beat.failure is None else _in_short(beat.failure, host=host, now=now),
        health=beat.health and _health(beat.health, now),
    )
    return message


def _health(health: HostHealth, now: float) -> session_pb2.Health:
    age_s = min(max(0.0, now - health.since), AGE_MAX_S)
    message: session_pb2.Health = HEALTH.write(
        Health(state=health.state, reason=health.reason, age_s=age_s)
    )
    return message


def _expired(exceeded: Exceeded, now: float) -> session_pb2.ExpiredLimit:
    return session_pb2.ExpiredLimit(
        number=exceeded.number,
        local_rank=exceeded.worker.local_rank,
        kind=failure_pb2.HangKind.Value(f"HANG_KIND_{exceeded.kind}"),
        scope=decode_text(encode_text(exceeded.scope)),
        limit=duration(min(exceeded.limit_s, AGE_MAX_S)),
        elapsed=duration(min(max(0.0, now - exceeded.since), AGE_MAX_S)),
        is_held=exceeded.is_held,
    )


def _leaving(leaving: Leaving, now: float) -> session_pb2.Leaving:
    left = duration(max(0.0, leaving.until - now))
    return session_pb2.Leaving(reason=leaving.reason, time_left=left)


def _in_short(failure: Failure, *, host: str, now: float) -> failure_pb2.FailureRecord:
    """Write what names a failure in one line; its record has the rest."""
    headline = failure.message.strip().partition("\n")[0][:HEADLINE_CHARACTERS_MAX]
    without = {"traceback": "", "stderr_tail": "", "explanation": "", "output_files": ()}
    brief = replace(failure, message=headline, **without)
    message = _record(brief, host=host)
    if message.HasField("hang"):
        message.hang.ClearField("stacks")
        message.hang.ClearField("evidence")
    message.age.CopyFrom(duration(max(0.0, now - failure.happened_at)))
    return message


def failure_message(
    failure: Failure, config: AgentConfig, identity: Identity
) -> failure_pb2.FailureRecord:
    """Write a failure; its age is set when it is sent."""
    record = _record(failure, host=identity.host)
    record.name, record.worker.role, record.fence.run_id = config.name, config.role, config.run_id
    record.fence.round_id, record.fence.incarnation = failure.round_id, identity.incarnation
    return record


def _record(failure: Failure, *, host: str) -> failure_pb2.FailureRecord:
    hang = failure.hang
    record: failure_pb2.FailureRecord = _RECORD.write(
        failure,
        host=host,
        worker=failure_pb2.WorkerRanks(**{name: getattr(failure, name) for name in _RANKS}),
        signal_name=signal_name(failure.exit_code),
        # Its ages are those at that time.
        hang=hang
        and _HANG.write(
            replace(hang, elapsed_s=max(0.0, hang.elapsed_s)),
            progress=progress_message(hang.standing, now=hang.noticed_at),
            stacks=hang.evidence.stacks,
            evidence=hang.evidence.notes,
        ),
    )
    return record


def progress_message(standing: WorkerProgress, *, now: float) -> failure_pb2.WorkerProgress:
    """Write where a worker stands, with the ages of what is known at ``now``."""

    def age(instant: float | None) -> Duration | None:
        return None if instant is None else duration(min(max(0.0, now - instant), AGE_MAX_S))

    step_time_s = standing.step_time_s
    message = failure_pb2.WorkerProgress(
        local_rank=standing.local_rank,
        step=standing.step,
        step_time=None if step_time_s is None else duration(min(step_time_s, AGE_MAX_S)),
        heartbeat_age=age(standing.heartbeat_at),
        progress_age=age(standing.progress_since),
        runtime_age=age(standing.beat_at),
        scope=decode_text(encode_text(standing.scope)),
        scope_age=age(standing.scope_since),
        scopes_open=standing.scopes_open,
        is_stopped=standing.is_stopped,
        steps_total=standing.steps_total,
        loss=standing.loss,
        saved_step=standing.saved_step,
        saved_age=age(standing.saved_at),
    )
    if standing.steps_timed:
        message.steps_timed = min(standing.steps_timed, INT64_MAX)
        message.steps_seconds = standing.steps_s
        message.is_busy_time = standing.is_busy_time
    return message


def report_message(report: InprocessReport) -> inprocess_pb2.InprocessReport:
    """Write what this host's workers do."""
    message: inprocess_pb2.InprocessReport = _REPORT.write(report)
    if report.spec is not None:
        message.spec.MergeFromString(report.spec)
        message.spec.SetInParent()  # also if all of it is left at zero
    return message
