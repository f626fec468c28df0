"""Shell. Messages of in-process restart, checked, to the agent's values and back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from agent.core.inprocess.model import Abort, InprocessReport, WorkerOrder, WorkerStep
from agent.watchdog.core.model import WorkerKey
from drumbeat.inprocess import (
    DirectiveKind,
    InprocessDirective,
    InprocessSeat,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from drumbeat.mapping import MessageMapping, enum_table
from drumbeat.v1 import inprocess_pb2
from drumbeat.violation import InvalidField
from drumbeat.worker.v1 import iteration_pb2, worker_pb2

MESSAGE_BYTES_MAX = 4 * 1024
TRACEBACK_BYTES_MAX = 64 * 1024
GROUP_BYTES_MAX = 128
SPEC_BYTES_MAX = 40 * 1024
"""Enough for 16 rules, with sizes of groups of 16,383 workers each."""
ITERATION_MAX = 2**63 - 1

# Fields that have the same name here and there.
_BEGIN = ("world_size", "active_world_size", "master_addr", "master_port")

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

_KINDS = enum_table(iteration_pb2.InterruptionKind.DESCRIPTOR, InterruptionKind)
_INTERRUPTION = MessageMapping(
    Interruption,
    iteration_pb2.Interruption,
    parts={"kind": InterruptionKind},
    given=("traceback",),
)
_REPORT = MessageMapping(
    InprocessReport,
    inprocess_pb2.InprocessReport,
    parts={
        "step": InprocessStep,
        "terminated": _INTERRUPTION,
        "interruptions": _INTERRUPTION,
    },
    given=("spec",),
)


def step_from(message: worker_pb2.WorkerStep, worker: WorkerKey) -> WorkerStep | None:
    """Read a worker's step, ``None`` if it is of a later version. Raises ``InvalidField``."""
    if message.iteration > ITERATION_MAX:
        raise InvalidField("step.iteration", message.iteration, "below 2**63")
    kind = message.WhichOneof("kind")
    step = partial(WorkerStep, worker=worker, iteration=message.iteration)
    match kind:
        case "entered":
            _check_bytes("step.entered.group", message.entered.group, GROUP_BYTES_MAX)
            spec = _spec_from(message.entered.spec)
            return step(kind=kind, spec=spec, group=message.entered.group)
        case "interrupted" | "terminated":
            content, path = getattr(message, kind), f"step.{kind}.interruption"
            if content.HasField("interruption"):
                known = _SAID if kind == "interrupted" else _SAID_AT_THE_END
                why = _interruption_from(content.interruption, worker.local_rank, known, path)
                return step(kind=kind, interruption=why)
            if kind == "terminated":
                raise InvalidField(path, None, "an interruption")
            return step(kind=kind)
        case "completed":
            return step(kind=kind)
        case _:
            return None


def _interruption_from(
    message: iteration_pb2.Interruption,
    local_rank: int,
    known: frozenset[InterruptionKind],
    path: str,
) -> Interruption:
    """Read what a worker says of itself; its token tells better which one it is."""
    kind = kind_from(message.kind)
    if kind not in known:
        raise InvalidField(f"{path}.kind", message.kind, "what a worker can know of itself")
    _check_bytes(f"{path}.message", message.message, MESSAGE_BYTES_MAX)
    _check_bytes(f"{path}.traceback", message.traceback, TRACEBACK_BYTES_MAX)
    return Interruption(
        local_rank=local_rank, kind=kind, message=message.message, traceback=message.traceback
    )


def _spec_from(message: iteration_pb2.InprocessSpec) -> bytes:
    """Check the size of what is handed on; the coordinator knows what it means."""
    encoded = message.SerializeToString(deterministic=True)
    if len(encoded) > SPEC_BYTES_MAX:
        raise InvalidField("step.entered.spec", len(encoded), f"at most {SPEC_BYTES_MAX} bytes")
    return encoded


def _check_bytes(path: str, text: str, limit: int) -> None:
    length = len(text.encode("utf-8", "replace"))
    if length > limit:
        raise InvalidField(path, length, f"at most {limit} bytes")


def order_message(order: WorkerOrder) -> worker_pb2.WorkerOrder:
    """Write what a worker shall do."""
    message = worker_pb2.WorkerOrder(iteration=order.iteration)
    match order.kind:
        case IterationBegin(seats=(seat,)) as begin:
            own, shared = _fields(seat, seat._fields[1:]), _fields(begin, _BEGIN)
            message.begin.CopyFrom(worker_pb2.WorkerBegin(**own, **shared))
        case IterationInterrupt(reason=reason):
            message.interrupt.reason = reason
        case Abort(reason=reason):
            message.abort.reason = reason
        case IterationComplete():
            message.complete.SetInParent()
    return message


def greeting(step: WorkerStep | None, order: WorkerOrder | None) -> worker_pb2.Greeted:
    """Write where a program begins, after what the worker said and was told last.

    A worker may be several programs, one after the other.
    """
    if step is None:
        return worker_pb2.Greeted()
    told = order if order is not None and order.iteration >= step.iteration else None
    left, is_complete = "", told is not None and isinstance(told.kind, IterationComplete)
    if told is not None and isinstance(told.kind, Abort):
        left = f"no iteration follows: {told.kind.reason}"
    elif step.kind == "terminated" and step.interruption and not is_complete:
        left = f"it has left this round's iterations: {step.interruption.message}"
    return worker_pb2.Greeted(next_iteration=step.iteration + 1, left=left)


def report_message(report: InprocessReport) -> inprocess_pb2.InprocessReport:
    """Write what this host's workers do, without tracebacks."""
    message: inprocess_pb2.InprocessReport = _REPORT.write(report)
    if report.spec is not None:
        message.spec.MergeFromString(report.spec)
        message.spec.SetInParent()  # also if all of it is left at zero
    return message


def kind_from(value: iteration_pb2.InterruptionKind.ValueType) -> InterruptionKind | None:
    """Read a kind, ``None`` if there is none or it is of a later version."""
    return _KINDS.get(value)


def directive_from(message: inprocess_pb2.InprocessDirective) -> InprocessDirective | None:
    """Read what the coordinator wants; ``None`` if it is of a kind this agent does not know."""
    kind: DirectiveKind
    match message.WhichOneof("kind"):
        case "begin":
            seats = tuple(map(_seat_from, message.begin.seats))
            kind = IterationBegin(seats=seats, **_fields(message.begin, _BEGIN))
        case "interrupt":
            kind = IterationInterrupt(reason=message.interrupt.reason)
        case "complete":
            kind = IterationComplete()
        case _:
            return None
    return InprocessDirective(
        round_id=message.round_id,
        iteration=message.iteration,
        kind=kind,
        terminated=tuple(message.terminated),
    )


def _seat_from(message: inprocess_pb2.InprocessSeat) -> InprocessSeat:
    seat = InprocessSeat(**_fields(message, InprocessSeat._fields))
    return seat if message.HasField("active_rank") else seat._replace(active_rank=None)


def _fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
