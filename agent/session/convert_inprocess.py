"""Shell. Messages of in-process restart, checked, to the agent's values and back."""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration

from agent.core.inprocess.model import (
    Abort,
    Begin,
    Complete,
    Completed,
    Entered,
    InprocessDirective,
    InprocessReport,
    Interrupt,
    Interrupted,
    Interruption,
    InterruptionKind,
    Seat,
    Terminated,
    WorkerOrder,
    WorkerStep,
)
from agent.watchdog.calls import InvalidField
from drumbeat.durations import DURATION_MAX_S
from drumbeat.v1 import inprocess_pb2
from drumbeat.worker.v1 import iteration_pb2, worker_pb2

MESSAGE_BYTES_MAX = 4 * 1024
TRACEBACK_BYTES_MAX = 64 * 1024
GROUP_BYTES_MAX = 128
ALLOWED_BYTES_MAX = 2048
RULES_MAX = 16
ITERATION_MAX = 2**63 - 1

# What a worker can know of itself; the others are for agents and the coordinator to say.
_SAID = frozenset(
    {
        InterruptionKind.EXCEPTION,
        InterruptionKind.BASE_EXCEPTION,
        InterruptionKind.SOFT_TIMEOUT,
        InterruptionKind.UNHEALTHY,
    }
)
_SAID_AT_THE_END = _SAID | {InterruptionKind.TERMINATED, InterruptionKind.EXITED}


def step_from(message: worker_pb2.WorkerStep, local_rank: int) -> WorkerStep | None:
    """Read a worker's step, ``None`` if it is of a later version. Raises ``InvalidField``."""
    if message.iteration > ITERATION_MAX:
        raise InvalidField(f"step.iteration: {message.iteration} is given, must be below 2**63")
    kind: Entered | Completed | Interrupted | Terminated
    match message.WhichOneof("kind"):
        case "entered":
            _check_bytes("step.entered.group", message.entered.group, GROUP_BYTES_MAX)
            spec = _spec_from(message.entered.spec)
            kind = Entered(spec=spec, group=message.entered.group)
        case "completed":
            kind = Completed()
        case "interrupted":
            found = None
            if message.interrupted.HasField("interruption"):
                said, path = message.interrupted.interruption, "step.interrupted.interruption"
                found = _interruption_from(said, local_rank, _SAID, path)
            kind = Interrupted(interruption=found)
        case "terminated":
            if not message.terminated.HasField("interruption"):
                raise InvalidField("step.terminated.interruption: is missing")
            ending, path = message.terminated.interruption, "step.terminated.interruption"
            kind = Terminated(
                interruption=_interruption_from(ending, local_rank, _SAID_AT_THE_END, path)
            )
        case _:
            return None
    return WorkerStep(iteration=message.iteration, kind=kind)


def _interruption_from(
    message: iteration_pb2.Interruption,
    local_rank: int,
    known: frozenset[InterruptionKind],
    path: str,
) -> Interruption:
    """Read what a worker says of itself; whose word it is, is known better from its token."""
    names = {iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{k}"): k for k in known}
    kind = names.get(message.kind)
    if kind is None:
        raise InvalidField(f"{path}.kind: {message.kind} is given, which is not a worker's to say")
    _check_bytes(f"{path}.message", message.message, MESSAGE_BYTES_MAX)
    _check_bytes(f"{path}.traceback", message.traceback, TRACEBACK_BYTES_MAX)
    return Interruption(
        local_rank=local_rank, kind=kind, message=message.message, traceback=message.traceback
    )


def _spec_from(message: iteration_pb2.InprocessSpec) -> bytes:
    path = "step.entered.spec"
    if len(message.rules) > RULES_MAX:
        raise InvalidField(f"{path}.rules: there are {len(message.rules)}, at most {RULES_MAX}")
    for number, rule in enumerate(message.rules):
        length = len(rule.groups.allowed)
        if length > ALLOWED_BYTES_MAX:
            where = f"{path}.rules[{number}].groups.allowed"
            raise InvalidField(f"{where}: has {length} bytes, may have {ALLOWED_BYTES_MAX}")
    for name in ("last_call_wait", "barrier_timeout", "completion_timeout"):
        value: Duration = getattr(message, name)
        seconds = value.seconds + value.nanos / 1e9
        if not (math.isfinite(seconds) and 0 <= seconds <= DURATION_MAX_S):
            raise InvalidField(
                f"{path}.{name}: {seconds:g} s is given, must be 0 or more and <= a month"
            )
    return message.SerializeToString(deterministic=True)


def _check_bytes(path: str, text: str, limit: int) -> None:
    length = len(text.encode("utf-8", "replace"))
    if length > limit:
        raise InvalidField(f"{path}: has {length} bytes, may have {limit}")


def order_message(order: WorkerOrder) -> worker_pb2.WorkerOrder:
    """Write what a worker shall do."""
    message = worker_pb2.WorkerOrder(iteration=order.iteration)
    match order.kind:
        case Begin(seats=(seat,)) as begin:
            message.begin.CopyFrom(
                worker_pb2.WorkerBegin(
                    rank=seat.rank,
                    world_size=begin.world_size,
                    active_rank=seat.active_rank,
                    active_world_size=begin.active_world_size,
                    master_addr=begin.master_addr,
                    master_port=begin.master_port,
                    role_rank=seat.role_rank,
                    role_world_size=seat.role_world_size,
                )
            )
        case Interrupt(reason=reason):
            message.interrupt.reason = reason
        case Abort(reason=reason):
            message.abort.reason = reason
        case Complete():
            message.complete.SetInParent()
    return message


def greeting(step: WorkerStep | None, order: WorkerOrder | None) -> worker_pb2.Greeted:
    """Write where a program begins, after what the worker said and was told last.

    A worker may be several programs, one after the other.
    """
    if step is None:
        return worker_pb2.Greeted()
    told = order if order is not None and order.iteration >= step.iteration else None
    left = ""
    if told is not None and isinstance(told.kind, Abort):
        left = f"no iteration follows: {told.kind.reason}"
    elif isinstance(step.kind, Terminated) and not (told and isinstance(told.kind, Complete)):
        left = f"it has left this round's iterations: {step.kind.interruption.message}"
    return worker_pb2.Greeted(next_iteration=step.iteration + 1, left=left)


def report_message(report: InprocessReport) -> inprocess_pb2.InprocessReport:
    """Write what this host's workers do."""
    message = inprocess_pb2.InprocessReport(
        iteration=report.iteration,
        step=inprocess_pb2.InprocessStep.Value(f"INPROCESS_STEP_{report.step}"),
        terminated=map(interruption_message, report.terminated),
        interruptions=map(interruption_message, report.interruptions),
        groups=report.groups,
        ahead=report.ahead,
    )
    if report.spec is not None:
        message.spec.MergeFromString(report.spec)
        message.spec.SetInParent()  # also if all of it is left at zero
    return message


def interruption_message(interruption: Interruption) -> iteration_pb2.Interruption:
    """Write what ended an iteration for a worker, in a report: without the traceback."""
    return iteration_pb2.Interruption(
        local_rank=interruption.local_rank,
        kind=kind_value(interruption.kind),
        message=interruption.message,
    )


def kind_value(kind: InterruptionKind) -> iteration_pb2.InterruptionKind.ValueType:
    """Write a kind."""
    return iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{kind}")


def kind_from(value: iteration_pb2.InterruptionKind.ValueType) -> InterruptionKind | None:
    """Read a kind, ``None`` if there is none or it is of a later version."""
    names = {kind_value(kind): kind for kind in InterruptionKind}
    return names.get(value)


def directive_from(message: inprocess_pb2.InprocessDirective) -> InprocessDirective | None:
    """Read what the coordinator wants; ``None`` if it is of a kind this agent does not know."""
    kind: Begin | Interrupt | Complete
    match message.WhichOneof("kind"):
        case "begin":
            begin = message.begin
            kind = Begin(
                seats=tuple(map(_seat_from, begin.seats)),
                world_size=begin.world_size,
                active_world_size=begin.active_world_size,
                master_addr=begin.master_addr,
                master_port=begin.master_port,
            )
        case "interrupt":
            kind = Interrupt(reason=message.interrupt.reason)
        case "complete":
            kind = Complete()
        case _:
            return None
    return InprocessDirective(
        round_id=message.round_id,
        iteration=message.iteration,
        kind=kind,
        terminated=tuple(message.terminated),
    )


def _seat_from(message: inprocess_pb2.InprocessSeat) -> Seat:
    return Seat(
        local_rank=message.local_rank,
        rank=message.rank,
        active_rank=message.active_rank if message.HasField("active_rank") else None,
        role_rank=message.role_rank,
        role_world_size=message.role_world_size,
    )
