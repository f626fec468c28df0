"""Shell. What agents say as events, and what they are told as messages.

Of a ``Hello`` each field is checked, and what passes is trusted further in. Of a later
message what is unknown or can't be is passed over: it may come from a newer agent.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from msgspec import structs

from drumbeat import VERSION
from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import model
from drumbeat.coordinator.core.events import AgentLeft, BeatReceived, SessionOpened
from drumbeat.coordinator.core.run.adaptive_timeouts import NAMES_MAX, Observation
from drumbeat.coordinator.core.run.notice import Leaving, PendingNotice
from drumbeat.coordinator.observe.steps.worker_progress import SCOPE_BYTES_MAX, WorkerProgress
from drumbeat.coordinator.wire import failure as failures
from drumbeat.coordinator.wire import inprocess, logs, stacks
from drumbeat.model import (
    DURATION_MAX_S,
    Assignment,
    FaultReport,
    GpuUse,
    GroupState,
    Health,
    HealthState,
    HostMemory,
    NoticeKind,
    PreflightFinding,
    Standby,
    Stop,
    WorkerMemory,
)
from drumbeat.text.format import one_line
from drumbeat.text.violation import InvalidField, show_value
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import (
    MessageMapping,
    OnProblem,
    between,
    duration,
    enum_table,
    refuse,
    seconds_of,
)
from drumbeat.wire.messages import (
    DESIRED,
    DIRECTIVE,
    FAULT_ORDER,
    HEALTH,
    NOTICE_REPORT,
    PACE,
    REPLICA_GROUP,
)

Part = TypeVar("Part")
# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
LOCAL_WORLD_SIZE_MAX = 4096
ACCUSATIONS_MAX = 64  # of one beat
GPUS_MAX, GPUS_TOLD_MAX = 1024, 64
LABELS_MAX = 64
LOG_DIR_CHARACTERS_MAX = 1024
# Agents do not accept longer keys and values.
LABEL_BYTES_MAX = 63
PLACES_MAX = 16  # one in another, of a host
FINDINGS_MAX, RANKS_NAMED_MAX = 16, 1024  # of one host, and of each, in the preflight
# Features of agents that the coordinator asks for; of others it keeps nothing.
AGENT_FEATURES = frozenset({"stacks", "logs"})
STEPS_MAX_S = 1e10  # of all steps of a process together; no board can say more
# What the coordinator can do beyond the first version of the protocol.
FEATURES = ("evidence",)
# Of an agent that serves torch's store.
STORE = "store"
# Of an agent that knows the addresses of several coordinators.
SEVERAL = "several-coordinators"
# Of an agent that injects faults of rehearsals.
REHEARSALS = "rehearsals"
RUN_ID_ALLOWED = "1 to 128 of A-Z a-z 0-9 . _ - but neither . nor .."
# Agents use it as a name of a directory, where dots alone mean another one.
_RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}", re.ASCII)
_GROUP_STATES = enum_table(session_pb2.GroupState.DESCRIPTOR, GroupState)

_TEXTS = ("master_addr", "rank_order", "block_label", "preflight", "launcher")
SPEC = MessageMapping(
    model.RunSpec,
    common_pb2.RunSpec,
    parts={"replica_group": REPLICA_GROUP},
    checks=dict.fromkeys(_TEXTS, failures.shown(0)),
)


def _placement(path: str, places: Any) -> tuple[str, ...]:
    if len(places) > PLACES_MAX:
        raise InvalidField(path, len(places), f"at most {PLACES_MAX}")
    return tuple(failures.shown(0)(path, place) for place in places)


_IDENTITY = MessageMapping(
    model.AgentIdentity,
    session_pb2.Hello,
    checks={
        **dict.fromkeys(("host", "address", "role"), failures.shown(1)),
        **dict.fromkeys(("name", "program", "arguments_digest", "host_id"), failures.shown(0)),
        "local_world_size": between(1, LOCAL_WORLD_SIZE_MAX),
        "placement": _placement,
        "block": failures.shown(0),
    },
    given=("incarnation", "has_store", "knows_several", "can_rehearse"),
)
_FINDING = MessageMapping(
    PreflightFinding,
    session_pb2.PreflightFinding,
    checks={"ranks": lambda _, raw: tuple(raw[:RANKS_NAMED_MAX]), "reason": failures.shown(0)},
)
_LEAVING = MessageMapping(Leaving, session_pb2.Leaving, checks={"reason": failures.shown(0)})
_NOTICE = MessageMapping(
    PendingNotice, session_pb2.Notice, parts={"kind": NoticeKind}, given=("until_s",)
)


def refusal_of(problem: InvalidField) -> errors.InvalidRequest:
    """Return the error that refuses a whole request for a field of it."""
    return errors.InvalidRequest(problem.field, problem.value, problem.allowed)


def error_detail(error: errors.CoordinatorError) -> common_pb2.ErrorDetail:
    """Write an error as details that a client can read without parsing prose."""
    detail = common_pb2.ErrorDetail(
        refusal=common_pb2.Refusal.Value(f"REFUSAL_{error.refusal}"),
        is_retryable=error.is_retryable,
    )
    match error:
        case errors.InvalidRequest():
            detail.violation.field, detail.violation.allowed = error.field, error.allowed
            detail.violation.value = show_value(error.value)
        case errors.SpecMismatch():
            for difference in error.differences:
                detail.differences.add(
                    field=difference.field,
                    run=show_value(difference.ours),
                    agent=show_value(difference.theirs),
                )
        case errors.LimitReached():
            detail.limit.name, detail.limit.value = error.args
        case errors.NotLeader():
            detail.leader = error.leader
        case errors.RunClosed(exit_code=int(code)):
            detail.exit_code = code
    return detail


def session_opened(
    message: session_pb2.AgentReport, *, session_id: str, on_problem: OnProblem = refuse
) -> SessionOpened:
    """Read a session's first message, which must be a ``Hello``. Raises ``InvalidRequest``.

    Its beat is read like any other.
    """
    if message.WhichOneof("kind") != "hello":
        kind = message.WhichOneof("kind") or "unknown"
        raise errors.InvalidRequest("kind", kind, "hello as the first message")
    hello, fence, most = message.hello, message.fence, failures.NAME_CHARACTERS_MAX
    name = hello.WhichOneof("purpose")
    if name is None:
        raise errors.InvalidRequest("hello.purpose", "unknown", "run or rendezvous")
    purpose: session_pb2.RunPurpose = getattr(hello, name)
    if bool(launcher := purpose.spec.launcher) != (name == "rendezvous"):
        allowed = "a name" if name == "rendezvous" else "nothing but for the purpose rendezvous"
        raise errors.InvalidRequest(f"hello.{name}.spec.launcher", launcher, allowed)
    if len(hello.gpus) > GPUS_MAX:
        raise errors.InvalidRequest("hello.gpus", len(hello.gpus), f"at most {GPUS_MAX}")
    labels = {_label(key): _label(hello.labels[key]) for key in sorted(hello.labels)[:LABELS_MAX]}
    try:
        incarnation = failures.NAME("fence.incarnation", fence.incarnation)
        return SessionOpened(
            run_id=run_id_of(f"hello.{name}.run_id", purpose.run_id),
            spec=SPEC.read(purpose.spec, f"hello.{name}.spec"),
            session_id=session_id,
            agent=_IDENTITY.read(
                hello,
                "hello",
                incarnation=incarnation,
                has_store=STORE in hello.features,
                knows_several=SEVERAL in hello.features,
                can_rehearse=REHEARSALS in hello.features,
            ),
            beat=read_beat(hello.beat, fence, hello.local_world_size, on_problem),
            uptime_s=failures.read_uptime_s(message),
            version=one_line(hello.version, most),
            labels=labels,
            devices=one_line(gpu_summary(message), most),
            features=AGENT_FEATURES.intersection(hello.features),
            is_id_made_up=purpose.is_id_made_up,
        )
    except InvalidField as problem:
        raise refusal_of(problem) from None


def _label(text: str) -> str:
    """Return the name or the value of a label in one short line."""
    line = one_line(text, LABEL_BYTES_MAX)
    return line.encode()[:LABEL_BYTES_MAX].decode(errors="ignore")


def gpu_summary(message: session_pb2.AgentReport) -> str:
    """Return the GPUs of a checked ``Hello``, e.g. "8 NVIDIA H200"; empty if none."""
    names = (gpu.name[: failures.NAME_CHARACTERS_MAX] for gpu in message.hello.gpus)
    counts = Counter("".join(filter(str.isprintable, name)) for name in names)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def session_event(
    message: session_pb2.AgentReport, opened: SessionOpened, on_problem: OnProblem
) -> BeatReceived | AgentLeft | None:
    """Read a later message of the session that ``opened`` began; ``None`` if it says nothing.

    Raises ``StaleSession``.
    """
    fence, incarnation = message.fence, opened.agent.incarnation
    most = failures.NAME_CHARACTERS_MAX
    if fence.session_id != opened.session_id:
        # Refused here, where it can only end the stream it came from.
        raise errors.StaleSession("the message is of another session than its stream")
    if (fence.run_id, fence.incarnation) != (opened.run_id, incarnation):
        on_problem(InvalidField("fence", f"{fence.run_id} {fence.incarnation}", "as in hello"))
        return None
    whose = {"run_id": fence.run_id, "session_id": fence.session_id, "incarnation": incarnation}
    match message.WhichOneof("kind"):
        case "beat":
            beat = read_beat(message.beat, fence, opened.agent.local_world_size, on_problem)
            return BeatReceived(beat=beat, uptime_s=failures.read_uptime_s(message), **whose)
        case "goodbye":
            return AgentLeft(reason=one_line(message.goodbye.reason, most), **whose)
        case kind:
            on_problem(InvalidField("kind", kind or "unknown", "beat or goodbye"))
            return None


def run_id_of(path: str, run_id: str) -> str:
    """Return a run id that can be one. Raises ``InvalidRequest``."""
    if not _RUN_ID.fullmatch(run_id):
        raise errors.InvalidRequest(path, run_id, RUN_ID_ALLOWED)
    return run_id


def read_beat(
    message: session_pb2.Beat, fence: common_pb2.Fence, size: int, on_problem: OnProblem
) -> model.Beat:
    """Read the beat of an agent with so many workers."""
    round_id = fence.round_id if fence.HasField("round_id") else None
    if round_id is not None and round_id > inprocess.ID_MAX:
        on_problem(InvalidField("fence.round_id", round_id, f"at most {inprocess.ID_MAX}"))
        round_id = None
    state = _GROUP_STATES.get(message.state)
    if state is None:
        on_problem(InvalidField("beat.state", message.state, " ".join(GroupState)))
        # One of a later version is that of workers that run, if there are any.
        state = GroupState.IDLE if round_id is None else GroupState.RUNNING
    failure = None
    if message.HasField("failure"):
        try:
            failure = failures.read_record(
                message.failure, fence, "beat.failure", HEADLINE_CHARACTERS_MAX, on_problem
            )
        except InvalidField as problem:
            on_problem(problem)
    port = message.master_port
    if port > 65535:
        on_problem(InvalidField("beat.master_port", port, "0 to 65535"))
        port = 0
    longest: tuple[Observation, ...] = ()
    if message.observations:
        several, path = message.observations[:NAMES_MAX], "beat.observations"
        longest = failures.OBSERVATION.read_all(several, path, on_problem)
    # No table, here and for workers: nothing is read as often.
    return model.Beat(
        state=state,
        round_id=round_id,
        master_port=port,
        failures_written=message.failures_written,
        workers_alive=message.workers_alive,
        is_start_impossible=message.is_start_impossible,
        workers=_workers(message, size, on_problem) if message.workers else (),
        observations=tuple({observation.section: observation for observation in longest}.values()),
        inprocess=inprocess.report_of(message, size),
        failure=failure,
        workers_done=min(message.workers_done, size),
        leaving=_part(_LEAVING, message, "leaving", on_problem),
        notice=_part(NOTICE_REPORT, message, "notice", on_problem),
        preflight=_FINDING.read_all(message.preflight[:FINDINGS_MAX], "beat.preflight", on_problem),
        pids=tuple(message.pids[:size]) if message.pids else (),
        expired=failures.expired_limits(message, size, on_problem) if message.expired else (),
        memory=_memory(message.memory, size) if message.HasField("memory") else None,
        accusations=_accusations(message, size) if message.accusations else (),
        collectives_moved_s=min(max(0.0, seconds_of(message.collectives_moved)), DURATION_MAX_S),
        health=_health(message, on_problem),
        gpus=_gpus(message.gpus) if message.HasField("gpus") else None,
        log_dir=message.log_dir[:LOG_DIR_CHARACTERS_MAX],
        fault=_fault(message.fault) if message.HasField("fault") else None,
    )


def _fault(message: session_pb2.FaultReport) -> FaultReport:
    refusal = one_line(message.refusal, HEADLINE_CHARACTERS_MAX)
    return FaultReport(number=message.number, refusal=refusal)


def _gpus(message: session_pb2.GpuUse) -> GpuUse:
    """Read what the GPUs of a host do; of more than there can be the first."""
    sizes = (len(message.utilization), len(message.memory_used_bytes), len(message.memory_bytes))
    size = min(GPUS_TOLD_MAX, *sizes, len(message.power_watts))
    return GpuUse(
        utilization=tuple(min(1.0, max(0.0, share)) for share in message.utilization[:size]),
        memory_used_bytes=tuple(message.memory_used_bytes[:size]),
        memory_bytes=tuple(message.memory_bytes[:size]),
        power_watts=tuple(max(0.0, watts) for watts in message.power_watts[:size]),
    )


def _health(beat: session_pb2.Beat, on_problem: OnProblem) -> Health | None:
    """Read the health of a host; one of a later version counts as healthy."""
    health = _part(HEALTH, beat, "health", on_problem)
    if health is None or health.state is not HealthState.UNHEALTHY:
        return health and structs.replace(health, reason="")
    reason = one_line(health.reason, HEADLINE_CHARACTERS_MAX) or "no reason is given"
    return structs.replace(health, reason=reason)


def _accusations(message: session_pb2.Beat, size: int) -> tuple[model.Accusation, ...]:
    """Read whom workers that the host has accuse; others are left out."""
    return tuple(
        model.Accusation(
            local_rank=accusation.local_rank,
            rank=accusation.rank if accusation.HasField("rank") else None,
            reason=one_line(accusation.reason, failures.NAME_CHARACTERS_MAX),
        )
        for accusation in message.accusations[:ACCUSATIONS_MAX]
        if accusation.local_rank < size
    )


def _memory(message: failure_pb2.HostMemory, size: int) -> HostMemory:
    """Read the memory of the workers that the host has, each once; others are left out."""
    workers = {
        worker.local_rank: WorkerMemory(
            local_rank=worker.local_rank,
            resident_bytes=worker.resident_bytes,
            growth_bytes=worker.growth_bytes,
        )
        for worker in message.workers[:size]
        if worker.local_rank < size
    }
    return HostMemory(
        workers=tuple(workers.values()),
        used_bytes=message.used_bytes,
        limit_bytes=message.limit_bytes,
        is_cgroup=message.is_cgroup,
    )


def _part(
    table: MessageMapping[Part], beat: session_pb2.Beat, name: str, on_problem: OnProblem
) -> Part | None:
    """Read a part of a beat, if it has that; one that has a problem counts for nothing."""
    if not beat.HasField(name):  # type: ignore[arg-type] # it is a name of one
        return None
    try:
        return table.read(getattr(beat, name), f"beat.{name}")
    except InvalidField as problem:
        on_problem(problem)
        return None


def _workers(
    message: session_pb2.Beat, size: int, on_problem: OnProblem
) -> tuple[WorkerProgress, ...]:
    """Read where the workers that the host has stand, each once."""
    by_rank: dict[int, WorkerProgress] = {}
    for index, worker in enumerate(message.workers):
        rank, is_told = worker.local_rank, worker.HasField
        if rank >= size or rank in by_rank:
            allowed = f"0 to {size - 1}, each once"
            on_problem(InvalidField("beat.workers.local_rank", rank, allowed))
            continue
        try:
            by_rank[rank] = WorkerProgress(
                local_rank=rank,
                step=worker.step if is_told("step") else None,
                step_time_s=_age(worker.step_time) if is_told("step_time") else None,
                heartbeat_age_s=_age(worker.heartbeat_age) if is_told("heartbeat_age") else None,
                progress_age_s=_age(worker.progress_age) if is_told("progress_age") else None,
                runtime_age_s=_age(worker.runtime_age) if is_told("runtime_age") else None,
                scope=worker.scope.encode()[:SCOPE_BYTES_MAX].decode(errors="ignore"),
                scope_age_s=_age(worker.scope_age) if is_told("scope_age") else None,
                scopes_open=worker.scopes_open,
                is_stopped=worker.is_stopped,
                steps_total=worker.steps_total,
                loss=worker.loss if is_told("loss") else None,
                saved_step=worker.saved_step,
                saved_age_s=_age(worker.saved_age) if is_told("saved_age") else None,
            )
            if worker.steps_timed:
                by_rank[rank] = _with_step_sums(by_rank[rank], worker)
        except OverflowError:  # the table tells of the field that has it, and leaves that out
            by_rank[rank] = failures.PROGRESS.read(worker, f"beat.workers[{index}]", on_problem)
    return tuple(by_rank.values())


def _with_step_sums(progress: WorkerProgress, worker: failure_pb2.WorkerProgress) -> WorkerProgress:
    """Add what the worker's steps took together; nothing if that can't be."""
    seconds = worker.steps_seconds
    if not 0 <= seconds <= STEPS_MAX_S:
        return progress
    return structs.replace(
        progress,
        steps_timed=worker.steps_timed,
        steps_s=seconds,
        is_busy_time=worker.is_busy_time,
    )


def _age(message: Duration) -> float:
    seconds = message.seconds + message.nanos / 1e9
    if 0 <= seconds <= DURATION_MAX_S:
        return seconds
    raise OverflowError


def directive_message(effect: fx.Push, *, run_id: str, term: int) -> session_pb2.Directive:
    """Write what an agent of this run is told, by a coordinator of this term."""
    kind: dict[str, Any]
    match effect:
        case fx.Welcome(session_id=session_id, pace=pace, name=name):
            welcome = session_pb2.Welcome(
                session_id=session_id,
                pace=PACE.write(pace),
                version=VERSION,
                term=term,
                features=FEATURES,
                name=name,
            )
            return session_pb2.Directive(welcome=welcome)
        case fx.SetPace(pace=pace):
            return session_pb2.Directive(pace=PACE.write(pace))
        case fx.TellAuthorities(keys=keys):
            kind = {"authorities": session_pb2.Authorities(keys=keys)}
        case fx.TellLimits(limits=limits):
            kind = {"limits": failures.limits_message(limits)}
        case fx.Direct():
            kind = {"desired": desired_message(effect)}
        case fx.TellNotice(notice=notice):
            message = _NOTICE.write(
                notice,
                round_id=effect.round_id,
                time_left=duration(effect.time_left_s),
                is_over=effect.is_over,
            )
            kind = {"notice": message}
        case fx.Instruct(directive=directive):
            kind = {"inprocess": DIRECTIVE.write(directive)}
        case fx.EndHeld(round_id=round_id, number=number):
            kind = {"end_held": session_pb2.EndHeld(round_id=round_id, number=number)}
        case fx.InjectFault(order=order):
            kind = {"fault": FAULT_ORDER.write(order)}
        case fx.Collect(stacks=wanted):
            asked = map(stacks.REQUEST.write, wanted)
            kind = {"collect": session_pb2.Collect(stacks=asked)}
        case fx.TellLogs(requests=requests):
            written = (logs.REQUEST.write(asked, request_id=i) for i, asked in requests.items())
            kind = {"logs": session_pb2.LogRequests(requests=written)}
    return session_pb2.Directive(run_id=run_id, **kind)


def desired_message(desired: fx.Direct) -> session_pb2.DesiredState:
    """Write a desired state."""
    kind: dict[str, Any]
    match desired.state:
        case Standby() as standby:
            kind = {"standby": DESIRED["standby"].write(standby)}
        case Assignment() as assignment:
            kind = {"run": DESIRED["run"].write(assignment)}
        case Stop() as stop:
            kind = {"stop": DESIRED["stop"].write(stop)}
        case model.Release(reason=reason, is_drained=is_drained):
            kind = {"release": session_pb2.Release(reason=reason, is_drained=is_drained)}
        case model.Exit() as state:
            kind = {"exit": _exit(state)}
    return session_pb2.DesiredState(master_port_spent=desired.master_port_spent, **kind)


# The latest ends that were written: one goes to every agent, and to nearly all the same.
_exits: dict[bool, tuple[model.Verdict, session_pb2.Exit]] = {}


def _exit(wanted: model.Exit) -> session_pb2.Exit:
    """Return a message that may be shared: it is to be copied, not changed."""
    known = _exits.get(wanted.shows_report)
    if known is None or known[0] is not wanted.verdict:
        known = _exits[wanted.shows_report] = wanted.verdict, failures.exit_message(wanted)
    return known[1]
